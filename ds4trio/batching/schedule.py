"""Which rows make the next step: decode rows first, then chunks of prompts, within a budget.

Whose prompt is next is a matter of fairness between users (``shares.py``), and how much of it
beside decode rows one of even streams (``pace.py``). Memory goes by age: the older session has the
right of way. When pages run out, sessions at rest give theirs up, then the newest ones, and are
evaluated anew later (preemption by recompute). What the oldest has evaluated is therefore never
lost, its turn comes again and again, and so everyone ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from ds4trio.batching.pace import SHORT, Allowance, Load, Pace, Waiting
from ds4trio.batching.session import Session
from ds4trio.batching.shares import Shares, Turns
from ds4trio.batching.slot_state import SlotState
from ds4trio.engine.step import StepItem

__all__ = ["Budget", "Plan", "plan_step"]


@dataclass(frozen=True, slots=True)
class Budget:
    """How much one step may hold.

    Attributes:
        step_tokens: tokens in a step.
        prefill_chunk: prompt tokens in a step that also carries decode rows, at most; ``Pace`` may
            allow fewer.
        sessions: sessions in a step; 1 evaluates one after another (``--no-batching``).
        guess_rows: rows that a step with guesses may have, these included. A fuller step has none:
            its rows are no longer nearly free.
    """

    step_tokens: int
    prefill_chunk: int
    sessions: int
    guess_rows: int = 8


@dataclass(slots=True)
class Plan:
    """The next step, and who has to make room for it."""

    rows: list[tuple[Session, StepItem]] = field(default_factory=list)
    preempted: list[Session] = field(default_factory=list)
    load: Load = field(default_factory=lambda: Load(0))


FreePages = Callable[[Collection[int]], int]
"""Pages that would be free if these sequences were closed."""


def plan_step(
    sessions: Iterable[Session],
    free_pages: FreePages,
    budget: Budget,
    shares: Shares,
    pace: Pace,
    *,
    alone: Session | None = None,
) -> Plan:
    """Choose the rows of the next step. Reads the sessions and changes none of them.

    Only sessions that are open in the engine take part. If the oldest runnable one does, the plan
    has at least one row. Users who wait are made known to ``shares``.

    Args:
        alone: no other takes part, and all others make room for this one.
    """
    by_age = sorted(sessions, key=lambda session: session.arrival)
    if alone is not None:
        rest = _Room(by_age, free_pages, alone)
        plan = Plan(preempted=rest.preempted)
        _place(alone, min(alone.waiting, budget.step_tokens), plan, rest)
        plan.load = _load(plan)
        return plan
    runnable = [session for session in by_age if session.runnable and session.opened_in_engine]
    room = _Room(by_age, free_pages)
    plan = Plan(preempted=room.preempted)
    shares.wait({s.user for s in by_age if s.runnable and s.state is SlotState.PREFILLING})
    if budget.sessions == 1:
        for session in sorted(runnable, key=lambda session: session.times.last_step):
            count = min(session.waiting, budget.step_tokens)
            if session.state is SlotState.PENDING:
                count += room.guesses(session, _guesses_each([session], budget))
            if _place(session, count, plan, room):
                break
    else:
        each = _guesses_each(runnable, budget)
        for session in runnable:
            if session.state is SlotState.PENDING and len(plan.rows) < budget.sessions:
                _place(session, 1 + room.guesses(session, each, len(runnable) - 1), plan, room)
        turns = Turns(shares, (s for s in runnable if s.state is SlotState.PREFILLING))
        _add_prompts(plan, turns, room, budget, _allowance(plan, turns, budget, pace))
    plan.load = _load(plan)
    return plan


def _allowance(plan: Plan, turns: Turns, budget: Budget, pace: Pace) -> Allowance:
    decoding = len(plan.rows)
    left = budget.step_tokens - sum(item.most for _, item in plan.rows)
    if not decoding:
        return Allowance(left)
    first = turns.first
    waiting = Waiting(
        users=len(first),
        short_users=sum(map(_is_short, first)),
        decoding_users=len({session.user for session, _ in plan.rows}),
    )
    return pace.allowance(decoding, waiting, most=min(left, budget.prefill_chunk))


def _is_short(session: Session) -> bool:
    return len(session.tokens) - session.reused <= SHORT


def _add_prompts(
    plan: Plan, turns: Turns, room: _Room, budget: Budget, allowance: Allowance
) -> None:
    """Add chunks in the order of ``turns`` while there is room.

    One that has to wait for pages lets those go on that are older, and nobody else: the younger
    would take the room that it waits for.
    """
    oldest_blocked: float = math.inf
    while len(plan.rows) < budget.sessions and (session := turns.next()) is not None:
        if session.arrival > oldest_blocked:
            continue
        short = _is_short(session)
        count = allowance.fits(session.waiting, session.scheduled, short=short)
        if count <= 0:
            break
        # A beginner without room for all of it would soon have to give its pages back.
        fits = session.begun or not plan.rows or room.has_spare(session, len(plan.rows))
        if fits and _place(session, count, plan, room):
            allowance.spend(count, session.scheduled, short=short)
            turns.took(session, count)
        else:
            oldest_blocked = session.arrival


def _load(plan: Plan) -> Load:
    chunks = [
        (len(item.tokens), session.scheduled)
        for session, item in plan.rows
        if session.state is SlotState.PREFILLING
    ]
    tokens = sum(count for count, _ in chunks)
    places = sum(count * (first + count / 2) for count, first in chunks)
    decoding = sum(i.most for s, i in plan.rows if s.state is not SlotState.PREFILLING)
    return Load(decoding, tokens, places / tokens if tokens else 0.0)


def _guesses_each(runnable: Sequence[Session], budget: Budget) -> int:
    """How many guesses each decode row may carry; none beside a prompt."""
    if not runnable or any(session.state is SlotState.PREFILLING for session in runnable):
        return 0
    rows = min(budget.guess_rows, budget.step_tokens)
    return max(rows // len(runnable) - 1, 0)


def _place(session: Session, count: int, plan: Plan, room: _Room) -> bool:
    if session in room.preempted or not room.make(session, count):
        return False
    plan.rows = [row for row in plan.rows if row[0] not in room.preempted]
    plan.rows.append((session, session.item(count)))
    return True


class _Room:
    """The free pages as the plan grows, and the sessions that gave theirs up for it."""

    def __init__(
        self, by_age: list[Session], free_pages: FreePages, alone: Session | None = None
    ) -> None:
        self.preempted: list[Session] = []
        self._free_pages = free_pages
        self._taken: dict[int, int] = {}
        holders = [s for s in by_age if s.opened_in_engine and s is not alone]
        self._at_rest = [s for s in holders if alone is not None or not s.runnable]
        self._running = [s for s in holders if alone is None and s.runnable]

    def make(self, session: Session, count: int) -> bool:
        """Take the pages for ``count`` more tokens, from other sessions if need be, or none."""
        needed = session.pages_for_next(count)
        if not needed:
            return True
        gone = list(self.preempted)
        if needed > self._free(gone):
            younger = [o for o in reversed(self._running) if o.arrival > session.arrival]
            victims = [*reversed(self._at_rest), *younger]
            if needed > self._free(gone + victims):
                return False
            low, high = 1, len(victims)  # free pages only grow with each victim
            while low < high:
                middle = (low + high) // 2
                if needed <= self._free(gone + victims[:middle]):
                    high = middle
                else:
                    low = middle + 1
            gone += victims[:low]
        for victim in gone[len(self.preempted) :]:
            (self._running if victim in self._running else self._at_rest).remove(victim)
            self.preempted.append(victim)
        self._taken[session.id] = needed
        return True

    def guesses(self, session: Session, most: int, others: int = 0) -> int:
        """Those that the session's next row may carry, if there is room for them and a page for
        each of the other rows besides: nobody gives any up."""
        count = min(session.guesses, most)
        needed = session.pages_for_next(1 + count)
        if not count or not needed:
            return count
        return count if needed + others <= self._free(self.preempted) else 0

    def has_spare(self, session: Session, decoding: int) -> bool:
        """All of its prompt fits, and a page for each session that decodes besides."""
        needed = session.pages_for_next(session.waiting + 1)
        return needed + decoding <= self._free(self.preempted)

    def _free(self, gone: list[Session]) -> int:
        """Free pages when these are gone, less what the plan has given to others."""
        closed = {session.id for session in gone}
        taken = sum(pages for holder, pages in self._taken.items() if holder not in closed)
        return self._free_pages(closed) - taken
