"""The sessions that hold a slot, and which of them are open in the engine."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ds4trio.batching.failure import FailurePolicy
from ds4trio.batching.session import Session
from ds4trio.batching.stats import BatchingStats
from ds4trio.engine.interface import EngineLike
from ds4trio.errors import EngineDied, EngineLost, WireError

__all__ = ["Roster"]


class Roster:
    """Keeps the engine's sequences and the sessions in step: what one forgets the other does too.

    Args:
        engine: where sessions are opened and closed.
        stats: counts what was cached, preemptions and retries.
    """

    def __init__(self, engine: EngineLike, stats: BatchingStats) -> None:
        self._engine = engine
        self._stats = stats
        self._sessions: dict[int, Session] = {}

    @property
    def sessions(self) -> Collection[Session]:
        """All of them, whatever they do."""
        return self._sessions.values()

    @property
    def runnable(self) -> list[Session]:
        """Those that have something for the next step, oldest first."""
        return sorted(
            (session for session in self.sessions if session.runnable),
            key=lambda session: session.arrival,
        )

    @property
    def suspect(self) -> Session | None:
        """The oldest of those that must go by themselves until they are beyond the place of a
        failure."""
        return next((s for s in self.runnable if s.suspect_until is not None), None)

    def add(self, session: Session) -> None:
        """It has got a slot."""
        self._sessions[session.id] = session

    def remove(self, session: Session) -> None:
        """It gives its slot back, and its pages."""
        self.close(session)
        del self._sessions[session.id]

    def open(self, session: Session) -> None:
        """Make it known to the engine, with what is cached of its beginning; one that the engine
        refuses ends alone."""
        try:
            self._engine.open(
                session.id,
                session.sampling,
                cache_salt=session.cache_salt,
                adapter=session.adapter,
            )
        except WireError as error:
            session.fail(error)
            return
        session.opened(self._reuse(session))

    def _reuse(self, session: Session) -> int:
        before = session.reused
        count = self._engine.reuse(session.id, session.tokens)
        if count > before and not session.was_preempted:
            self._stats.cached_tokens += count - before
        return count

    def open_newcomers(self) -> None:
        """Open the runnable sessions, so that they hold what is cached of their beginnings. Those
        that wait look again: who came before them may have evaluated the same.

        One that was preempted waits until there is room for all of it, lest it give its pages up
        again at once; the oldest never waits.
        """
        waiting = self.runnable
        oldest_stands = False
        for session in waiting:
            if session.opened_in_engine:
                oldest_stands = True
                if not session.begun and (reused := self._reuse(session)) > session.reused:
                    session.opened(reused)
                continue
            needed = self._engine.info.pages_for(len(session.tokens) + 1) + len(waiting)
            if not session.was_preempted or not oldest_stands or needed <= self._engine.free_pages:
                self.open(session)
                oldest_stands = oldest_stands or session.opened_in_engine
            else:
                break  # those behind it would take the room that it waits for

    def preempt(self, session: Session) -> None:
        """Take its pages for others. It will be evaluated anew."""
        self._engine.close(session.id)
        session.preempted()
        self._stats.preemptions += 1

    def end_with(self, session: Session, error: WireError) -> None:
        """It cannot go on; its task is told."""
        session.fail(error)
        self.close(session)

    def close(self, session: Session) -> None:
        """Have the engine forget it, if it knows it."""
        if session.opened_in_engine:
            self._engine.close(session.id)
            session.forgotten()

    def undo(self, members: Sequence[Session], error: Exception, policy: FailurePolicy) -> None:
        """A step of these sessions has failed. It is abandoned, and so are those after it.

        Args:
            policy: what becomes of the members. All others go on from what the engine has of them,
                or are evaluated anew if its process died.
        """
        for session in members:
            self._engine.close(session.id)
        policy(members, error)
        self._stats.retries += sum(not session.ended for session in members)
        for session in members:
            session.forgotten()
        bystanders = [session for session in self.sessions if session.opened_in_engine]
        for session in bystanders:
            if isinstance(error, EngineDied | EngineLost):
                self._engine.close(session.id)
                session.preempted()
            else:
                session.rolled_back()
