"""What the tests of Anthropic's Messages share."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from anthropic import AsyncAnthropic
from anthropic.types import RawMessageStreamEvent
from pydantic import TypeAdapter

from tests.api.helpers import SECRET, USER, Api

__all__ = ["HELLO", "MODEL", "PATH", "WEATHER", "ask", "assert_error", "client_of", "events_of"]

MODEL = "scripted"
HELLO: Any = USER
PATH = "/v1/messages"
WEATHER: Any = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}


@asynccontextmanager
async def client_of(api: Api, **options: Any) -> AsyncIterator[AsyncAnthropic]:
    options = {"api_key": "any", "max_retries": 0, **options}
    async with AsyncAnthropic(base_url=api.server.url, **options) as client:
        yield client


async def ask(api: Api, path: str = PATH, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "max_tokens": 100, "messages": USER, **fields}
    return await api.http.post(path, json={k: v for k, v in body.items() if v is not ...})


async def events_of(api: Api, **fields: Any) -> list[dict[str, Any]]:
    """The events of a streamed message, each checked against the client's types."""
    response = await ask(api, stream=True, **fields)
    assert response.status_code == 200, response.text
    events = []
    for block in response.text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        event: dict[str, Any] = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        if event["type"] not in ("ping", "error"):
            TypeAdapter[Any](RawMessageStreamEvent).validate_python(event)
        events.append(event)
    return events


def assert_error(response: httpx.Response, status: int, kind: str, code: str | None = None) -> str:
    """The answer is an error in Anthropic's shape; returns its message."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"type", "error", "request_id"}
    assert body["type"] == "error"
    assert body["request_id"] == response.headers["request-id"]
    error = body["error"]
    assert set(error) == {"type", "message", "details"}
    assert error["type"] == kind
    assert code is None or error["details"]["error_code"] == code
    assert SECRET not in response.text
    assert isinstance(error["message"], str)
    return error["message"]
