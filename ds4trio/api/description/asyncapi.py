"""The Responses WebSocket as an AsyncAPI document (https://www.asyncapi.com/docs/reference/
specification/v3.0.0)."""

from __future__ import annotations

import typing
from typing import Any

import msgspec

from ds4trio import __version__
from ds4trio.api.description.schemas import COUNT, TEXT, Schema, an_object, wire_schemas
from ds4trio.api.schemas.responses import ClientEvent

__all__ = ["SERVER_EVENTS", "asyncapi_document"]

_IN_ITEM: dict[str, Schema] = {"item_id": TEXT, "output_index": COUNT}
_IN_PART: dict[str, Schema] = {**_IN_ITEM, "content_index": COUNT}
_RESPONSE = an_object("status", "output", "usage", id=TEXT, object={"const": "response"})

_STEER = an_object("previous_response_id")

SERVER_EVENTS: dict[str, tuple[str, dict[str, Schema]]] = {
    "response.created": ("a response begins", {"response": _RESPONSE}),
    "response.queued": ("it waits for its turn", {"response": _RESPONSE}),
    "response.in_progress": ("it is being worked on", {"response": _RESPONSE}),
    "response.ds4trio.prefill": (
        "how far the prompt is, for requests with `return_progress`",
        {"processed": COUNT, "cached": COUNT, "total": COUNT},
    ),
    "response.output_item.added": ("an item begins", {"output_index": COUNT, "item": {}}),
    "response.output_item.done": ("the item is complete", {"output_index": COUNT, "item": {}}),
    "response.content_part.added": ("a part of a message begins", {**_IN_PART, "part": {}}),
    "response.content_part.done": ("the part is complete", {**_IN_PART, "part": {}}),
    "response.output_text.delta": ("more text", {**_IN_PART, "delta": TEXT}),
    "response.output_text.done": ("all of the text", {**_IN_PART, "text": TEXT}),
    "response.reasoning_text.delta": ("more of what the model thinks", {**_IN_PART, "delta": TEXT}),
    "response.reasoning_text.done": ("all of that", {**_IN_PART, "text": TEXT}),
    "response.function_call_arguments.delta": (
        "more of a call's arguments, which are JSON",
        {**_IN_ITEM, "delta": TEXT},
    ),
    "response.function_call_arguments.done": (
        "all of the arguments",
        {**_IN_ITEM, "name": TEXT, "arguments": TEXT},
    ),
    "response.steer.accepted": ("the server has the user's word", {"steer": _STEER}),
    "response.steer.pending": (
        "the word waits for the results of calls",
        {"steer": _STEER, "reason": TEXT, "required_input": {"type": "array"}},
    ),
    "response.steer.failed": (
        "nothing will come of the word",
        {"steer": _STEER, "error": an_object("type", "code", "message")},
    ),
    "response.completed": ("the response is complete", {"response": _RESPONSE}),
    "response.incomplete": (
        "a limit, a cancellation or steering has ended the response",
        {"response": _RESPONSE},
    ),
    "response.failed": ("the server could not end the response", {"response": _RESPONSE}),
    "error": (
        "a request was refused; the socket stays usable",
        {"status": COUNT, "error": an_object("message", "type", "param", "code")},
    ),
}
"""By its type, what each event of the server says, and its own fields."""


def asyncapi_document() -> dict[str, Any]:
    """The document, made of the wire types and ``SERVER_EVENTS``."""
    requests = typing.get_args(ClientEvent) or (ClientEvent,)
    references, components = wire_schemas(requests)
    messages: dict[str, Any] = {}
    for kind, reference in zip(requests, references, strict=True):
        name = _tag(kind)
        schema = components[reference["$ref"].rpartition("/")[2]]
        schema["required"] = list(dict.fromkeys(["type", *schema.get("required", [])]))
        messages[name] = _message(name, schema.get("description", name), reference)
    for name, (summary, fields) in SERVER_EVENTS.items():
        payload = an_object(type={"const": name}, sequence_number=COUNT, **fields)
        payload = {**payload, "properties": {**payload["properties"], "stream_id": TEXT}}
        messages[name] = _message(name, summary, payload)
    asked = [_tag(kind) for kind in requests]
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "ds4trio: Responses over a WebSocket",
            "version": __version__,
            "description": (
                "OpenAI's Responses API in WebSocket mode. Every message is one JSON text frame. "
                "A key is sent as a bearer token, or as the subprotocol "
                "`openai-insecure-api-key.KEY` beside `realtime`."
            ),
        },
        "defaultContentType": "application/json",
        "channels": {
            "responses": {
                "address": "/v1/responses",
                "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in messages},
                "bindings": {"ws": {"method": "GET", "bindingVersion": "0.1.0"}},
            }
        },
        "operations": {
            "ask": _operation("receive", "What the client sends", asked),
            "answer": _operation("send", "What the server sends", list(SERVER_EVENTS)),
        },
        "components": {
            "schemas": components,
            "messages": messages,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _tag(kind: type[msgspec.Struct]) -> str:
    return str(kind.__struct_config__.tag)


def _message(name: str, summary: str, payload: Any) -> dict[str, Any]:
    return {"name": name, "summary": summary, "payload": payload}


def _operation(action: str, summary: str, names: list[str]) -> dict[str, Any]:
    return {
        "action": action,
        "summary": summary,
        "channel": {"$ref": "#/channels/responses"},
        "messages": [{"$ref": f"#/channels/responses/messages/{name}"} for name in names],
    }
