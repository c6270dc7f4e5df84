"""A step on its way: from the coalescer into a worker thread, and back."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import trio

from ds4trio.batching.pace import Load
from ds4trio.batching.session import Session
from ds4trio.engine.interface import EngineLike
from ds4trio.engine.step import Evaluated, Ran, Step, StepItem, StepResult

__all__ = ["Flight", "Member"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Member:
    """A session's part of a step. Made before the session counts it as in flight."""

    session: Session
    item: StepItem
    incarnation: int

    @property
    def stays(self) -> bool:
        """The session still wants what comes of it: it has not ended or lost its pages."""
        return self.session.incarnation == self.incarnation and not self.session.ended


@dataclass(eq=False, slots=True)
class Flight:
    """A step that was prepared.

    Attributes:
        load: what it will cost if every guess that it has room for is found.
        landed: set when ``ran`` or ``error`` is there.
    """

    step: Step
    members: Sequence[Member]
    load: Load
    landed: trio.Event = field(default_factory=trio.Event)
    ran: Ran | None = None
    error: Exception | None = None

    def load_when_run(self, result: StepResult) -> Load:
        """What its seconds are to be compared by: room for guesses that were not found is free."""
        unused = sum(
            member.item.draft - outcome.guessed
            for member, outcome in zip(self.members, result.outcomes, strict=True)
            if isinstance(outcome, Evaluated)
        )
        return replace(self.load, decoding=self.load.decoding - unused)

    async def fly(self, engine: EngineLike, limiter: trio.CapacityLimiter) -> None:
        """Run the step, whatever happens meanwhile: the engine counts on it."""
        try:
            with trio.CancelScope(shield=True):
                self.ran = await trio.to_thread.run_sync(engine.run, self.step, limiter=limiter)
        except Exception as error:
            self.error = error
        self.landed.set()

    async def wait(self, engine: EngineLike, patience: float) -> None:
        """Wait for the end of the step, which is the oldest one in flight.

        Args:
            engine: it counts as dead when the step does not end.
            patience: seconds, from now on; the start of an engine takes as long as it takes.
        """
        while not self.landed.is_set():
            with trio.move_on_after(patience):
                await self.landed.wait()
                return
            if engine.ready:
                how = "the engine counts as dead" if engine.interrupt() else "nothing can end it"
                _log.error("a step has not ended in %g s (--step-timeout): %s", patience, how)
