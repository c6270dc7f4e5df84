"""The task that makes batches: gathers what sessions submit, runs one step at a time, hands out.

Counterpart of ``decode_worker_main`` in ds4-server. Everything here happens on the event loop, but
for ``Engine.eval_batch``, which runs in a worker thread. Slots and sessions change only between
awaits. While a step is in flight the engine is not touched: sessions that end meanwhile are put on
a list, and their pages return to the pool at the step boundary.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import AsyncIterator

import trio

from ds4trio.batching.failure import FailurePolicy, fail_all
from ds4trio.batching.pace import Pace
from ds4trio.batching.schedule import Budget, Plan, plan_step
from ds4trio.batching.session import Session, SessionTimes, SlotState
from ds4trio.batching.shares import Shares
from ds4trio.batching.slots import Slots
from ds4trio.batching.stats import BatchingStats
from ds4trio.engine.interface import EngineLike
from ds4trio.engine.step import EngineInfo, Refused, SamplingParams, StepResult
from ds4trio.errors import InternalError, ServerBusy, ServerStopping, WireError

__all__ = ["Coalescer"]

_log = logging.getLogger(__name__)


class Coalescer:
    """Many sessions, one engine, one step at a time.

    Args:
        engine: evaluates the batches; owned by the caller, used by this object alone.
        max_sessions: slots.
        max_waiting: requests that may wait for a slot.
        window: seconds that an idle coalescer waits for other live sessions after the first
            submission; 0 never waits.
        budget: what one step may hold.
        on_failure: what a failed step does to its members.
    """

    def __init__(
        self,
        engine: EngineLike,
        *,
        max_sessions: int,
        max_waiting: int,
        window: float,
        budget: Budget,
        on_failure: FailurePolicy = fail_all,
    ) -> None:
        self.stats = BatchingStats()
        self._engine = engine
        self._max_sessions = max_sessions
        self._max_waiting = max_waiting
        self._window = window
        self._budget = budget
        self._on_failure = on_failure
        self._one_step_at_a_time = trio.CapacityLimiter(1)
        self._ids = itertools.count(1)
        self._slots = Slots(max_sessions)
        self._shares = Shares()
        self._pace = Pace()
        self._sessions: dict[int, Session] = {}
        self._leaving: list[Session] = []
        self._step_in_flight = False
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
    def free_pages(self) -> int:
        """Pages in the pool, as of the last step boundary."""
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

        Leaving the block, in whatever way, is the cancellation: the rows leave the batch at the
        next step boundary and their pages return to the pool.

        Raises:
            ServerBusy: every slot is taken and the line is full.
            ServerStopping: the coalescer does not run (any more).
        """
        self.check_capacity()
        times = SessionTimes(opened=trio.current_time())
        await self._slots.acquire(user)
        session = Session(next(self._ids), sampling, self.info, self._ring, times, cache_salt, user)
        self._sessions[session.id] = session
        times.started = trio.current_time()
        try:
            if self._stopped:
                raise ServerStopping("the server is stopping")
            yield session
        finally:
            session.close()
            if self._step_in_flight:
                self._leaving.append(session)
            else:
                self._reclaim(session)

    # -- the task

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled. Sessions that are open then end with ``ServerStopping``.

        Raises whatever is a defect here; a failing engine is not one.
        """
        task_status.started()
        try:
            while True:
                await self._gather()
                plan = self._plan()
                if plan.rows:
                    await self._step(plan)
        finally:
            self.stop()

    def stop(self) -> None:
        """Take no more sessions, and end those that are open with ``ServerStopping``."""
        self._stopped = True
        for session in self._sessions.values():
            session.fail(ServerStopping("the server is stopping"))

    def _ring(self) -> None:
        with contextlib.suppress(trio.WouldBlock):
            self._bell.send_nowait(None)

    async def _gather(self) -> None:
        """Return when there is something to step: at once if busy, else after the window."""
        if self._runnable():
            return
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

    def _plan(self) -> Plan:
        self._open_newcomers()
        if not self._runnable():
            return Plan()  # the engine refused those that there were
        plan = plan_step(
            self._sessions.values(),
            self._engine.free_pages_without,
            self._budget,
            self._shares,
            self._pace,
        )
        if not plan.rows:
            # This must not be; it costs one session and not everybody's engine.
            oldest = min(
                (session for session in self._sessions.values() if session.runnable),
                key=lambda session: session.arrival,
            )
            _log.error("sessions wait and none of them can go on: %r is ended", oldest)
            oldest.fail(InternalError("the server could not go on with this request"))
        for session in plan.preempted:
            self._close_in_engine(session)
            session.preempted()
            self.stats.preemptions += 1
        for session, _ in plan.rows:
            session.state = SlotState.IN_FLIGHT
        return plan

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

    async def _step(self, plan: Plan) -> None:
        items = [item for _, item in plan.rows]
        self._step_in_flight = True
        try:
            try:
                result = await trio.to_thread.run_sync(
                    self._engine.eval_batch, items, limiter=self._one_step_at_a_time
                )
            finally:
                self._step_in_flight = False
        except Exception as error:
            self._step_failed(plan, error)
        else:
            self._hand_out(plan, result)
        finally:
            for session in self._leaving:
                self._reclaim(session)
            self._leaving.clear()

    def _hand_out(self, plan: Plan, result: StepResult) -> None:
        rows = len(plan.rows)
        for (session, item), outcome in zip(plan.rows, result.outcomes, strict=True):
            if isinstance(outcome, Refused):
                self._end_with(session, outcome.error)
                continue
            if session.state is SlotState.IN_FLIGHT:
                session.committed(len(item.tokens) or 1, outcome.sampled, rows)
            if session.state is SlotState.DONE:
                self._close_in_engine(session)
        self.stats.stepped(plan, result)
        self._pace.measured(plan.load, result.seconds)

    def _step_failed(self, plan: Plan, error: Exception) -> None:
        _log.error("a step of %d sessions failed", len(plan.rows), exc_info=error)
        self.stats.failed_steps += 1
        members = [session for session, _ in plan.rows]
        for session in members:
            self._close_in_engine(session)
        self._on_failure([s for s in members if s.state is SlotState.IN_FLIGHT], error)

    def _end_with(self, session: Session, error: WireError) -> None:
        session.fail(error)
        self._close_in_engine(session)

    def _close_in_engine(self, session: Session) -> None:
        if session.opened_in_engine:
            session.opened_in_engine = False
            session.evaluated = 0
            self._engine.close(session.id)

    def _reclaim(self, session: Session) -> None:
        self._close_in_engine(session)
        del self._sessions[session.id]
        self._slots.release()
        self._ring()  # one that gathers a batch must count the live sessions anew
