"""The coalescer on Trio's own terms: virtual time, a fake engine, no sleeping."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ds4trio.batching.schedule import Budget
from ds4trio.batching.slot_state import SlotState
from ds4trio.engine.step import SamplingParams, StepItem
from ds4trio.errors import (
    ContextLengthExceeded,
    InternalError,
    TokenOutOfVocabulary,
)
from tests.batching.coalescing import SAMPLING, answer, assert_everything_returned, collect, running
from tests.fake_engine import FakeEngine, expected

# -- the window


async def test_a_lone_request_does_not_wait(autojump_clock: MockClock) -> None:
    engine = FakeEngine()
    async with running(engine, window=10.0) as coalescer:
        began = trio.current_time()
        assert await answer(coalescer, [1, 2, 3], 5) == expected([1, 2, 3], 5)
        assert trio.current_time() == began


async def test_stragglers_within_the_window_join_and_it_closes_early(
    autojump_clock: MockClock,
) -> None:
    engine = FakeEngine()
    async with running(engine, window=10.0) as coalescer:
        began = trio.current_time()

        async def straggler(delay: float) -> None:
            async with coalescer.session(SAMPLING) as session:
                await trio.sleep(delay)
                await session.eval([1])
                assert trio.current_time() == began + 3.0

        async with trio.open_nursery() as nursery:
            for delay in (0.0, 1.0, 3.0):
                nursery.start_soon(straggler, delay)
        assert len(engine.batches[0]) == 3
        assert len(engine.batches) == 1


async def test_the_window_ends_for_those_who_did_submit(autojump_clock: MockClock) -> None:
    engine = FakeEngine()
    async with running(engine, window=2.0) as coalescer, coalescer.session(SAMPLING) as silent:
        began = trio.current_time()
        async with coalescer.session(SAMPLING) as session:
            await session.eval([1])
        assert trio.current_time() == began + 2.0
        assert [len(batch) for batch in engine.batches] == [1]
        await silent.eval([2])


async def test_the_window_closes_when_the_one_waited_for_leaves(
    autojump_clock: MockClock,
) -> None:
    engine = FakeEngine()
    async with running(engine, window=10.0) as coalescer, trio.open_nursery() as nursery:

        async def leaver() -> None:
            async with coalescer.session(SAMPLING):
                await trio.sleep(1.0)

        nursery.start_soon(leaver)
        await wait_all_tasks_blocked()
        began = trio.current_time()
        await answer(coalescer, [1], 1)
        assert trio.current_time() == began + 1.0


async def test_a_submission_withdrawn_within_the_window_is_no_step(
    autojump_clock: MockClock,
) -> None:
    engine = FakeEngine()
    async with running(engine, window=10.0) as coalescer, coalescer.session(SAMPLING) as other:
        with trio.move_on_after(1.0):
            await answer(coalescer, [1], 1)
        assert engine.batches == []
        await other.eval([2])
        assert len(engine.batches) == 1


# -- batches


async def test_sessions_that_decode_stay_in_the_batch() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    results: list[list[int]] = [[] for _ in range(8)]
    async with running(engine) as coalescer, trio.open_nursery() as nursery:
        for index, into in enumerate(results):
            nursery.start_soon(answer, coalescer, [index, 1], 10, into)
        await wait_all_tasks_blocked()
        engine.gate.set()
    assert results == [expected([index, 1], 10) for index in range(8)]
    # the token drawn last is evaluated inside the engine: decode rows carry none
    assert all(item.tokens == () for batch in engine.batches[2:] for item in batch)
    assert max(len(batch) for batch in engine.batches) == 8


async def test_long_prompts_come_in_chunks_and_decoders_come_first() -> None:
    engine = FakeEngine()
    budget = Budget(step_tokens=64, prefill_chunk=8, sessions=64)
    long_prompt = [token % 12 for token in range(100)]
    async with running(engine, budget=budget) as coalescer:
        async with coalescer.session(SAMPLING) as decoder:
            decoder.start([1, 2], max_new_tokens=10_000, stop_tokens=frozenset())
            await decoder.receive()
            assert await answer(coalescer, long_prompt, 3) == expected(long_prompt, 3)
    sizes = [len(item.tokens) for batch in engine.batches for item in batch if item.tokens]
    assert sum(sizes) == 102
    assert max(sizes) <= 8
    assert all(batch[0].tokens == () for batch in engine.batches[1:])


async def test_no_batching_takes_turns() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    budget = Budget(step_tokens=512, prefill_chunk=128, sessions=1)
    results: list[list[int]] = [[] for _ in range(3)]
    async with running(engine, budget=budget) as coalescer, trio.open_nursery() as nursery:
        for index, into in enumerate(results):
            nursery.start_soon(answer, coalescer, [index], 20, into)
        await wait_all_tasks_blocked()
        engine.gate.set()
    assert results == [expected([index], 20) for index in range(3)]
    assert {len(batch) for batch in engine.batches} == {1}
    turns = [batch[0].sequence for batch in engine.batches]
    assert len(set(turns[1:4])) == 3, "one that waits must not be passed over"


async def test_eval_continues_from_the_drawn_token_or_replaces_it() -> None:
    engine = FakeEngine()
    async with running(engine) as coalescer, coalescer.session(SAMPLING) as session:
        first = await session.eval([1, 2])
        second = await session.eval()
        assert [first.token, second.token] == expected([1, 2], 2)
        replaced = await session.eval([5])
        assert [replaced.token] == expected([1, 2, first.token, 5], 1)


async def test_stop_tokens_end_an_answer_and_are_not_delivered() -> None:
    engine = FakeEngine()
    tokens = expected([1], 6)
    assert tokens[5] not in tokens[:5]
    async with running(engine) as coalescer, coalescer.session(SAMPLING) as session:
        session.start([1], max_new_tokens=100, stop_tokens=frozenset({tokens[5]}))
        assert await collect(session) == tokens[:5]
        assert (await session.receive()).end == "stop"
        await wait_all_tasks_blocked()
        assert not engine.sequences, "pages return at the end, not when the client has read"


# -- leaving


async def test_a_leaver_frees_its_pages_at_once_and_spoils_nobodys() -> None:
    """The step that still writes to them is over before anybody else's reads them."""
    engine = FakeEngine(pages=8, page_size=4)
    async with running(engine) as coalescer:
        engine.gate.clear()
        with trio.CancelScope() as scope:
            async with coalescer.session(SAMPLING) as leaver:
                leaver.start([1] * 24, max_new_tokens=10_000, stop_tokens=frozenset())
                await trio.to_thread.run_sync(engine.in_step.wait, 5)
                await wait_all_tasks_blocked()
                scope.cancel()
                await trio.sleep_forever()
        assert engine.in_step.is_set()
        assert coalescer.sessions == 0
        assert coalescer.free_pages == 8
        heirs: list[list[int]] = [[], []]
        async with trio.open_nursery() as nursery:
            for number, tokens in enumerate(heirs):
                nursery.start_soon(answer, coalescer, [number] * 9, 6, tokens)
            await wait_all_tasks_blocked()
            engine.gate.set()
        assert heirs == [expected([number] * 9, 6) for number in range(2)]
        await assert_everything_returned(coalescer, engine)


