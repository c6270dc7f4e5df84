"""What is served over HTTP as an OpenAPI document (https://spec.openapis.org/oas/v3.1.1)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from ds4trio import __version__
from ds4trio.api.anthropic.errors import OVERLOADED
from ds4trio.api.description.operations import EVENTS, OPERATIONS, Operation
from ds4trio.api.description.schemas import TEXT, an_object, wire_schemas

__all__ = ["openapi_document", "path_template"]

_PARAMETER = re.compile(r"<(?:(?P<kind>\w+):)?(?P<name>\w+)>")

_COMPONENTS = {
    "Error": an_object(
        error=an_object("message", "type", "param", "code", message=TEXT, type=TEXT)
    ),
    "MessagesError": an_object(
        "request_id",
        type={"const": "error"},
        error=an_object("details", message=TEXT, type=TEXT),
    ),
    "Health": {"anyOf": [an_object(status=TEXT), {"$ref": "#/components/schemas/Error"}]},
}
"""What errors are."""

_DESCRIPTION = (
    "One language model, served to many people at once. A field that this document does not name "
    "is refused. Of a request, fields that are honoured come first, then those that are accepted "
    "without effect, then those that are refused; [the reference](docs#reference) says more. "
    "`null` is the same as leaving a field out."
)


def openapi_document(operations: Sequence[Operation] = OPERATIONS) -> dict[str, Any]:
    """The document, made of the table of operations and the wire types."""
    kinds = [operation.request for operation in operations if operation.request is not None]
    references, components = wire_schemas(kinds)
    bodies = dict(zip(kinds, references, strict=True))
    paths: dict[str, Any] = {}
    for operation in operations:
        path = paths.setdefault(path_template(operation.path), {})
        path[operation.method.lower()] = _operation(operation, bodies)
    return {
        "openapi": "3.2.0",  # the first that can describe the events of a stream
        "info": {"title": "ds4trio", "version": __version__, "description": _DESCRIPTION},
        "tags": [{"name": tag} for tag in dict.fromkeys(one.tag for one in operations)],
        "paths": paths,
        "components": {
            "schemas": {**components, **_COMPONENTS},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def path_template(route: str) -> str:
    """A route as OpenAPI writes it: ``/v1/models/<path:name>`` is ``/v1/models/{name}``."""
    return _PARAMETER.sub(r"{\g<name>}", route)


def _operation(operation: Operation, bodies: dict[Any, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": _name(operation),
        "tags": [operation.tag],
        "summary": operation.summary,
        "responses": _responses(operation),
    }
    if operation.key:
        described["security"] = [{"key": []}, {}]  # a server without keys needs none
    if parameters := [*_in_path(operation), *_in_query(operation)]:
        described["parameters"] = parameters
    if operation.request is not None:
        content = {"application/json": {"schema": bodies[operation.request]}}
        described["requestBody"] = {"required": True, "content": content}
    return described


def _name(operation: Operation) -> str:
    words = re.findall(r"\w+", path_template(operation.path))
    return "_".join([operation.method.lower(), *words])


def _in_path(operation: Operation) -> list[dict[str, Any]]:
    return [
        {"name": found["name"], "in": "path", "required": True, "schema": TEXT}
        for found in _PARAMETER.finditer(operation.path)
    ]


def _in_query(operation: Operation) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "query", "schema": schema} for name, schema in operation.query.items()
    ]


def _responses(operation: Operation) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    if operation.success is not None:
        responses[str(operation.success)] = {
            "description": HTTPStatus(operation.success).phrase,
            "content": {
                kind: {"itemSchema" if kind == EVENTS else "schema": schema}
                for kind, schema in operation.answers.items()
            },
        }
    reference = {"$ref": f"#/components/schemas/{operation.error}"}
    for status in operation.statuses:
        responses[str(status)] = {
            "description": "Overloaded" if status == OVERLOADED else HTTPStatus(status).phrase,
            "content": {"application/json": {"schema": reference}},
        }
    return responses
