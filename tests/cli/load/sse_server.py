"""A Chat Completions server on loopback, with what it says written by the test."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import h11
import trio

__all__ = ["Reply", "SseServer", "delta", "sse_server", "usage"]


def delta(text: str, **fields: Any) -> bytes:
    """An event with a piece of the answer."""
    return event({"choices": [{"index": 0, "delta": {"content": text, **fields}}], "usage": None})


def usage(input_tokens: int = 11, output_tokens: int = 7) -> bytes:
    """The event that ``include_usage`` asks for."""
    counts = {
        "prompt_tokens": input_tokens,
        "completion_tokens": output_tokens,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    return event({"choices": [], "usage": counts})


def event(data: Any) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


@dataclass
class Reply:
    """A response. ``breaks`` ends the connection in place of the end of the body."""

    pieces: tuple[bytes, ...] = (delta("one "), delta("two"), usage(), DONE)
    status: int = 200
    breaks: bool = False
    closes: bool = False


@dataclass
class SseServer:
    """What it was asked, and what it replies.

    Attributes:
        replies: for the next requests to complete a chat, in turn; then ``Reply()``.
        models: the ids that ``/v1/models`` lists; None for a server that has no such list.
    """

    port: int = 0
    replies: list[Reply] = field(default_factory=list)
    models: list[str] | None = field(default_factory=lambda: ["fake-model"])
    bodies: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    headers: list[dict[bytes, bytes]] = field(default_factory=list)
    connections: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def handle(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        connection = h11.Connection(h11.SERVER)
        async with stream:
            try:
                while await self._exchange(stream, connection):
                    connection.start_next_cycle()
            except trio.BrokenResourceError:
                return

    async def _exchange(self, stream: trio.SocketStream, connection: h11.Connection) -> bool:
        """Whether there can be another one."""
        body = bytearray()
        while not isinstance(found := connection.next_event(), h11.EndOfMessage):
            if found is h11.NEED_DATA:
                connection.receive_data(bytes(await stream.receive_some()))
            elif isinstance(found, h11.Request):
                self.paths.append(found.target.decode())
                self.headers.append(dict(found.headers))
            elif isinstance(found, h11.Data):
                body += found.data
            else:
                return False
        reply = self._reply(bytes(body))
        headers = [("connection", "close")] if reply.closes else []
        head = h11.Response(status_code=reply.status, headers=headers)
        await stream.send_all(connection.send(head) or b"")
        for piece in reply.pieces:
            await stream.send_all(connection.send(h11.Data(data=piece)) or b"")
        if reply.breaks:
            return False
        await stream.send_all(connection.send(h11.EndOfMessage()) or b"")
        return connection.our_state is h11.DONE

    def _reply(self, body: bytes) -> Reply:
        if not body:
            if self.models is None:
                return Reply((b"nothing here",), status=404)
            listed = {"data": [{"id": model} for model in self.models]}
            return Reply((json.dumps(listed).encode(),))
        self.bodies.append(json.loads(body))
        return self.replies.pop(0) if self.replies else Reply()


@asynccontextmanager
async def sse_server() -> AsyncIterator[SseServer]:
    server = SseServer()
    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, server.handle, 0, host="127.0.0.1")
        listeners: list[trio.SocketListener] = await nursery.start(serve)
        server.port = listeners[0].socket.getsockname()[1]
        yield server
        nursery.cancel_scope.cancel()
