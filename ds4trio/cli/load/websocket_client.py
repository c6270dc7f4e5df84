"""A user over OpenAI's Responses WebSocket mode."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection

from ds4trio.cli.load.client import Answer, Asking, RequestFailed
from ds4trio.cli.terminal.connection import open_connection
from ds4trio.cli.terminal.endpoint import Endpoint
from ds4trio.cli.terminal.wire import ErrorBody

__all__ = ["WebSocketClient", "websocket_client"]


class _CachedTokens(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _CachedTokens | None = None


class _Response(msgspec.Struct):
    id: str | None = None
    usage: _Usage | None = None
    error: ErrorBody | None = None


class _Event(msgspec.Struct):
    """Of all events, what is read of any."""

    type: str
    response: _Response | None = None
    error: ErrorBody | None = None


class WebSocketClient:
    """Turns continue the conversation that the connection holds, by ``previous_response_id``."""

    def __init__(self, websocket: WebSocketConnection, asking: Asking) -> None:
        self._websocket = websocket
        self._asking = asking
        self._previous: str | None = None
        self._decoder = msgspec.json.Decoder(_Event)

    def begin(self) -> None:
        self._previous = None

    async def ask(self, text: str) -> Answer:
        try:
            await self._websocket.send_message(msgspec.json.encode(self._request(text)).decode())
            return await self._answer()
        except ConnectionClosed as closed:
            reason = closed.reason.reason if closed.reason else None
            said = f": {reason}" if reason else ""
            raise RequestFailed(
                f"the connection was closed{said}", code="connection_closed", lost=True
            ) from None
        except msgspec.MsgspecError as error:
            raise RequestFailed(
                f"an event is not as expected: {error}", code="bad_answer", lost=True
            ) from None

    async def _answer(self) -> Answer:
        pieces: list[float] = []
        while True:
            frame = await self._websocket.get_message()
            event = self._decoder.decode(frame)
            if event.type.endswith("text.delta"):
                pieces.append(trio.current_time())
            elif event.type in ("response.completed", "response.incomplete"):
                return self._finish(event.response or _Response(), tuple(pieces))
            elif event.type == "response.failed":
                raise _failure((event.response or _Response()).error)
            elif event.type == "error":
                raise _failure(event.error)

    def _finish(self, response: _Response, pieces: tuple[float, ...]) -> Answer:
        self._previous = response.id
        usage = response.usage or _Usage()
        cached = usage.input_tokens_details
        return Answer(
            pieces,
            input_tokens=usage.input_tokens,
            cached_tokens=cached.cached_tokens if cached else None,
            output_tokens=usage.output_tokens,
        )

    def _request(self, text: str) -> dict[str, Any]:
        wanted: dict[str, Any] = {
            "type": "response.create",
            "input": [{"type": "message", "role": "user", "content": text}],
            "max_output_tokens": self._asking.output_tokens,
            "temperature": self._asking.temperature,
            "store": False,
        }
        if self._asking.model is not None:
            wanted["model"] = self._asking.model
        if self._previous is not None:
            wanted["previous_response_id"] = self._previous
        return wanted


@asynccontextmanager
async def websocket_client(
    endpoint: Endpoint, asking: Asking, on_wait: Callable[[str], None]
) -> AsyncIterator[WebSocketClient]:
    """Connect; a server that still loads its model is waited for, and ``on_wait`` told.

    Raises:
        ChatError: on entering, the server is not there or refuses.
    """
    async with open_connection(endpoint, on_wait=on_wait) as websocket:
        yield WebSocketClient(websocket, asking)


def _failure(error: ErrorBody | None) -> RequestFailed:
    said = error or ErrorBody()
    code = said.code or said.type or "unknown"
    return RequestFailed(said.message or "the response failed", code=code, lost=False)
