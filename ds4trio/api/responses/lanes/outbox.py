"""What goes out over one WebSocket, one frame after another."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any, Protocol

import trio

from ds4trio.api.wire import encode, error_body
from ds4trio.errors import ClientStalled, WireError

__all__ = ["Outbox", "Sends", "Voice", "error_event"]


class Sends(Protocol):
    """The part of a WebSocket that an outbox needs."""

    async def send(self, data: str) -> None: ...

    async def close(self, code: int, reason: str = ...) -> None: ...


class Outbox:
    """Hands frames of many tasks to the one that sends.

    That task may be held by a client that does not read, beyond any cancellation, so it is a task
    of its own, and the others wait for it for so long only. There is no buffer between them: each
    holds the one event that it waits with, and what is generated meanwhile piles up in its session.

    Args:
        patience: seconds without a frame taken after which a client has stalled.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._outgoing, self._to_send = trio.open_memory_channel[str](0)
        self._waits: set[trio.CancelScope] = set()
        self._goodbye = (1000, "")

    async def run(self, socket: Sends) -> None:
        """Send until ``close`` was called, then close the WebSocket."""
        async for frame in self._to_send:
            await socket.send(frame)
            for wait in self._waits:
                wait.deadline = trio.current_time() + self._patience
        await socket.close(*self._goodbye)

    async def send(self, event: dict[str, Any]) -> None:
        """Send an event after all that tasks wait with already. Nothing once it is closed.

        Raises:
            ClientStalled: the client has read nothing for too long.
        """
        await self.send_text(encode(event).decode())

    async def send_text(self, frame: str) -> None:
        """Send an event that is JSON already.

        Raises:
            ClientStalled: as ``send``.
        """
        # closed: all that mattered was said, and the close frame is on its way
        with contextlib.suppress(trio.ClosedResourceError):
            try:
                self._outgoing.send_nowait(frame)  # mostly somebody waits for it
            except trio.WouldBlock:
                await self._send_in_time(frame)

    async def _send_in_time(self, frame: str) -> None:
        with trio.move_on_after(self._patience) as wait:
            self._waits.add(wait)
            try:
                await self._outgoing.send(frame)
            finally:
                self._waits.discard(wait)
        if wait.cancelled_caught:
            raise ClientStalled(
                f"a client has not read its WebSocket for {self._patience:g} s; it is closed"
            )

    def close(self, code: int, reason: str) -> None:
        """Take nothing more; the close frame follows what was taken."""
        self._goodbye = (code, reason)
        self._outgoing.close()


class Voice:
    """The events of one response on their way out: numbered in order, with the name of its lane.

    Two tasks use it, the one that generates and the one that reads what the client says of the
    response, so numbers are given at the moment of sending.
    """

    def __init__(self, outbox: Outbox, lane: str | None) -> None:
        self._outbox = outbox
        self._lane = {} if lane is None else {"stream_id": lane}
        self._numbers = itertools.count()

    async def say(self, *events: dict[str, Any]) -> None:
        """Send events of the response.

        Raises:
            ClientStalled: as ``Outbox.send``.
        """
        for event in events:
            number = next(self._numbers)  # nothing may come between this and the sending
            await self._outbox.send({**event, "sequence_number": number, **self._lane})


def error_event(error: WireError, lane: str | None = None) -> dict[str, Any]:
    """An error outside of any response; with the lane of the request that it answers."""
    event = {
        "type": "error",
        "status": error.status,
        "error": error_body(error),
        "code": error.code,
        "message": error.message,
        "param": error.param,
        "sequence_number": 0,
    }
    return event if lane is None else {**event, "stream_id": lane}