async def test_two_hundred_arrivals_and_aborts_leave_nothing_behind() -> None:
    engine = FakeEngine()
    async with running(engine, max_sessions=4, max_waiting=1000) as coalescer:
        bystander: list[int] = []

        async def abort(index: int) -> None:
            with trio.CancelScope() as scope:
                async with coalescer.session(SAMPLING) as session:
                    session.start([index % 12] * 9, max_new_tokens=9999, stop_tokens=frozenset())
                    for _ in range(index % 3):
                        await session.receive()
                    scope.cancel()
                    await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer, coalescer, [1], 100, bystander)
            for index in range(200):
                nursery.start_soon(abort, index)
        assert bystander == expected([1], 100)
        await assert_everything_returned(coalescer, engine)


# -- two steps deep


async def test_the_next_step_waits_at_the_engine_while_one_runs() -> None:
    """The end of a prompt, and the first draw after it."""
    engine = FakeEngine()
    async with running(engine, budget=Budget(2, 2, 8)) as coalescer:
        engine.gate.clear()
        async with coalescer.session(SAMPLING) as session:
            session.start([1, 2, 3, 4], max_new_tokens=3, stop_tokens=frozenset())
            await trio.to_thread.run_sync(engine.in_step.wait, 5)
            await wait_all_tasks_blocked()
            assert [item.tokens for item in session.in_flight] == [(1, 2)]

            def pause(items: Sequence[StepItem]) -> None:
                if items[0].tokens == (3, 4):
                    engine.gate.clear()
                    begun.set()
                    engine.gate.wait(5)

            begun = threading.Event()
            engine.fake.fault = pause
            engine.gate.set()
            await trio.to_thread.run_sync(begun.wait, 5)
            await wait_all_tasks_blocked()
            assert [item.tokens for item in session.in_flight] == [(3, 4), ()]
            assert session.state is SlotState.PENDING
            engine.gate.set()
            assert await collect(session) == expected([1, 2, 3, 4], 3)
    assert [len(batch) for batch in engine.batches] == [1, 1, 1, 1], "and no step too many"


