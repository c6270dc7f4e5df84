"""Answers the requests of one connection, each with the events of a response."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from quart.wrappers import Websocket

from ds4trio.api.auth import tenant
from ds4trio.api.responses.conversation import Turn
from ds4trio.api.responses.events import Event, ResponseEvents
from ds4trio.api.responses.items import references
from ds4trio.api.responses.lanes.kept import Kept
from ds4trio.api.responses.lanes.lane import Lane
from ds4trio.api.responses.lanes.outbox import Outbox, Voice, error_event
from ds4trio.api.responses.lanes.register import Register
from ds4trio.api.responses.lanes.run import Run
from ds4trio.api.responses.lanes.steering import (
    Items,
    failed,
    with_steers,
)
from ds4trio.api.responses.request import Asked, prepare_response
from ds4trio.api.responses.stored.runs import ResponseRun, record_of
from ds4trio.api.responses.stored.store import not_ended, owner_of
from ds4trio.api.schemas.responses import ResponseCreate
from ds4trio.api.service import Service
from ds4trio.api.wire import encode
from ds4trio.errors import (
    ClientStalled,
    InternalError,
    InvalidRequest,
    PreviousResponseNotFound,
    StoreUnavailable,
    WireError,
)
from ds4trio.generate import Finished

__all__ = ["Answering"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request that can be answered, and by whom."""

    wanted: ResponseCreate
    asked: Asked
    model: str


