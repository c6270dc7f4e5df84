"""When there is no room: a full line, slow readers, few pages, the end."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ds4trio.batching.coalescer import Coalescer
from ds4trio.batching.schedule import Budget
from ds4trio.batching.session import MAX_UNREAD
from ds4trio.engine.step import SamplingParams
from ds4trio.errors import (
    GrammarFailed,
    ServerBusy,
    ServerStopping,
    TokenOutOfVocabulary,
)
from tests.batching.coalescing import SAMPLING, answer, assert_everything_returned, collect, running
from tests.fake_engine import FakeEngine, expected


async def test_a_full_line_is_refused_with_a_time_to_come_back() -> None:
    engine = FakeEngine()
    async with running(engine, max_sessions=1, max_waiting=1) as coalescer:
        async with coalescer.session(SAMPLING), trio.open_nursery() as nursery:
            waited: list[int] = []
            nursery.start_soon(answer, coalescer, [1], 2, waited)
            await wait_all_tasks_blocked()
            with pytest.raises(ServerBusy) as caught:
                await answer(coalescer, [2], 2)
            assert caught.value.retry_after == 1
            nursery.cancel_scope.cancel()
        assert await answer(coalescer, [3], 2) == expected([3], 2)
        await assert_everything_returned(coalescer, engine)


async def test_a_reader_that_is_slow_rests_and_loses_nothing() -> None:
    engine = FakeEngine()
    async with running(engine) as coalescer, coalescer.session(SAMPLING) as slow:
        count = MAX_UNREAD + 50
        slow.start([1], max_new_tokens=count, stop_tokens=frozenset())
        await wait_all_tasks_blocked(0.01)
        steps = len(engine.batches)
        assert steps == MAX_UNREAD
        assert await answer(coalescer, [2], 20) == expected([2], 20)
        assert all(len(batch) == 1 for batch in engine.batches[steps:])
        assert await collect(slow) == expected([1], count)


async def test_with_few_pages_everyone_finishes_with_the_same_tokens() -> None:
    engine = FakeEngine(pages=12, page_size=4)
    results: list[list[int]] = [[] for _ in range(10)]
    async with running(engine) as coalescer:
        async with trio.open_nursery() as nursery:
            for index, into in enumerate(results):
                nursery.start_soon(answer, coalescer, [index] * (3 + index), 30, into)
        assert coalescer.stats.preemptions > 0
        await assert_everything_returned(coalescer, engine)
    assert results == [expected([index] * (3 + index), 30) for index in range(10)]


async def test_one_at_rest_gives_its_pages_up_and_comes_back() -> None:
    engine = FakeEngine(pages=5, page_size=4)
    async with running(engine) as coalescer, coalescer.session(SAMPLING) as resting:
        first = await resting.eval([1] * 12)
        assert await answer(coalescer, [2] * 10, 9) == expected([2] * 10, 9)
        assert coalescer.stats.preemptions == 1
        second = await resting.eval()
        assert [first.token, second.token] == expected([1] * 12, 2)


async def test_when_it_stops_every_session_is_told() -> None:
    engine = FakeEngine()
    coalescer = Coalescer(
        engine, max_sessions=1, max_waiting=5, window=0, budget=Budget(512, 128, 1)
    )

    async def told() -> None:
        with pytest.raises(ServerStopping):
            async with coalescer.session(SAMPLING) as session:
                await session.receive()

    async with trio.open_nursery() as nursery, trio.open_nursery() as inner:
        await inner.start(coalescer.run)
        nursery.start_soon(told)
        nursery.start_soon(told)  # waits for the slot
        await wait_all_tasks_blocked()
        inner.cancel_scope.cancel()
    with pytest.raises(ServerStopping):
        coalescer.check_capacity()


async def test_the_oldest_being_refused_lets_the_next_one_go_on() -> None:
    engine = FakeEngine(pages=10, page_size=4)
    async with (
        running(engine) as coalescer,
        coalescer.session(SamplingParams(logit_bias={1000: 1.0})) as refused,
    ):
        async with coalescer.session(SAMPLING) as second, coalescer.session(SAMPLING) as third:
            first = await second.eval([1] * 20)
            await third.eval([2] * 24)
            assert second.was_preempted
            got: list[int] = []

            async def be_refused() -> None:
                with pytest.raises(TokenOutOfVocabulary):
                    await refused.eval([5])

            async def go_on() -> None:
                got.append((await second.eval()).token)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(be_refused)
                nursery.start_soon(go_on)
            assert [first.token, *got] == expected([1] * 20, 2)


async def test_newcomers_do_not_overtake_one_that_was_preempted() -> None:
    engine = FakeEngine(pages=200, page_size=4)
    served_before_it = 0

    async def reach(step: int) -> None:
        while len(engine.batches) < step:
            await trio.lowlevel.checkpoint()

    async with running(engine) as coalescer, trio.open_nursery() as nursery:
        nursery.start_soon(answer, coalescer, [1], 500)  # the oldest; it grows for a long time
        await reach(1)
        nursery.start_soon(answer, coalescer, [4] * 240, 60)
        await reach(3)
        async with coalescer.session(SAMPLING) as session:
            session.start([2] * 500, max_new_tokens=40, stop_tokens=frozenset())
            await reach(24)

            async def newcomers(number: int) -> None:
                nonlocal served_before_it
                for turn in range(100):
                    await answer(coalescer, [10 + number, turn] + [3] * 98, 20)
                    served_before_it += 1

            for number in range(5):
                nursery.start_soon(newcomers, number)
            assert await collect(session) == expected([2] * 500, 40)
            assert session.was_preempted
        assert served_before_it <= 5
        nursery.cancel_scope.cancel()


async def test_cached_tokens_are_those_that_were_not_evaluated() -> None:
    engine = FakeEngine(pages=100, page_size=4)
    async with running(engine) as coalescer:
        await answer(coalescer, [1] * 18, 3)
        async with coalescer.session(SAMPLING) as session:
            session.start([1] * 18, max_new_tokens=3, stop_tokens=frozenset())
            assert await collect(session) == expected([1] * 18, 3)
            assert session.reused_at_first == 16
        assert coalescer.stats.cached_tokens == 16
        async with coalescer.session(SAMPLING, cache_salt="other") as session:
            session.start([1] * 18, max_new_tokens=3, stop_tokens=frozenset())
            await collect(session)
            assert session.reused_at_first == 0


async def test_of_many_with_the_same_beginning_those_that_waited_evaluate_only_the_rest() -> None:
    engine = FakeEngine(pages=400, page_size=4)
    prompts = [[1] * 40 + [number] for number in range(12)]
    answers: list[list[int]] = [[] for _ in prompts]
    budget = Budget(step_tokens=100, prefill_chunk=100, sessions=64)
    async with running(engine, budget=budget) as coalescer:
        async with trio.open_nursery() as nursery:
            for prompt, into in zip(prompts, answers, strict=True):
                nursery.start_soon(answer, coalescer, prompt, 3, into)
        assert answers == [expected(prompt, 3) for prompt in prompts]
        # Two steps of 100 tokens are on their way before the first has shown anything.
        assert coalescer.stats.cached_tokens >= 6 * 40
        await assert_everything_returned(coalescer, engine)


@pytest.mark.parametrize("sessions", [8, 1])
async def test_guesses_that_did_not_hold_cost_nobody_the_last_pages(sessions: int) -> None:
    """Each prompt alone, until the pool is full: pages taken for guesses are still its own."""
    for first in range(12):
        engine = FakeEngine(pages=10, page_size=4)
        coalescer = Coalescer(
            engine,
            max_sessions=8,
            max_waiting=8,
            window=0,
            budget=Budget(64, 16, sessions),
            speculate=True,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(coalescer.run)
            prompt = [first, 2, 3, 4, 5]
            assert await answer(coalescer, prompt, 100) == expected(prompt, 35)
            nursery.cancel_scope.cancel()


async def test_an_answer_whose_grammar_fails_ends_alone() -> None:
    engine = FakeEngine()
    told: list[int] = []
    async with running(engine) as coalescer:
        coalescer.prepare_grammar("start: ...")
        assert engine.fake.prepared == ["start: ..."]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer, coalescer, [1, 2], 20, told)
            async with coalescer.session(SAMPLING) as session:
                session.start([3, 4], max_new_tokens=20, stop_tokens=frozenset())
                await session.receive()
                engine.fake.faults[session.id] = "it has become too complex"
                with pytest.raises(GrammarFailed, match="too complex"):
                    await collect(session)
        assert told == expected([1, 2], 20)
        engine.fake.faults.clear()
        await assert_everything_returned(coalescer, engine)
