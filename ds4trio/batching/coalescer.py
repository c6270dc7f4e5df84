"""The task that makes batches: gathers what sessions submit, runs steps, hands out what they bring.

Counterpart of ``decode_worker_main`` in ds4-server. Everything here happens on the event loop, but
for ``Engine.run``, which runs in worker threads. Slots and sessions change only between awaits.

While a step runs the next one is planned, prepared and handed over on the assumption that it
succeeds, so that the engine goes on without waiting for the event loop. What comes of a row whose
session has ended meanwhile is thrown away.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import trio

from ds4trio.batching.failure import FailurePolicy, recover
from ds4trio.batching.flight import Flight, Member
from ds4trio.batching.guessing import Guessing
from ds4trio.batching.pace import Pace
from ds4trio.batching.schedule import Budget, Plan, plan_step
from ds4trio.batching.session import Session, SessionTimes
from ds4trio.batching.shares import Shares
from ds4trio.batching.slots import Slots
from ds4trio.batching.stats import BatchingStats
from ds4trio.engine.interface import EngineLike
from ds4trio.engine.step import EngineInfo, Evaluated, Ran, Refused, SamplingParams
from ds4trio.errors import (
    EngineDied,
    EngineLost,
    InternalError,
    ServerBusy,
    ServerStopping,
    WireError,
)

__all__ = ["Coalescer"]

_log = logging.getLogger(__name__)


class Coalescer:
    """Many sessions, one engine, one step at a time and one more that waits for it.

    Args:
        engine: evaluates the batches; used by this object alone, and stopped when it has run.
        max_sessions: slots.
        max_waiting: requests that may wait for a slot.
        window: seconds that an idle coalescer waits for other live sessions after the first
            submission; 0 never waits.
        budget: what one step may hold.
        on_failure: what a failed step does to its members.
        speculate: let decode rows carry guesses while that pays.
    """

    def __init__(
        self,
        engine: EngineLike,
        *,
        max_sessions: int,
        max_waiting: int,
        window: float,
        budget: Budget,
        on_failure: FailurePolicy = recover,
        speculate: bool = False,
    ) -> None:
        self.stats = BatchingStats()
        self._engine = engine
        self._max_sessions = max_sessions
        self._max_waiting = max_waiting
        self._window = window
        self._budget = budget
        self._on_failure = on_failure
        self._speculate = speculate
        self._depth = 1 if budget.sessions == 1 else 2
        self._threads = trio.CapacityLimiter(self._depth)
        self._flights: deque[Flight] = deque()
        self._ids = itertools.count(1)
        self._slots = Slots(max_sessions)
        self._shares = Shares()
        self._pace = Pace()
        self._sessions: dict[int, Session] = {}
        self._stopped = False
        # What a session submits waits in the session; the channel only says "look again", so that
        # one place is enough and a ring that finds it taken has nothing to add.
        self._bell, self._rung = trio.open_memory_channel[None](1)

    # -- for the floors above

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    @property
    def sessions(self) -> int:
        """Slots taken."""
        return len(self._sessions)

    @property
    def waiting(self) -> int:
        """Requests in line for a slot."""
        return self._slots.waiting

    @property
    def ready(self) -> bool:
        """False while the engine is being started again. Requests wait meanwhile."""
        return self._engine.ready

    @property
    def free_pages(self) -> int:
        """Pages in the pool, those taken for steps in flight left out."""
        return self._engine.free_pages

    def check_capacity(self) -> None:
        """Raise ``ServerBusy`` if a request that came now would be turned away."""
        if self._stopped:
            raise ServerStopping("the server is stopping")
        if self._slots.free == 0 and self.waiting >= self._max_waiting:
            raise ServerBusy(
                f"all {self._max_sessions} sessions are taken and {self.waiting} requests wait",
                retry_after=1,
            )

    @contextlib.asynccontextmanager
    async def session(
        self, sampling: SamplingParams, *, cache_salt: str = "", user: str = ""
    ) -> AsyncIterator[Session]:
        """A slot for the length of the block; users who wait for one take turns.

        Leaving the block, in whatever way, is the cancellation: no further step has a row of it,
        and its pages return to the pool.

        Raises:
            ServerBusy: every slot is taken and the line is full.
            ServerStopping: the coalescer does not run (any more).
        """
        self.check_capacity()
        times = SessionTimes(opened=trio.current_time())
        await self._slots.acquire(user)
        session = Session(next(self._ids), self.info, sampling, self._ring, times, cache_salt, user)
        if self._speculate:
            session.guessing = Guessing()
            session.draft = session.guessing.draft
        self._sessions[session.id] = session
        times.started = times.last_step = trio.current_time()
        try:
            if self._stopped:
                raise ServerStopping("the server is stopping")
            yield session
        finally:
            session.close()
            self._reclaim(session)

    # -- the task

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled. Sessions that are open then end with ``ServerStopping``.

        Raises (in a group):
            EngineLost: the engine's process died and could not be started again. Any other failure
                of a step is its members' affair; whatever else is raised is a defect here.
        """
        async with trio.open_nursery() as flights:
            task_status.started()
            try:
                while True:
                    if self._flights or self._runnable():
                        self._take_off(flights, self._depth)
                    else:
                        await self._gather()
                        # Whoever comes during the first step is to find a place in the second.
                        self._take_off(flights, 1)
                    if self._flights:
                        await self._land()
            finally:
                self.stop()
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(self._engine.stop)

    def stop(self) -> None:
        """Take no more sessions, and end those that are open with ``ServerStopping``."""
        self._stopped = True
        for session in self._sessions.values():
            session.fail(ServerStopping("the server is stopping"))

    def _ring(self) -> None:
        with contextlib.suppress(trio.WouldBlock):
            self._bell.send_nowait(None)

    async def _gather(self) -> None:
        """Wait until there is something to step, and the window has closed."""
        if self.stats.went_idle():
            _log.info("idle: %s", self.stats.summary())
        while not self._runnable():
            await self._rung.receive()
            with trio.move_on_after(self._window):
                while 0 < self._runnable() < self._live():
                    await self._rung.receive()

    def _runnable(self) -> int:
        return sum(session.runnable for session in self._sessions.values())

    def _live(self) -> int:
        return sum(session.live for session in self._sessions.values())

    def _take_off(self, flights: trio.Nursery, depth: int) -> None:
        """Plan, prepare and hand over steps until so many are in flight."""
        while len(self._flights) < depth:
            plan = self._plan()
            if not plan.rows:
                return
            members = [Member(session, item, session.incarnation) for session, item in plan.rows]
            flight = Flight(
                self._engine.prepare([item for _, item in plan.rows]), members, plan.load
            )
            for session, item in plan.rows:
                session.planned(item)
                self._shares.charge(session.user, session.take_uncharged())
            self._flights.append(flight)
            flights.start_soon(flight.fly, self._engine, self._threads)

    def _plan(self) -> Plan:
        """The next step. Without rows if there is nothing to do before the steps in flight land."""
        suspect = self._oldest_suspect()
        if suspect is not None and self._flights:
            return Plan()
        if suspect is None:
            self._open_newcomers()
        elif not suspect.opened_in_engine:
            self._open_in_engine(suspect)
        if not self._runnable() or (suspect is not None and suspect.ended):
            return Plan()  # the engine refused those that there were
        plan = plan_step(
            self._sessions.values(),
            self._engine.free_pages_without,
            self._budget,
            self._shares,
            self._pace,
            alone=suspect,
        )
        if any(session.in_flight for session in plan.preempted):
            return Plan()  # what they are about to get would be lost
        if not plan.rows and not self._flights:
            # This must not be; it costs one session and not everybody's engine.
            oldest = suspect or min(
                (session for session in self._sessions.values() if session.runnable),
                key=lambda session: session.arrival,
            )
            _log.error("sessions wait and none of them can go on: %r is ended", oldest)
            self._end_with(oldest, InternalError("the server could not go on with this request"))
        for session in plan.preempted:
            self._engine.close(session.id)
            session.preempted()
            self.stats.preemptions += 1
        return plan

    def _oldest_suspect(self) -> Session | None:
        """Of those that must go by themselves until they are beyond the place of a failure."""
        return min(
            (s for s in self._sessions.values() if s.suspect_until is not None and s.runnable),
            key=lambda session: session.arrival,
            default=None,
        )

    def _open_newcomers(self) -> None:
        """Open the runnable sessions, so that they hold what is cached of their beginnings.

        One that was preempted waits until there is room for all of it, lest it give its pages up
        again at once; the oldest never waits.
        """
        waiting = sorted(
            (session for session in self._sessions.values() if session.runnable),
            key=lambda session: session.arrival,
        )
        oldest_stands = False
        for session in waiting:
            if session.opened_in_engine:
                oldest_stands = True
                continue
            needed = self.info.pages_for(len(session.tokens) + 1) + len(waiting)
            if not session.was_preempted or not oldest_stands or needed <= self._engine.free_pages:
                self._open_in_engine(session)
                oldest_stands = oldest_stands or session.opened_in_engine
            else:
                break  # those behind it would take the room that it waits for

    def _open_in_engine(self, session: Session) -> None:
        """Make the session known to the engine; one that it refuses ends alone."""
        try:
            self._engine.open(session.id, session.sampling, cache_salt=session.cache_salt)
        except WireError as error:
            session.fail(error)
            return
        session.opened(self._engine.reuse(session.id, session.tokens))
        if not session.was_preempted:
            self.stats.cached_tokens += session.reused

    async def _land(self) -> None:
        """Wait for the oldest step in flight, and hand out what it brings."""
        await self._flights[0].landed.wait()
        flight = self._flights.popleft()
        if flight.ran is not None:
            self._hand_out(flight, flight.ran)
            return
        assert flight.error is not None
        self._engine.abandon(flight.step)
        void = list(self._flights)
        for later in void:
            await later.landed.wait()
        self._flights.clear()
        self._step_failed(flight, flight.error, void)

    def _hand_out(self, flight: Flight, ran: Ran) -> None:
        result = self._engine.commit(flight.step, ran)
        wanted = [
            pair for pair in zip(flight.members, result.outcomes, strict=True) if pair[0].stays
        ]
        rows, taken = len(wanted), 0
        for member, outcome in wanted:
            if isinstance(outcome, Refused):
                self._end_with(member.session, outcome.error)
                continue
            own = member.session.committed(outcome.sampled, rows, outcome.guessed)
            self._shares.charge(member.session.user, member.session.take_uncharged())
            self.stats.guessed(outcome.guessed, own)
            taken += own
            if member.session.ended:
                self._close_in_engine(member.session)
        self.stats.stepped(
            rows=rows,
            prefilled=sum(len(member.item.tokens) for member, _ in wanted),
            sampled=taken,
            seconds=result.seconds,
        )
        unused = sum(
            member.item.draft - outcome.guessed
            for member, outcome in zip(flight.members, result.outcomes, strict=True)
            if isinstance(outcome, Evaluated)
        )
        load = replace(flight.load, decoding=flight.load.decoding - unused)
        self._pace.measured(load, result.seconds)

    def _step_failed(self, failed: Flight, error: Exception, void: Sequence[Flight]) -> None:
        """Nothing of the failed step counts, nor of those prepared after it: they are void."""
        _log.error("a step of %d sessions failed", len(failed.members), exc_info=error)
        self.stats.failed_steps += 1
        for later in void:
            self._engine.abandon(later.step)
        members = [member.session for member in failed.members if member.stays]
        for session in members:
            self._engine.close(session.id)
        self._on_failure(members, error)
        self.stats.retries += sum(not session.ended for session in members)
        for session in members:
            session.forgotten()
        bystanders = [session for session in self._sessions.values() if session.opened_in_engine]
        for session in bystanders:
            if isinstance(error, EngineDied | EngineLost):
                self._engine.close(session.id)
                session.preempted()
            else:
                session.rolled_back()
        if isinstance(error, EngineLost):
            raise error

    def _end_with(self, session: Session, error: WireError) -> None:
        session.fail(error)
        self._close_in_engine(session)

    def _close_in_engine(self, session: Session) -> None:
        if session.opened_in_engine:
            self._engine.close(session.id)
            session.forgotten()

    def _reclaim(self, session: Session) -> None:
        self._close_in_engine(session)
        del self._sessions[session.id]
        self._slots.release()
        self._ring()  # one that gathers a batch must count the live sessions anew