class Answering:
    """What happens to the requests of one connection.

    Args:
        who: is served in turn with others.

    Attributes:
        register: of the responses that there are.
    """

    def __init__(self, service: Service, socket: Websocket, outbox: Outbox, who: str) -> None:
        self._service = service
        self._socket = socket
        self._outbox = outbox
        self._who = who
        self._kept = Kept(service.settings.max_body_bytes)
        self._owner = owner_of(tenant(socket, None))
        self.register = Register(service.settings.max_body_bytes, outbox)

    async def answer(self, lane: Lane, run: Run) -> None:
        """Answer a request to its last event; one that is steered has more than one response.

        Raises:
            ClientStalled: the client has stopped reading.
        """
        try:
            await self._answer(lane, run)
        except ClientStalled:
            raise
        except WireError as error:
            await self._outbox.send(error_event(error, lane.name))
        except Exception as error:
            _log.error("a response failed for a reason that is ours", exc_info=error)
            ours = InternalError("the server failed; its log says why")
            await self._outbox.send(error_event(ours, lane.name))

    async def _answer(self, lane: Lane, run: Run) -> None:
        before = run.wanted.previous_response_id
        brought = self.register.brought(lane.name, before)
        earlier = await self._earlier(before)
        ready = await self._prepare(with_steers(run.wanted, brought), earlier)
        if before is not None and brought:
            self.register.use(before)
        while True:
            if ready.wanted.background:
                await self._in_background(lane, run, ready)
                return
            turn = await self._respond(lane, run, ready)
            steers = run.take_steers()
            if turn is None or not steers:
                return
            following = with_steers(ready.wanted, steers, follows=turn.id)
            try:
                ready = await self._prepare(following, turn)
            except WireError as error:
                for steer in steers:
                    await run.voice.say(failed(steer, "successor_creation_failed", error.message))
                return

    async def _prepare(self, wanted: ResponseCreate, previous: Turn | None) -> _Asked:
        store = self._service.store
        if wanted.background and (wanted.store is False or wanted.only_warms):
            raise InvalidRequest(
                "background needs store: true, and something to generate", param="background"
            )
        if (wanted.background or wanted.store) and not store.keeps:
            raise StoreUnavailable("this server stores no responses (--store off)")
        model = self._service.find_model(wanted.model)
        asked = await prepare_response(
            self._service.generator,
            wanted,
            previous,
            known=await store.items(self._owner, references(wanted)),
            adapter=model.adapter,
            cache_salt=tenant(self._socket, wanted.cache_salt),
            user=self._who,
        )
        return _Asked(wanted, asked, model.name)

    # -- one response

    async def _respond(self, lane: Lane, run: Run, ready: _Asked) -> Turn | None:
        """All events of one response.

        Returns:
            The turn if another response may follow by itself.
        """
        events = self._events(lane, ready)
        run.begin(events.id, Voice(self._outbox, lane.name))
        self.register.begin(events.id, run)
        items = Items()
        said: list[Event] = []
        try:
            await self._say(run, events.begin(), said)
            last = await self._generate(run, ready, events, items, said)
        finally:
            # what is steered from here on comes too late
            self.register.end(events)
        status = events.response["status"]
        if events.response["store"]:
            last = await self._store(events, ready, said, last)
        forgotten: Sequence[str] = ()
        turn = None
        if status != "failed":
            turn = Turn.of(events.response, ready.asked.input, ready.asked.previous)
            forgotten = self._kept.keep(lane.name, turn)
        await run.voice.say(*last)
        for response_id in forgotten:
            await self.register.give_up(response_id)
        if run.stopped not in (None, "steered"):
            for steer in run.take_steers():
                message = "the response has ended before the input could be used"
                await run.voice.say(failed(steer, "response_not_active", message))
            return None
        if items.calls and turn is not None:
            await self.register.leave(lane.name, run, turn.id, items.calls)
        return turn

    async def _generate(
        self,
        run: Run,
        ready: _Asked,
        events: ResponseEvents,
        items: Items,
        said: list[Event],
    ) -> list[Event]:
        """All but the last events, which are returned."""
        generator, prompt = self._service.generator, ready.asked.prompt
        try:
            if ready.wanted.only_warms:
                usage = await run.wait_for(functools.partial(generator.warm, prompt))
                return self._stopped(run, ready, events) if usage is None else events.warmed(usage)
            async with contextlib.aclosing(generator.generate(prompt)) as generated:
                while True:
                    event = await run.wait_for(generated.__anext__)
                    if event is None:
                        return self._stopped(run, ready, events)
                    if isinstance(event, Finished):
                        return events.finish(event)
                    if run.steers and not items.calls and items.ended_by(event):
                        run.stop("steered")
                        return self._stopped(run, ready, events)
                    items.take(event)
                    run.begun_item = items.begun
                    await self._say(run, events.take(event), said)
        except WireError as error:
            run.stop(error)
            return events.failed(error)

    def _stopped(self, run: Run, ready: _Asked, events: ResponseEvents) -> list[Event]:
        assert run.stopped is not None
        if isinstance(run.stopped, WireError):
            return events.failed(run.stopped)
        return events.cut(run.stopped, len(ready.asked.prompt.tokens))

    # -- conversations

    async def _earlier(self, previous: str | None) -> Turn | None:
        if previous is None:
            return None
        turn = self._kept.find(previous)
        if self.register.running(previous) or self._service.runs.find(self._owner, previous):
            raise not_ended(previous)
        if turn is None:
            turn = await self._service.store.turn(self._owner, previous)
        if turn is None:
            raise PreviousResponseNotFound(
                f"neither this connection nor the store has the response {previous[:100]!r}; "
                "please send the whole conversation as input",
                param="previous_response_id",
            )
        return turn

    def _events(self, lane: Lane, ready: _Asked) -> ResponseEvents:
        stored = ready.wanted.store is not False and self._service.store.keeps
        return ResponseEvents(ready.wanted, ready.model, stored=stored, stream_id=lane.name)

    async def _say(self, run: Run, told: list[Event], said: list[Event]) -> None:
        said.extend(told)
        await run.voice.say(*told)

    async def _store(
        self, events: ResponseEvents, ready: _Asked, said: list[Event], last: list[Event]
    ) -> list[Event]:
        """Store a response before its last events are told, which are returned. A disk that fails
        takes nothing from who hears them; the connection holds the response anyway."""
        told = map(encode, [*said, *last])
        try:
            await self._service.store.put(self._owner, record_of(events, ready.asked, told))
        except StoreUnavailable:  # which the store has logged
            return events.unstored(last)
        return last

    # -- in the background

    async def _in_background(self, lane: Lane, run: Run, ready: _Asked) -> None:
        """A response that goes on when the connection is lost; here it is only followed."""
        service, events = self._service, self._events(lane, ready)
        written = await service.runs.start(
            service.server_nursery, service.generator, self._owner, events, ready.asked
        )
        run.begin(events.id, Voice(self._outbox, lane.name))
        self.register.begin(events.id, run)
        try:
            await self._follow(run, written)
        finally:
            self.register.end(events)

    async def _follow(self, run: Run, written: ResponseRun) -> None:
        """Say its events. The store has it before the last one is said.

        Raises:
            WireError: the connection ends before it does.
        """
        count = 0
        async with contextlib.aclosing(written.follow()) as said:
            while True:
                event = await run.wait_for(functools.partial(anext, said, None))
                if event is None:
                    break
                await self._outbox.send_text(event.decode())
                count += 1
        if isinstance(run.stopped, WireError):
            raise run.stopped  # it goes on, and can be followed over HTTP
        if run.stopped is None:
            return
        written.cancel()
        async with contextlib.aclosing(written.follow(count - 1)) as rest:
            async for event in rest:
                await self._outbox.send_text(event.decode())
