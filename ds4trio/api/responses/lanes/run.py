"""A request of one lane on its way to its last event."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal, TypeVar

import trio

from ds4trio.api.responses.lanes.outbox import Voice
from ds4trio.api.responses.lanes.steering import Steer
from ds4trio.api.schemas.responses import ResponseCreate
from ds4trio.errors import WireError

__all__ = ["Run", "Stop"]

_T = TypeVar("_T")

Stop = Literal["cancelled", "steered"] | WireError
"""Why a response ends before its end: the client's wish, or what went wrong."""


class Run:
    """A request, from when it was taken to the last event of the responses it led to.

    Only the wait for the generator can be stopped, never a send, so that no event is lost and the
    sequence numbers stay whole.

    Attributes:
        wanted: the request. A steered response is followed by one of another request.
        size: of its message, in characters.
        response_id: of the response that runs, once there is one.
        voice: says its events.
        begun_item: the response has put something out.
        steers: input that waits for the end of the response, in order.
        stopped: the response ends here.
    """

    def __init__(self, wanted: ResponseCreate, size: int) -> None:
        self.wanted = wanted
        self.size = size
        self.response_id: str | None = None
        self.voice: Voice
        self.begun_item = False
        self.steers: list[Steer] = []
        self.stopped: Stop | None = None
        self._waiting: trio.CancelScope | None = None

    def begin(self, response_id: str, voice: Voice) -> None:
        """A response begins: the request's own, or one that follows by itself."""
        self.response_id = response_id
        self.voice = voice
        self.begun_item = False
        if self.stopped == "steered":
            self.stopped = None

    def stop(self, why: Stop) -> None:
        """End the response at once, or the one that comes next if none has begun."""
        if self.stopped in (None, "steered"):
            self.stopped = why
        if self._waiting is not None:
            self._waiting.cancel()

    def steer(self, steer: Steer) -> None:
        """Queue input for when the response has ended.

        A response that has put out nothing yet has nothing to end first, and is stopped.
        """
        self.steers.append(steer)
        if not self.begun_item:
            self.stop("steered")

    def take_steers(self) -> list[Steer]:
        """The input that waits; it does so no longer."""
        taken, self.steers = self.steers, []
        return taken

    async def wait_for(self, next_one: Callable[[], Awaitable[_T]]) -> _T | None:
        """Wait for what the generator does next; None when the response is stopped."""
        if self.stopped is not None:
            return None
        with trio.CancelScope() as self._waiting:
            return await next_one()
        return None
