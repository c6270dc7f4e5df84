"""Responses that are written in the background: for as long as they take, whoever looks.

A run's task belongs to the server, not to a connection. It keeps all of its events, so that any
number of clients can follow it, from any of them, without holding it up; when it has ended they are
stored, and followed from there.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Iterable

import msgspec
import trio

from ds4trio.api.responses.events import Event, ResponseEvents
from ds4trio.api.responses.request import Asked
from ds4trio.api.responses.stored.database import Record
from ds4trio.api.responses.stored.event_log import EventLog
from ds4trio.api.responses.stored.store import ResponseStore
from ds4trio.api.wire import encode
from ds4trio.errors import InternalError, ServerBusy, StoreUnavailable, WireError
from ds4trio.generate import Generator

__all__ = ["ResponseRun", "Runs", "record_of"]

_log = logging.getLogger(__name__)


def record_of(events: ResponseEvents, asked: Asked, said: Iterable[bytes] = ()) -> Record:
    """What is stored of a response as it is now. Where the one that it continues is not stored, it
    has what was said before it."""
    before = asked.previous
    stored = before is not None and bool(before.response.get("store"))
    return Record(
        events.response,
        asked.input,
        before.id if before is not None and stored else None,
        before.items if before is not None and not stored else (),
        tuple(map(msgspec.Raw, said)),
    )


class ResponseRun:
    """One response, and all that it has said.

    State changes only between awaits: followers see whole events.

    Attributes:
        owner: whose it is.
    """

    def __init__(self, owner: str, events: ResponseEvents, asked: Asked) -> None:
        self.owner = owner
        self._events = events
        self._asked = asked
        self._log = EventLog()
        self._cancelled = False
        self._waiting: trio.CancelScope | None = None

    @property
    def response(self) -> dict[str, object]:
        """The object as it is now."""
        return self._events.response

    @property
    def said(self) -> int:
        """How many events there are so far."""
        return len(self._log)

    def cancel(self) -> None:
        """End it with what there is."""
        self._cancelled = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def follow(self, after: int = -1) -> AsyncGenerator[bytes, None]:
        """Its events as JSON, from the one behind number ``after`` to the last."""
        log, number = self._log, after + 1
        while True:
            for event in log.read(number):
                yield event
                number += 1
            if number >= len(log):
                if log.ended:
                    return
                await log.more_than(number)

    async def until_ended(self) -> None:
        """Wait for its last event."""
        await self._log.until_ended()

    async def write(self, generator: Generator, store: ResponseStore) -> None:
        """Generate it, and store it when it has ended. For a task of the server's."""
        events, asked = self._events, self._asked
        try:
            last = await self._generate(generator)
        except Exception as error:
            wrong = error if isinstance(error, WireError) else _ours(error)
            last = events.failed(wrong)
        said = [*self._log.all(), *map(encode, last)]
        with trio.CancelScope(shield=True):  # a server that stops waits for its disk
            try:
                # Its last event is told when it can be continued.
                await store.put(self.owner, record_of(events, asked, said))
            except StoreUnavailable:
                _log.error("the response %s could not be stored", events.id)
        self._say(last)
        self._log.end()

    async def _generate(self, generator: Generator) -> list[Event]:
        """Say all but the last events, which are returned."""
        events, prompt = self._events, self._asked.prompt
        self._say(events.begin())
        async with contextlib.aclosing(generator.generate(prompt)) as generated:
            while not self._cancelled:
                with trio.CancelScope() as self._waiting:
                    told = events.take(await anext(generated))
                    if events.ended:
                        return told
                    self._say(told)
        return events.cut("cancelled", len(prompt.tokens), status="cancelled")

    def _say(self, events: Iterable[Event]) -> None:
        for event in events:
            self._log.append(encode(event))


def _ours(error: Exception) -> WireError:
    _log.error("a response failed for a reason that is ours", exc_info=error)
    return InternalError("the server failed; its log says why")


class Runs:
    """The responses that are being written in the background.

    Args:
        store: where they go. One that is being written has a place there from the beginning, so
            that a server that starts again can say what became of it.
        most: that may be written at a time.
    """

    def __init__(self, store: ResponseStore, most: int) -> None:
        self._store = store
        self._most = most
        self._running: dict[str, ResponseRun] = {}

    def find(self, owner: str, response_id: str) -> ResponseRun | None:
        """A response of this owner that is being written."""
        run = self._running.get(response_id)
        return run if run is not None and run.owner == owner else None

    async def start(
        self,
        nursery: trio.Nursery,
        generator: Generator,
        owner: str,
        events: ResponseEvents,
        asked: Asked,
    ) -> ResponseRun:
        """Begin to write a response.

        Args:
            nursery: the server's.

        Raises:
            ServerBusy: there are too many.
            StoreUnavailable: it could not be stored.
        """
        if len(self._running) >= self._most:
            raise ServerBusy(
                f"{self._most} responses are being written in the background already "
                "(--max-background)",
                retry_after=5,
            )
        run = self._running[events.id] = ResponseRun(owner, events, asked)
        try:
            await self._store.put(owner, record_of(events, asked))
        except BaseException:
            del self._running[events.id]
            raise
        nursery.start_soon(self._write, run, generator, events.id)
        return run

    async def _write(self, run: ResponseRun, generator: Generator, response_id: str) -> None:
        try:
            await run.write(generator, self._store)
        finally:
            del self._running[response_id]
