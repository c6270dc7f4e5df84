"""The plan of a step, for cases that are hard to bring about from outside."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from hypothesis import given, settings
from hypothesis import strategies as st

from ds4trio.batching.pace import Load, Pace
from ds4trio.batching.schedule import Budget, plan_step
from ds4trio.batching.session import Session, SessionTimes
from ds4trio.batching.shares import QUANTUM, Shares
from ds4trio.batching.slot_state import SlotState
from ds4trio.engine.step import EngineInfo, SamplingParams

INFO = EngineInfo(97, 1000, 4, 30, "nowhere", "none")


def session(
    number: int, *, tokens: int, evaluated: int = 0, last_step: float = 0.0, user: str = ""
) -> Session:
    made = Session(number, INFO, SamplingParams(), lambda: None, SessionTimes(0.0), user=user)
    made.times.last_step = last_step
    made.tokens = [1] * tokens
    made.evaluated = made.scheduled = evaluated
    made.opened_in_engine = True
    decoding = tokens - evaluated == 1
    made.state = SlotState.PENDING if decoding else SlotState.PREFILLING
    made.last_is_drawn = made.last_is_on_device = decoding
    return made


def free(pages: int, *holders: Session) -> Callable[[Collection[int]], int]:
    """Free pages, and what these would give back; nobody shares any."""
    held = {holder.id: INFO.pages_for(holder.evaluated) for holder in holders}
    return lambda closed: pages + sum(held[number] for number in closed)


def looked() -> Pace:
    """A pace that has just looked at a step without prompts, and limits nothing yet."""
    pace = Pace()
    pace.measured(Load(1), math.nan)
    return pace


def test_pages_are_taken_from_nobody_when_they_would_not_suffice() -> None:
    old = session(1, tokens=96, evaluated=95)
    half_prefilled = session(2, tokens=60, evaluated=20)
    young = session(3, tokens=3, evaluated=2)
    plan = plan_step(
        [old, half_prefilled, young],
        free(0, half_prefilled, young),
        Budget(512, 16, 8),
        Shares(),
        Pace(),
    )
    assert [member.id for member, _ in plan.rows] == [1, 3]
    assert plan.preempted == []


def test_a_row_that_has_to_go_gives_back_what_it_took_in_this_plan() -> None:
    old = session(1, tokens=110, evaluated=96)
    young = session(2, tokens=21, evaluated=20)
    plan = plan_step([old, young], free(1, young), Budget(512, 16, 8), Shares(), looked())
    assert [member.id for member, _ in plan.rows] == [1]
    assert plan.preempted == [young]


def test_without_batching_one_that_must_wait_lets_another_go_on() -> None:
    old = session(1, tokens=96, evaluated=95, last_step=9.0)
    young = session(2, tokens=21, evaluated=20, last_step=1.0)
    plan = plan_step([old, young], free(0, young), Budget(512, 16, 1), Shares(), looked())
    assert [member.id for member, _ in plan.rows] == [1]


def step(sessions: list[Session], shares: Shares, budget: Budget) -> list[tuple[int, int]]:
    """Plan a step and commit it; the ids and sizes of its prompt chunks, in order."""
    plan = plan_step(sessions, free(10_000), budget, shares, looked())
    for member, item in plan.rows:
        member.evaluated += len(item.tokens)
        member.scheduled = member.evaluated
        shares.charge(member.user, len(item.tokens) or 1)
        if not member.waiting:
            member.state = SlotState.FREE
    return [(item.sequence, len(item.tokens)) for _, item in plan.rows if item.tokens]


def test_a_short_prompt_is_next_however_many_long_ones_another_user_has() -> None:
    decoder = session(1, tokens=9, evaluated=8, user="decoder")
    flood = [session(number, tokens=900, user="flood") for number in range(2, 32)]
    short = session(40, tokens=50, user="other")
    budget, shares = Budget(512, 64, 64), Shares()
    assert [step([decoder, *flood], shares, budget) for _ in range(10)] == [[(2, 64)]] * 10
    later = [step([decoder, *flood, short], shares, budget) for _ in range(QUANTUM // 64 + 2)]
    assert any((40, 50) in chunks for chunks in later)


def test_prompts_that_come_together_are_finished_one_after_another() -> None:
    decoder = session(1, tokens=9, evaluated=8, user="decoder")
    together = [session(number, tokens=64, user=f"{number}") for number in range(2, 6)]
    shares = Shares()
    chunks = [step([decoder, *together], shares, Budget(512, 32, 64)) for _ in range(8)]
    assert chunks == [[(number, 32)] for number in range(2, 6) for _ in range(2)]


@settings(deadline=None)
@given(
    prompts=st.lists(
        st.tuples(st.sampled_from("abcd"), st.integers(2, 900), st.integers(0, 20)),
        min_size=1,
        max_size=25,
    ),
    step_tokens=st.integers(20, 600),
    chunk=st.integers(16, 300),
    decoders=st.integers(0, 3),
)
def test_no_step_is_wasted_and_users_who_wait_are_served_alike(
    prompts: list[tuple[str, int, int]], step_tokens: int, chunk: int, decoders: int
) -> None:
    budget, shares = Budget(step_tokens, chunk, 64), Shares()
    most = min(chunk, step_tokens - decoders) if decoders else step_tokens
    sessions = [session(n, tokens=9, evaluated=8, user=f"{n}") for n in range(decoders)]
    to_come = [
        (when, session(100 + number, tokens=tokens, user=user))
        for number, (user, tokens, when) in enumerate(prompts)
    ]
    had = dict.fromkeys("abcd", 0)
    since: dict[str, dict[str, int]] = {}
    number = 0
    while to_come or any(member.state is SlotState.PREFILLING for member in sessions):
        sessions += [member for when, member in to_come if when <= number]
        to_come = [(when, member) for when, member in to_come if when > number]
        waiting = [member for member in sessions if member.state is SlotState.PREFILLING]
        users = {member.user for member in waiting}
        since = {user: since.get(user, dict(had)) for user in users}
        left = sum(member.waiting for member in waiting)
        chunks = step(sessions, shares, budget)
        owners = {member.id: member.user for member in waiting}
        assert sum(count for _, count in chunks) == min(most, left)
        for owner, count in chunks:
            had[owners[owner]] += count
        for user in users:  # nobody who came later has had much more since one began to wait
            for other in users:
                began = max(since[user], since[other], key=lambda then: sum(then.values()))
                ahead = (had[other] - began[other]) - (had[user] - began[user])
                assert ahead <= len(users) * (QUANTUM + most)
        number += 1


def test_users_who_are_new_each_time_do_not_keep_another_from_its_turn() -> None:
    """An endless line of strangers, each with little to ask, and one that is in debt."""
    shares, old = Shares(), session(1, tokens=900, user="old")
    shares.wait({"old", "another"})
    shares.charge("old", 800)
    sessions, order = [old], []
    for number in range(100, 200):
        sessions.append(session(number, tokens=64, user=f"stranger {number}"))
        order += step(sessions, shares, Budget(64, 64, 64))
    assert 1 in [member for member, _ in order]


def test_idling_earns_nothing_and_debts_end_when_nobody_waits() -> None:
    shares = Shares()
    shares.wait({"busy"})
    shares.charge("busy", 5000)
    shares.wait({"busy", "idler"})
    assert shares.had("idler") == shares.had("busy") == 5000
    shares.charge("busy", 100)
    shares.wait({"idler"})
    shares.wait({"busy", "idler"})
    assert shares.had("busy") == 5100, "leaving the line for a moment forgives nothing"
    shares.wait(())
    shares.wait({"busy", "idler"})
    assert shares.had("idler") == shares.had("busy") == 0


def test_one_that_waits_for_pages_lets_older_ones_go_on_and_no_younger() -> None:
    decoder = session(1, tokens=9, evaluated=8, user="d")
    begun = session(2, tokens=30, evaluated=20, user="a")
    blocked = session(3, tokens=60, user="b")
    younger = session(4, tokens=3, user="c")
    shares = Shares()
    shares.wait({"a", "b", "c"})
    shares.charge("a", 2 * QUANTUM)  # so that the turns are: blocked, younger, begun
    everyone = [decoder, begun, blocked, younger]
    plan = plan_step(everyone, free(9, begun), Budget(512, 64, 8), shares, looked())
    assert [row.id for row, _ in plan.rows] == [1, 2]


def test_for_one_that_goes_alone_everybody_makes_room() -> None:
    old = session(1, tokens=96, evaluated=95)
    suspect = session(2, tokens=60, evaluated=0)
    plan = plan_step(
        [old, suspect], free(6, old), Budget(512, 16, 8), Shares(), looked(), alone=suspect
    )
    assert [(member.id, len(item.tokens)) for member, item in plan.rows] == [(2, 60)]
    assert plan.preempted == [old]


def test_guesses_take_the_room_that_there_is_and_nobodys() -> None:
    members = [session(number, tokens=20, evaluated=19) for number in (1, 2, 3)]
    for member in members:
        member.draft = 3
        member._remaining = 100
    members[2]._remaining = 2
    budget = Budget(512, 16, 8, guess_rows=12)
    plan = plan_step(members, free(2, *members), budget, Shares(), looked())
    assert [item.draft for _, item in plan.rows] == [0, 0, 0], "others may need a page for certain"
    plan = plan_step(members, free(3, *members), budget, Shares(), looked())
    assert [item.draft for _, item in plan.rows] == [3, 0, 0]
    plan = plan_step(members, free(9, *members), budget, Shares(), looked())
    assert [item.draft for _, item in plan.rows] == [3, 3, 1]
    assert plan.preempted == []


def test_guesses_share_the_rows_of_a_small_step_and_a_larger_one_has_none() -> None:
    def drafts(members: list[Session], budget: Budget) -> list[int]:
        plan = plan_step(members, free(100, *members), budget, Shares(), looked())
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
