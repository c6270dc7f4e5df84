"""Server-sent events with a producer of their own task.

The task that sends can be held by a client that does not read, so it is never the one that
generates. Between them is a channel without a buffer: while the client is slow, tokens pile up in
the session, and the next event carries all of them.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Protocol

import trio
from quart import Response
from quart.wrappers.response import ResponseBody

from ds4trio.errors import ClientStalled

__all__ = ["EventStreamBody", "SendEvent", "event_stream"]

_log = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 10.0

KEEP_ALIVE = b": keep-alive\n\n"


class SendEvent(Protocol):
    """Sends one event: its data (no newlines), and its name in protocols that name events."""

    async def __call__(self, data: bytes, *, event: str = "") -> None: ...


class EventStreamBody(ResponseBody, AsyncIterator[bytes]):
    """A response body fed by a task that lives exactly as long as the body is being sent.

    Args:
        produce: is given a function that sends one event's data (no newlines), and returns when the
            stream is complete.
        send_timeout: seconds an event may wait for the client; then the stream ends.
        keep_alive: what to send when there is nothing else for a while.
    """

    def __init__(
        self,
        produce: Callable[[SendEvent], Awaitable[None]],
        *,
        send_timeout: float,
        keep_alive: bytes = KEEP_ALIVE,
    ) -> None:
        self._produce = produce
        self._send_timeout = send_timeout
        self._keep_alive = keep_alive
        self._nursery_manager: AbstractAsyncContextManager[trio.Nursery] = trio.open_nursery()
        self._nursery: trio.Nursery | None = None
        self._send, self._receive = trio.open_memory_channel[bytes](0)

    async def __aenter__(self) -> EventStreamBody:
        self._nursery = await self._nursery_manager.__aenter__()
        self._nursery.start_soon(self._run)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        assert self._nursery is not None
        self._nursery.cancel_scope.cancel()
        await self._nursery_manager.__aexit__(exc_type, exc_value, tb)

    async def _run(self) -> None:
        async with self._send:
            try:
                await self._produce(self._send_event)
            except ClientStalled as error:
                _log.info("%s", error)
                assert self._nursery is not None
                self._nursery.cancel_scope.cancel()

    async def _send_event(self, data: bytes, *, event: str = "") -> None:
        name = f"event: {event}\n".encode() if event else b""
        try:
            with trio.fail_after(self._send_timeout):
                await self._send.send(name + b"data: " + data + b"\n\n")
        except trio.TooSlowError:
            raise ClientStalled("a client does not read its event stream; it is ended") from None

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        with trio.move_on_after(KEEP_ALIVE_SECONDS):
            try:
                return await self._receive.receive()
            except trio.EndOfChannel:
                raise StopAsyncIteration from None
        return self._keep_alive


def event_stream(body: EventStreamBody) -> Response:
    """The response around the body, with the headers that keep proxies from buffering it."""
    response = Response(body, content_type="text/event-stream; charset=utf-8")
    response.headers["Cache-Control"] = "no-cache"
    response.headers["X-Accel-Buffering"] = "no"
    return response
