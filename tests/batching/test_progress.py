"""How far a prompt is, told to a reader who wants to know."""

from __future__ import annotations

from trio.testing import MockClock, wait_all_tasks_blocked

from ds4trio.batching.mailbox import Delivery, Progress
from ds4trio.batching.schedule import Budget
from ds4trio.batching.session import Session
from tests.batching.coalescing import SAMPLING, running
from tests.fake_engine import FakeEngine, expected

IN_THREES = Budget(step_tokens=3, prefill_chunk=3, sessions=1)
PROMPT = list(range(10))


def begin(session: Session, *, progress: bool = True) -> None:
    session.start(PROMPT, max_new_tokens=2, stop_tokens=frozenset(), progress=progress)


async def deliveries(session: Session) -> list[Delivery]:
    seen = [await session.receive()]
    while seen[-1].end is None:
        seen.append(await session.receive())
    return seen


async def test_each_piece_of_a_prompt_is_told_of(autojump_clock: MockClock) -> None:
    async with running(FakeEngine(), budget=IN_THREES) as coalescer:
        async with coalescer.session(SAMPLING) as session:
            begin(session)
            seen = await deliveries(session)
    told = [delivery.progress for delivery in seen if delivery.progress]
    assert told == [Progress(n, 0) for n in (3, 6, 9, 10)]
    assert all(delivery.progress is None for delivery in seen[4:])
    assert [s.token for delivery in seen for s in delivery.tokens] == expected(PROMPT, 2)


async def test_nothing_is_told_unasked(autojump_clock: MockClock) -> None:
    async with running(FakeEngine(), budget=IN_THREES) as coalescer:
        async with coalescer.session(SAMPLING) as session:
            begin(session, progress=False)
            assert all(one.progress is None and one.tokens for one in await deliveries(session))


async def test_what_the_cache_holds_is_evaluated_already(autojump_clock: MockClock) -> None:
    async with running(FakeEngine(), budget=IN_THREES) as coalescer:
        for cached in (0, 8):  # whole pages of four
            async with coalescer.session(SAMPLING) as session:
                begin(session)
                first = (await session.receive()).progress
                assert first == Progress(min(cached + 3, 10), cached)
                await deliveries(session)


async def test_a_slow_reader_gets_the_latest_and_the_tokens_with_it(
    autojump_clock: MockClock,
) -> None:
    async with running(FakeEngine(), budget=IN_THREES) as coalescer:
        async with coalescer.session(SAMPLING) as session:
            begin(session)
            while not session.ended:
                await wait_all_tasks_blocked()
            (all_at_once,) = await deliveries(session)
    assert all_at_once.progress == Progress(10, 0)
    assert [s.token for s in all_at_once.tokens] == expected(PROMPT, 2)


async def test_a_prompt_that_is_evaluated_anew_is_never_told_to_go_back(
    autojump_clock: MockClock,
) -> None:
    engine = FakeEngine()
    engine.fake.fail_at = 3
    async with running(engine, budget=IN_THREES) as coalescer:
        async with coalescer.session(SAMPLING) as session:
            begin(session)
            seen = await deliveries(session)
    told = [delivery.progress.evaluated for delivery in seen if delivery.progress]
    assert told == sorted(set(told))
    assert told[-1] == len(PROMPT)
