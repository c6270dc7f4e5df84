"""The descriptions of the API say what the code serves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from openapi_spec_validator import OpenAPIV32SpecValidator

import ds4trio.api
from ds4trio.api.description.asyncapi import SERVER_EVENTS, asyncapi_document
from ds4trio.api.description.fields import documented_fields
from ds4trio.api.description.openapi import openapi_document
from ds4trio.api.description.operations import OPERATIONS
from ds4trio.api.schemas.responses import ClientEvent
from ds4trio.app import create_app
from ds4trio.settings import Settings
from tests.api.helpers import serving_script
from tests.test_docs import endpoints


def plain(document: Any) -> Any:
    """As it goes over the wire."""
    return json.loads(msgspec.json.encode(document))


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for child in node.values():
            yield from references(child)
    elif isinstance(node, list):
        for child in node:
            yield from references(child)


def follow(document: Any, reference: str) -> Any:
    for part in reference.removeprefix("#/").split("/"):
        document = document[part]
    return document


def test_every_route_is_an_operation_and_every_operation_is_a_route() -> None:
    served = {pair for pair in endpoints(create_app(Settings())) if pair[0] != "WebSocket"}
    described = [(operation.method, operation.path) for operation in OPERATIONS]
    assert served - set(described) == set(), "not in ds4trio/api/description/operations.py"
    assert set(described) - served == set(), "in the table, but not served"
    assert len(described) == len(set(described))


def test_the_document_is_one_of_openapi() -> None:
    document = plain(openapi_document())
    OpenAPIV32SpecValidator(document).validate()
    names = [item["operationId"] for path in document["paths"].values() for item in path.values()]
    assert len(names) == len(set(names)) == len(OPERATIONS)


@pytest.mark.parametrize("document", [openapi_document(), asyncapi_document()])
def test_every_schema_is_one_and_every_reference_leads_somewhere(document: Any) -> None:
    document = plain(document)
    for schema in document["components"]["schemas"].values():
        assert jsonschema_rs.meta.is_valid(schema)
    for reference in references(document):
        follow(document, reference)


def test_the_socket_is_described_as_asyncapi_wants_it() -> None:
    """https://www.asyncapi.com/docs/reference/specification/v3.0.0"""
    document = plain(asyncapi_document())
    assert set(document) >= {"asyncapi", "info", "channels", "operations", "components"}
    assert document["asyncapi"] == "3.0.0"
    (channel,) = document["channels"].values()
    assert channel["address"] == "/v1/responses"
    allowed = {message["$ref"] for message in channel["messages"].values()}
    for operation in document["operations"].values():
        assert operation["action"] in ("send", "receive")
        assert follow(document, operation["channel"]["$ref"]) == channel
        for message in operation["messages"]:
            named = follow(document, message["$ref"])  # in the channel, which names a component
            assert named["$ref"] in allowed
            component = follow(document, named["$ref"])
            assert jsonschema_rs.meta.is_valid(component["payload"])


def test_what_the_server_takes_on_the_socket_is_what_it_decodes() -> None:
    document = plain(asyncapi_document())
    taken = {
        reference["$ref"].rsplit("/", 1)[1]
        for reference in document["operations"]["ask"]["messages"]
    }
    for kind in taken:
        with pytest.raises(msgspec.ValidationError, match=r"unknown field|missing required field"):
            msgspec.json.decode(
                json.dumps({"type": kind, "no such field": 1}).encode(), type=ClientEvent
            )


def test_every_event_that_the_server_names_is_described() -> None:
    """Whatever is written like an event's type, or the beginning of one, where the doors are."""
    folder = Path(ds4trio.api.__file__).parent
    files = [file for file in folder.rglob("*.py") if file.parent.name != "description"]
    named = {
        name
        for file in files
        for name in re.findall(r'"(response\.[a-z_.]+)"', file.read_text(encoding="utf-8"))
    }
    requests = {
        kind["$ref"].rsplit("/", 1)[1]
        for kind in asyncapi_document()["operations"]["ask"]["messages"]
    }
    requests |= {"response.input_tokens", "response.deleted"}  # objects over HTTP
    beginnings = {name.rpartition(".")[0] for name in SERVER_EVENTS}
    assert named - requests - set(SERVER_EVENTS) - beginnings == set()


@pytest.mark.parametrize("kind", sorted(documented_fields()))
def test_every_documented_field_is_described_in_the_order_of_the_documentation(kind: str) -> None:
    schema = plain(openapi_document())["components"]["schemas"][kind]
    documented = documented_fields()[kind]
    described = {
        name: field["description"]
        for name, field in schema["properties"].items()
        if name != "type"  # which says which message it is
    }
    assert list(described.items()) == list(documented.items())
    for text in described.values():
        assert not re.fullmatch(r"(?:Beyond \w+, )?as (?:above|in \w+ \w+)", text, re.IGNORECASE)


async def test_the_descriptions_need_no_key_and_no_model() -> None:
    async with serving_script(api_key=("secret",)) as api:
        for path, name in (("/openapi.json", "openapi"), ("/asyncapi.json", "asyncapi")):
            response = await api.http.get(path)
            assert response.status_code == 200
            assert response.headers["content-type"] == "application/json"
            assert name in response.json()
        page = await api.http.get("/docs")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert not re.search(r'<(?!a )[^>]*(?:src|href)="(?!\./)', page.text), "fetched elsewhere"
