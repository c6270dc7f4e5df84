"""The plan of a step, for cases that are hard to bring about from outside."""

from __future__ import annotations

from collections.abc import Callable, Collection

from ds4trio.batching.schedule import Budget, plan_step
from ds4trio.batching.session import Session, SessionTimes, SlotState
from ds4trio.engine.step import EngineInfo, SamplingParams

INFO = EngineInfo(97, 1000, 4, 30, "nowhere", "none")


def session(number: int, *, tokens: int, evaluated: int, last_step: float = 0.0) -> Session:
    made = Session(number, SamplingParams(), INFO, lambda: None, SessionTimes(0.0))
    made.times.last_step = last_step
    made.tokens = [1] * tokens
    made.evaluated = evaluated
    made.opened_in_engine = True
    decoding = tokens - evaluated == 1
    made.state = SlotState.PENDING if decoding else SlotState.PREFILLING
    made.last_is_drawn = made.last_is_on_device = decoding
    return made


def free(pages: int, *holders: Session) -> Callable[[Collection[int]], int]:
    """Free pages, and what these would give back; nobody shares any."""
    held = {holder.id: INFO.pages_for(holder.evaluated) for holder in holders}
    return lambda closed: pages + sum(held[number] for number in closed)


def test_pages_are_taken_from_nobody_when_they_would_not_suffice() -> None:
    old = session(1, tokens=96, evaluated=95)
    half_prefilled = session(2, tokens=60, evaluated=20)
    young = session(3, tokens=3, evaluated=2)
    plan = plan_step(
        [old, half_prefilled, young], free(0, half_prefilled, young), Budget(512, 16, 8)
    )
    assert [member.id for member, _ in plan.rows] == [1, 3]
    assert plan.preempted == []


def test_a_row_that_has_to_go_gives_back_what_it_took_in_this_plan() -> None:
    old = session(1, tokens=110, evaluated=96)
    young = session(2, tokens=21, evaluated=20)
    plan = plan_step([old, young], free(1, young), Budget(512, 16, 8))
    assert [member.id for member, _ in plan.rows] == [1]
    assert plan.preempted == [young]


def test_without_batching_one_that_must_wait_lets_another_go_on() -> None:
    old = session(1, tokens=96, evaluated=95, last_step=9.0)
    young = session(2, tokens=21, evaluated=20, last_step=1.0)
    plan = plan_step([old, young], free(0, young), Budget(512, 16, 1))
    assert [member.id for member, _ in plan.rows] == [1]


def test_for_one_that_goes_alone_everybody_makes_room() -> None:
    old = session(1, tokens=96, evaluated=95)
    suspect = session(2, tokens=60, evaluated=0)
    plan = plan_step([old, suspect], free(6, old), Budget(512, 16, 8), alone=suspect)
    assert [(member.id, len(item.tokens)) for member, item in plan.rows] == [(2, 60)]
    assert plan.preempted == [old]


def test_guesses_take_the_room_that_there_is_and_nobodys() -> None:
    members = [session(number, tokens=20, evaluated=19) for number in (1, 2, 3)]
    for member in members:
        member.draft = 3
        member._remaining = 100
    members[2]._remaining = 2
    plan = plan_step(members, free(1, *members), Budget(512, 16, 8, guess_rows=12))
    assert [item.draft for _, item in plan.rows] == [3, 0, 0]
    plan = plan_step(members, free(9, *members), Budget(512, 16, 8, guess_rows=12))
    assert [item.draft for _, item in plan.rows] == [3, 3, 1]
    assert plan.preempted == []


def test_guesses_share_the_rows_of_a_small_step_and_a_larger_one_has_none() -> None:
    def drafts(members: list[Session], budget: Budget) -> list[int]:
        plan = plan_step(members, free(100, *members), budget)
        return [item.draft for _, item in plan.rows]

    def decoding(number: int) -> Session:
        made = session(number, tokens=20, evaluated=19)
        made.draft, made._remaining = 7, 100
        return made

    users = [decoding(number) for number in range(9)]
    budget = Budget(512, 16, 64, guess_rows=8)
    assert drafts(users[:1], budget) == [7]
    assert drafts(users[:2], budget) == [3, 3]
    assert drafts(users[:3], budget) == [1, 1, 1]
    assert drafts(users[:4], budget) == [1] * 4
    assert drafts(users[:5], budget) == [0] * 5
    assert drafts(users, budget) == [0] * 9
    assert drafts([users[0], session(10, tokens=30, evaluated=0)], budget) == [0, 0]
    assert drafts(users[:1], Budget(4, 16, 64)) == [3]
    assert drafts(users[:3], Budget(512, 16, 1)) == [7]  # one after another
