"""Lanes: each is first-in-first-out, and they run side by side (OpenAI's Responses WebSocket mode).

A lane is named by ``stream_id``; requests without one are in the default lane. Which conversation a
request continues has nothing to do with its lane.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterator

import trio

from ds4trio.api.responses.lanes.run import Run
from ds4trio.api.schemas.responses import ResponseCreate
from ds4trio.errors import InvalidStreamId, StreamLimitReached, WireError

__all__ = ["MAX_LANES", "MAX_RUNNING", "MAX_WAITING", "Lane", "Lanes", "check_name"]

MAX_RUNNING = 16
"""Responses of one connection that run at once. Further requests wait."""

MAX_LANES = 32
"""Lanes with a name that one connection can have in its life."""

MAX_WAITING = 64
"""Requests that may wait on one connection, in all of its lanes together."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,256}")


def check_name(name: str | None) -> None:
    """Refuse what cannot be the name of a lane; None is the default lane.

    Raises:
        InvalidStreamId: it cannot.
    """
    if name is not None and not _NAME.fullmatch(name):
        raise InvalidStreamId(
            "stream_id takes 1 to 256 of the characters A-Z, a-z, 0-9, underscore, hyphen and "
            "period; leave it out for the default lane",
            param="stream_id",
        )


class Lane:
    """Requests that are answered one after another.

    Attributes:
        name: None for the default lane.
        running: the request that is being answered.
        waiting: those behind it.
    """

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.running: Run | None = None
        self.waiting: deque[Run] = deque()

    @property
    def first(self) -> Run | None:
        """The first request that was not stopped yet; the one that a ``response.cancel`` means."""
        runs = [self.running, *self.waiting]
        return next((run for run in runs if run and run.stopped in (None, "steered")), None)


class Lanes:
    """The lanes of one connection. A lane has a task while it has requests, and none while not.

    Args:
        nursery: for these tasks.
        answer: answers a request of a lane to its last event. Whatever it raises ends the
            connection.
        most_waiting: characters of all messages that wait, together. One may always wait.

    Attributes:
        idle: set once ``close`` was called and all that was taken is answered.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        answer: Callable[[Lane, Run], Awaitable[None]],
        most_waiting: int,
    ) -> None:
        self.idle = trio.Event()
        self._nursery = nursery
        self._answer = answer
        self._most_waiting = most_waiting
        self._lanes: dict[str | None, Lane] = {None: Lane(None)}
        self._places = trio.CapacityLimiter(MAX_RUNNING)
        self._busy: set[Lane] = set()
        self._refusal: WireError | None = None

    @property
    def runs(self) -> Iterator[Run]:
        """The requests that are being answered."""
        return (lane.running for lane in self._busy if lane.running is not None)

    def get(self, name: str | None) -> Lane | None:
        """A lane that was used before."""
        return self._lanes.get(name)

    def take(self, wanted: ResponseCreate, size: int) -> None:
        """Put a request at the end of its lane.

        Raises:
            InvalidStreamId: the lane cannot have this name.
            StreamLimitReached: there are too many lanes, or too much waits.
            WireError: what ``close`` was given.
        """
        check_name(wanted.stream_id)
        if self._refusal is not None:
            raise self._refusal
        lane = self._lanes.get(wanted.stream_id)
        if lane is None and len(self._lanes) > MAX_LANES:  # the default lane is one of them
            raise StreamLimitReached(
                f"this connection has used {MAX_LANES} values of stream_id, which is the most; "
                "use one of them again, or another connection",
                param="stream_id",
            )
        waiting = [run.size for known in self._busy for run in known.waiting]
        if len(waiting) >= MAX_WAITING:
            raise StreamLimitReached(
                f"{MAX_WAITING} requests wait on this connection already, which is the most"
            )
        if waiting and sum(waiting) + size > self._most_waiting:
            raise StreamLimitReached(
                "the requests that wait on this connection are too large together"
            )
        if lane is None:
            lane = self._lanes[wanted.stream_id] = Lane(wanted.stream_id)
        lane.waiting.append(Run(wanted, size))
        if lane not in self._busy:
            self._busy.add(lane)
            self._nursery.start_soon(self._serve, lane)

    def close(self, refusal: WireError) -> None:
        """Take no more requests: refuse them with this error."""
        self._refusal = refusal
        if not self._busy:
            self.idle.set()

    def drop_waiting(self) -> list[tuple[Lane, Run]]:
        """Take the requests that have not begun out of their lanes."""
        dropped = [(lane, run) for lane in self._busy for run in lane.waiting]
        for lane in self._busy:
            lane.waiting.clear()
        return dropped

    async def _serve(self, lane: Lane) -> None:
        while lane.waiting:
            async with self._places:
                if not lane.waiting:
                    break  # dropped meanwhile
                lane.running = lane.waiting.popleft()
                try:
                    await self._answer(lane, lane.running)
                finally:
                    lane.running = None
        self._busy.discard(lane)
        if self._refusal is not None and not self._busy:
            self.idle.set()