async def test_who_comes_during_the_first_step_is_in_the_second() -> None:
    engine = FakeEngine()
    async with running(engine) as coalescer, trio.open_nursery() as nursery:
        await answer(coalescer, [5], 4)  # it knows now what a step costs that only decodes
        before = len(engine.batches)
        engine.gate.clear()
        nursery.start_soon(answer, coalescer, [1, 2], 9)
        await trio.to_thread.run_sync(engine.in_step.wait, 5)
        nursery.start_soon(answer, coalescer, [3, 4], 9)
        await wait_all_tasks_blocked()
        engine.gate.set()
    assert [len(batch) for batch in engine.batches[before : before + 3]] == [1, 2, 2]


async def test_without_batching_it_is_one_step_at_a_time() -> None:
    engine = FakeEngine()
    async with running(engine, budget=Budget(512, 128, 1)) as coalescer:
        engine.gate.clear()
        async with coalescer.session(SAMPLING) as session:
            session.start([1, 2], max_new_tokens=3, stop_tokens=frozenset())
            await trio.to_thread.run_sync(engine.in_step.wait, 5)
            await wait_all_tasks_blocked()
            assert len(session.in_flight) == 1
            engine.gate.set()
            assert await collect(session) == expected([1, 2], 3)


async def test_what_comes_after_a_stop_is_thrown_away_and_not_counted() -> None:
    engine = FakeEngine()
    tokens = expected([1], 6)
    async with running(engine) as coalescer, coalescer.session(SAMPLING) as session:
        session.start([1], max_new_tokens=100, stop_tokens=frozenset({tokens[5]}))
        assert await collect(session) == tokens[:5]
        await wait_all_tasks_blocked(0.01)
        assert len(engine.batches) == 7
        assert coalescer.stats.sampled_tokens == 6


async def test_a_guess_is_as_good_as_a_step() -> None:
    """Several tokens a step: none too many, and none after a stop."""
    engine = FakeEngine()
    tokens = expected([1, 2], 40)
    stop = next(n for n in range(20, 40) if tokens[n] not in tokens[:n])
    async with running(engine) as coalescer:
        for limit in (1, 2, 3, 17, 40):
            async with coalescer.session(SAMPLING) as session:
                session.draft = 3
                session.start([1, 2], max_new_tokens=limit, stop_tokens=frozenset())
                assert await collect(session) == tokens[:limit]
        steps = len(engine.batches)
        async with coalescer.session(SAMPLING) as session:
            session.draft = 3
            session.start([1, 2], max_new_tokens=40, stop_tokens=frozenset({tokens[stop]}))
            assert await collect(session) == tokens[:stop]
        assert len(engine.batches) - steps < stop
        await assert_everything_returned(coalescer, engine)


async def test_a_refused_item_fails_alone() -> None:
    engine = FakeEngine()
    engine.refused_token = 13
    async with running(engine) as coalescer, trio.open_nursery() as nursery:
        good: list[int] = []
        nursery.start_soon(answer, coalescer, [1], 30, good)
        with pytest.raises(InternalError, match="unlucky"):
            await answer(coalescer, [13], 3)
    assert good == expected([1], 30)


async def test_a_session_that_the_engine_will_not_open_fails_alone() -> None:
    engine = FakeEngine()
    async with running(engine) as coalescer, trio.open_nursery() as nursery:
        good: list[int] = []
        nursery.start_soon(answer, coalescer, [1], 30, good)
        async with coalescer.session(SamplingParams(logit_bias={97: 1.0})) as refused:
            refused.start([2], max_new_tokens=3, stop_tokens=frozenset())
            with pytest.raises(TokenOutOfVocabulary):
                await refused.receive()
    assert good == expected([1], 30)


async def test_what_cannot_be_evaluated_is_refused_at_once() -> None:
    engine = FakeEngine(pages=4, page_size=4, context_length=100)
    async with running(engine) as coalescer, coalescer.session(SAMPLING) as session:
        with pytest.raises(ContextLengthExceeded, match=r"16 tokens.*16 tokens"):
            await session.eval([1] * 16)
        for token in (-1, 97):
            with pytest.raises(TokenOutOfVocabulary, match="97"):
                await session.eval([token])
        with pytest.raises(ValueError, match="no token"):
            await session.eval()
        assert engine.batches == []
        await session.eval([1] * 15)


async def test_the_end_of_the_context_ends_the_answer() -> None:
    engine = FakeEngine(context_length=10)
    async with running(engine) as coalescer:
        assert await answer(coalescer, [1] * 6, 100) == expected([1] * 6, 4)
