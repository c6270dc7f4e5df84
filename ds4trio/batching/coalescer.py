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
import math
from collections import deque
from collections.abc import AsyncIterator

import trio

from ds4trio.batching.failure import FailurePolicy, recover
from ds4trio.batching.flight import Flight, Member
from ds4trio.batching.guessing import Guessing
from ds4trio.batching.pace import Pace
from ds4trio.batching.roster import Roster
from ds4trio.batching.schedule import Budget, Plan, plan_step
from ds4trio.batching.session import Session, SessionTimes
from ds4trio.batching.shares import Shares
from ds4trio.batching.slots import Slots
from ds4trio.batching.stats import BatchingStats
from ds4trio.engine.interface import EngineLike
from ds4trio.engine.step import EngineInfo, Ran, Refused, SamplingParams
from ds4trio.errors import EngineDied, EngineLost, InternalError, ServerBusy, ServerStopping

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
        step_timeout: seconds that a step may take; beyond them the engine counts as dead.
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
        step_timeout: float = math.inf,
    ) -> None:
        self.stats = BatchingStats()
        self._engine = engine
        self._max_sessions = max_sessions
        self._max_waiting = max_waiting
        self._window = window
        self._budget = budget
        self._on_failure = on_failure
        self._speculate = speculate
        self._step_timeout = step_timeout
        self._depth = 1 if budget.sessions == 1 else 2
        self._threads = trio.CapacityLimiter(self._depth)
        self._flights: deque[Flight] = deque()
        self._ids = itertools.count(1)
        self._slots = Slots(max_sessions)
        self._shares = Shares()
        self._pace = Pace()
        self._roster = Roster(engine, self.stats)
        self._stopped = False
        # What a session submits waits in the session; the channel only says "look again", so that
        # one place is enough and a ring that finds it taken has nothing to add.
        self._bell, self._rung = trio.open_memory_channel[None](1)

    # -- for the floors above

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    def prepare_grammar(self, grammar: str) -> None:
        """A session with this grammar will come. Tells the engine, which compiles it meanwhile.
        Writes to a pipe; for worker threads."""
        self._engine.prepare_grammar(grammar)

    @property
    def sessions(self) -> int:
        """Slots taken."""
        return len(self._roster.sessions)

    @property
    def waiting(self) -> int:
        """Requests in line for a slot."""
        return self._slots.waiting

    @property
    def ready(self) -> bool:
        """False from the engine's death until it has been started again. Requests wait for it."""
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
        self, sampling: SamplingParams, *, cache_salt: str = "", user: str = "", adapter: str = ""
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
        session = Session(
            next(self._ids), self.info, sampling, self._ring, times, cache_salt, user, adapter
        )
        if self._speculate:
            session.guessing = Guessing()
            session.draft = session.guessing.draft
        self._roster.add(session)
        times.started = times.last_step = trio.current_time()
        try:
            if self._stopped:
                raise ServerStopping("the server is stopping")
            yield session
        finally:
            session.close()
            self._roster.remove(session)
            self._slots.release()
            self._ring()  # one that gathers a batch must count the live sessions anew

    # -- the task

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled. Sessions that are open then end with ``ServerStopping``.

        Raises (in a group):
            EngineLost: the engine's process died and could not be started again. Any other failure
                of a step is its members' affair; whatever else is raised is a defect here.
        """
        async with trio.open_nursery() as flights:
            flights.start_soon(self._watch)
            task_status.started()
            try:
                while True:
                    if self._flights or self._roster.runnable or not self._engine.ready:
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
        for session in self._roster.sessions:
            session.fail(ServerStopping("the server is stopping"))

    def _ring(self) -> None:
        with contextlib.suppress(trio.WouldBlock):
            self._bell.send_nowait(None)

    async def _watch(self) -> None:
        """Ring when the engine has died, so that one that was idle is started again at once."""
        limiter = trio.CapacityLimiter(1)
        while await trio.to_thread.run_sync(
            self._engine.watch, limiter=limiter, abandon_on_cancel=True
        ):
            self._ring()

    async def _gather(self) -> None:
        """Wait until there is something to step, and the window has closed."""
        if self.stats.went_idle():
            _log.info("idle: %s", self.stats.summary())
        while not self._roster.runnable and self._engine.ready:
            await self._rung.receive()
            with trio.move_on_after(self._window):
                while self._some_but_not_all_submitted():
                    await self._rung.receive()

    def _some_but_not_all_submitted(self) -> bool:
        live = sum(session.live for session in self._roster.sessions)
        return 0 < len(self._roster.runnable) < live

    def _take_off(self, flights: trio.Nursery, depth: int) -> None:
        """Plan, prepare and hand over steps until so many are in flight."""
        while len(self._flights) < depth:
            starts_it_again = not self._flights and not self._engine.ready
            # Nobody has a part in that step, so nobody is to blame for what becomes of it.
            plan = Plan() if starts_it_again else self._plan()
            if not plan.rows and not starts_it_again:
                return
            members = [Member(session, item, session.incarnation) for session, item in plan.rows]
            step = self._engine.prepare([item for _, item in plan.rows])
            flight = Flight(step, members, plan.load)
            for session, item in plan.rows:
                session.planned(item)
                self._shares.charge(session.user, session.take_uncharged())
            self._flights.append(flight)
            flights.start_soon(flight.fly, self._engine, self._threads)

    def _plan(self) -> Plan:
        """The next step. Without rows if there is nothing to do before the steps in flight land."""
        suspect = self._roster.suspect
        if suspect is not None and self._flights:
            return Plan()
        if suspect is None:
            self._roster.open_newcomers()
        elif not suspect.opened_in_engine:
            self._roster.open(suspect)
        runnable = self._roster.runnable
        if not runnable or (suspect is not None and suspect.ended):
            return Plan()  # the engine refused those that there were
        plan = plan_step(
            self._roster.sessions,
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
            oldest = suspect or runnable[0]
            _log.error("sessions wait and none of them can go on: %r is ended", oldest)
            error = InternalError("the server could not go on with this request")
            self._roster.end_with(oldest, error)
        for session in plan.preempted:
            self._roster.preempt(session)
        return plan

    async def _land(self) -> None:
        """Wait for the oldest step in flight, and hand out what it brings."""
        await self._flights[0].wait(self._engine, self._step_timeout)
        flight = self._flights.popleft()
        if flight.ran is not None:
            self._hand_out(flight, flight.ran)
        elif flight.error is not None:
            await self._undo(flight, flight.error)

    async def _undo(self, flight: Flight, error: Exception) -> None:
        """Nothing of a failed step counts, nor of those prepared after it: they are void."""
        self._engine.abandon(flight.step)
        void = list(self._flights)
        for later in void:
            await later.landed.wait()
        self._flights.clear()
        if flight.members:
            _log.error("a step of %d sessions failed", len(flight.members), exc_info=error)
            self.stats.failed_steps += 1
        elif isinstance(error, EngineDied):
            _log.warning("%s", error)
        else:
            _log.error("the engine could not be made ready", exc_info=error)
        for later in void:
            self._engine.abandon(later.step)
        members = [member.session for member in flight.members if member.stays]
        self._roster.undo(members, error, self._on_failure)
        if isinstance(error, EngineLost):
            raise error

    def _hand_out(self, flight: Flight, ran: Ran) -> None:
        result = self._engine.commit(flight.step, ran)
        if not flight.members:
            return
        wanted = [
            pair for pair in zip(flight.members, result.outcomes, strict=True) if pair[0].stays
        ]
        rows, taken = len(wanted), 0
        for member, outcome in wanted:
            if isinstance(outcome, Refused):
                self._roster.end_with(member.session, outcome.error)
                continue
            own = member.session.committed(outcome.sampled, rows, outcome.guessed, outcome.prompt)
            self._shares.charge(member.session.user, member.session.take_uncharged())
            self.stats.guessed(outcome.guessed, own)
            taken += own
            if member.session.ended:
                self._roster.close(member.session)
        self.stats.stepped(
            rows=rows,
            prefilled=sum(len(member.item.tokens) for member, _ in wanted),
            sampled=taken,
            seconds=result.seconds,
        )
        self._pace.measured(flight.load_when_run(result), result.seconds)
