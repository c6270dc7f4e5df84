"""Requests and messages of every kind that the descriptions allow, and of kinds that they do not.

Whatever comes, an answer has a status that is documented for it and the shape that belongs to the
status, and a socket answers the next request as it did the first.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import schemathesis
import trio
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from ds4trio.api.description.asyncapi import SERVER_EVENTS, asyncapi_document
from ds4trio.api.description.openapi import openapi_document
from tests.api.helpers import FINAL_EVENTS, ResponsesSocket, ScriptedEngine, serving_script
from tests.api.test_openapi import plain

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
"""Requests as they are described, and ones that break the description somewhere."""

QUICK = hypothesis_settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
OPERATIONS = [
    (method.upper(), path)
    for path, methods in plain(openapi_document())["paths"].items()
    for method in methods
    if path != "/v1/server/events"  # which has no end; test_live.py reads it
]


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
async def test_every_answer_is_a_documented_one(method: str, path: str) -> None:
    engine = ScriptedEngine("HELLO", context_length=2000)
    async with serving_script(engine, max_output_tokens=8) as api:
        operation = schemathesis.openapi.from_dict(plain(openapi_document()))[path][method]

        def sweep() -> None:
            for mode in MODES if operation.body else MODES[:1]:  # without one all is as described
                strategy = operation.as_strategy(generation_mode=mode)

                @QUICK
                @given(strategy)
                def ask(case: schemathesis.Case[Any]) -> None:
                    response = case.call(base_url=api.server.url, timeout=20)
                    case.validate_response(response, checks=CHECKS)

                ask()

        await trio.to_thread.run_sync(sweep)
        assert (await api.http.get("/health")).status_code == 200
        await api.at_rest()


def messages() -> st.SearchStrategy[Any]:
    """Messages as described and nearly so, messages with one field that is anything, and anything
    else."""
    socket = plain(asyncapi_document())
    schemas = socket["components"]["schemas"]
    payloads = {
        reference["$ref"].rpartition("/")[2]: socket["components"]["messages"][
            reference["$ref"].rpartition("/")[2]
        ]["payload"]
        for reference in socket["operations"]["ask"]["messages"]
    }
    anything = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
        max_leaves=6,
    )
    kinds: list[st.SearchStrategy[Any]] = [anything]
    for name, payload in payloads.items():
        kinds += [_bodies(payload, schemas, mode) for mode in MODES]
        schema = schemas[payload["$ref"].rpartition("/")[2]]
        fields = [field for field in schema["properties"] if field != "type"]
        least = {"type": name, "input": "hi"} if name == "response.create" else {"type": name}
        one_field = st.dictionaries(
            st.sampled_from(fields) | st.text(max_size=9), anything, min_size=1, max_size=1
        )
        kinds.append(st.builds(dict.__or__, st.just(least), one_field))
    said = st.one_of(*kinds).map(lambda value: json.dumps(value, default=str))
    return said | st.text(max_size=30) | st.binary(max_size=30)


def _bodies(payload: Any, schemas: Any, mode: GenerationMode) -> st.SearchStrategy[Any]:
    """What schemathesis makes of a schema, as the body of a request that is never sent."""
    body = {"required": True, "content": {"application/json": {"schema": payload}}}
    answers = {"200": {"description": "OK"}}
    document = {
        "openapi": "3.1.0",
        "info": {"title": "messages", "version": "1"},
        "paths": {"/": {"post": {"requestBody": body, "responses": answers}}},
        "components": {"schemas": schemas},
    }
    operation = schemathesis.openapi.from_dict(document)["/"]["POST"]
    return operation.as_strategy(generation_mode=mode).map(lambda case: case.body)


async def test_after_any_message_the_socket_still_answers() -> None:
    engine = ScriptedEngine("HELLO", context_length=2000)
    async with serving_script(engine, max_output_tokens=8) as api:
        async with api.socket() as socket:
            portal = trio.lowlevel.current_trio_token()

            @hypothesis_settings(QUICK, max_examples=300)
            @given(messages())
            def send(message: str | bytes) -> None:
                trio.from_thread.run(after, socket, message, trio_token=portal)

            await trio.to_thread.run_sync(send)
        await api.at_rest()


async def after(socket: ResponsesSocket, message: str | bytes) -> None:
    """Send a message, then ask something: the answer to that comes, whatever came before it."""
    await socket.send(message)
    await socket.create("And now?", metadata={"asked": "after"})
    while True:
        event = await socket.event()
        assert event["type"] in SERVER_EVENTS
        if event["type"] == "error":
            assert event["status"] < 500
        elif event["type"] in FINAL_EVENTS:
            assert event["response"]["status"] != "failed"
            if event["response"]["metadata"] == {"asked": "after"}:
                return
