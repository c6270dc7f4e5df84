"""Which responses a connection has running, and the input that is to steer them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from ds4trio.api.responses.events import ResponseEvents
from ds4trio.api.responses.lanes.outbox import Outbox, Voice
from ds4trio.api.responses.lanes.run import Run
from ds4trio.api.responses.lanes.steering import (
    FailureCode,
    Steer,
    accepted,
    failed,
    pending,
    read_steer,
)
from ds4trio.api.schemas.responses import ResponseSteer
from ds4trio.errors import InvalidRequest

__all__ = ["MAX_STEERS", "Register"]

MAX_STEERS = 16
"""Steering inputs that may wait on one connection."""

MAX_ENDED = 256
"""Responses of which a connection knows that they have been, though it may not hold them."""


class Register:
    """The responses of one connection. Changes between awaits only.

    Args:
        most_bytes: of all input that waits.
    """

    def __init__(self, most_bytes: int, outbox: Outbox) -> None:
        self._most_bytes = most_bytes
        self._outbox = outbox
        self._running: dict[str, Run] = {}
        self._ended: OrderedDict[str, bool] = OrderedDict()
        self._pending: dict[str, tuple[str | None, list[Steer]]] = {}

    def running(self, response_id: str) -> Run | None:
        """The request whose response this is, while it runs."""
        return self._running.get(response_id)

    def begin(self, response_id: str, run: Run) -> None:
        """A response of the request runs."""
        self._running[response_id] = run

    def end(self, events: ResponseEvents) -> None:
        """It runs no longer."""
        del self._running[events.id]
        self._ended[events.id] = events.response["status"] == "completed"
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)

    async def steer(self, event: ResponseSteer) -> None:
        """Queue input for a response that runs, or say why not.

        Raises:
            ClientStalled: the client has stopped reading.
        """
        run = self._running.get(event.previous_response_id)
        try:
            steer = Steer(event.previous_response_id, event.input, read_steer(event))
        except InvalidRequest as error:
            answer = failed(event, "invalid_input", error.message)
        else:
            refusal = self._refusal(run, steer)
            if run is not None and refusal is None:
                run.steer(steer)
                answer = accepted(steer)
            elif refusal is not None:
                answer = failed(event, *refusal)
        if run is not None:
            await run.voice.say(answer)
        else:
            await self._outbox.send({**answer, "sequence_number": 0})

    def _refusal(self, run: Run | None, steer: Steer) -> tuple[FailureCode, str] | None:
        if run is None:
            match self._ended.get(steer.response_id):
                case None:
                    return "response_not_found", "there is no such response on this connection"
                case True:
                    return "response_already_completed", "the response has ended"
                case False:
                    return "response_not_active", "the response has ended"
        if run.wanted.background:
            return "steering_not_supported", "a response in the background cannot be steered"
        if run.wanted.only_warms:
            return "steering_not_supported", "with generate: false there is no output to steer"
        if run.stopped not in (None, "steered"):
            return "response_not_active", "the response is being stopped"
        waiting = [waits for one in self._running.values() for waits in one.steers]
        waiting += [waits for _, steers in self._pending.values() for waits in steers]
        size = steer.size + sum(waits.size for waits in waiting)
        if len(waiting) >= MAX_STEERS or size > self._most_bytes:
            message = f"more than {MAX_STEERS} inputs, or too large ones, would wait"
            return "too_many_pending_steers", message
        return None

    async def leave(
        self, lane: str | None, run: Run, response_id: str, calls: Sequence[tuple[str, str]]
    ) -> None:
        """The response has called functions: what steers it waits for their results.

        Raises:
            ClientStalled: the client has stopped reading.
        """
        steers = run.take_steers()
        if not steers:
            return
        self._pending[response_id] = (lane, steers)
        for steer in steers:
            await run.voice.say(pending(steer, calls))

    def brought(self, lane: str | None, previous: str | None) -> list[Steer]:
        """Input that has waited for a request of this lane that continues ``previous``."""
        name, steers = self._pending.get(previous or "", (None, []))
        return steers if name == lane else []

    def use(self, previous: str) -> None:
        """What ``brought`` returned has become part of a request."""
        del self._pending[previous]

    async def give_up(self, response_id: str) -> None:
        """The connection does not hold the response any more; nothing can bring its input.

        Raises:
            ClientStalled: the client has stopped reading.
        """
        name, steers = self._pending.pop(response_id, (None, []))
        for steer in steers:
            message = "the connection does not hold the response any more"
            voice = Voice(self._outbox, name)
            await voice.say(failed(steer, "response_not_found", message))
