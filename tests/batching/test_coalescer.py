"""The coalescer on Trio's own terms: virtual time, a fake engine, no sleeping."""

from __future__ import annotations

import math
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ds4trio.batching.coalescer import Coalescer
from ds4trio.batching.failure import FailurePolicy, fail_all, recover
from ds4trio.batching.schedule import Budget
from ds4trio.batching.session import MAX_UNREAD, Session
from ds4trio.batching.slot_state import SlotState
from ds4trio.engine.step import Opening, Ran, SamplingParams, Step, StepItem
from ds4trio.errors import (
    BatchFailed,
    ContextLengthExceeded,
    EngineDied,
    EngineLost,
    GrammarFailed,
    InternalError,
    ServerBusy,
    ServerStopping,
    TokenOutOfVocabulary,
)
from tests.fake_engine import FakeEngine, MortalEngine, expected, next_token

SAMPLING = SamplingParams()


@asynccontextmanager
async def running(
    engine: FakeEngine,
    *,
    window: float = 0.0,
    max_sessions: int = 64,
    max_waiting: int = 8,
    budget: Budget | None = None,
    on_failure: FailurePolicy = recover,
    step_timeout: float = math.inf,
) -> AsyncIterator[Coalescer]:
    coalescer = Coalescer(
        engine,
        max_sessions=max_sessions,
        max_waiting=max_waiting,
        window=window,
        budget=budget or Budget(step_tokens=512, prefill_chunk=128, sessions=max_sessions),
        on_failure=on_failure,
        step_timeout=step_timeout,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(coalescer.run)
        yield coalescer
        nursery.cancel_scope.cancel()


async def collect(session: Session) -> list[int]:
    tokens: list[int] = []
    while True:
        delivery = await session.receive()
        tokens.extend(sampled.token for sampled in delivery.tokens)
        if delivery.end is not None:
            return tokens


async def answer(
    coalescer: Coalescer, prompt: Sequence[int], count: int, into: list[int] | None = None
) -> list[int]:
    async with coalescer.session(SAMPLING) as session:
        session.start(prompt, max_new_tokens=count, stop_tokens=frozenset())
        tokens = await collect(session)
    if into is not None:
        into.extend(tokens)
    return tokens


async def assert_everything_returned(coalescer: Coalescer, engine: FakeEngine) -> None:
    await answer(coalescer, [1], 1)  # a step that was in flight is over when this one is
    assert coalescer.sessions == 0
    assert coalescer.waiting == 0
    assert not engine.sequences
    assert coalescer.free_pages == engine.info.total_pages


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


# -- failure


async def members_of_a_failed_step(
    coalescer: Coalescer, engine: FakeEngine
) -> list[tuple[list[int], int]]:
    """Eight at once, with a fault planted: the tokens and the number of errors that each got."""
    engine.gate.clear()
    outcomes: list[tuple[list[int], int]] = []

    async def member(index: int) -> None:
        got: list[int] = []
        errors = 0
        async with coalescer.session(SAMPLING) as session:
            session.start([index], max_new_tokens=20, stop_tokens=frozenset())
            try:
                got += await collect(session)
            except BatchFailed:
                errors += 1
        outcomes.append((got, errors))

    async with trio.open_nursery() as nursery:
        for index in range(8):
            nursery.start_soon(member, index)
        await wait_all_tasks_blocked()
        engine.gate.set()
    return outcomes


async def test_a_failed_step_fails_its_members_and_nobody_else() -> None:
    engine = FakeEngine()
    engine.fake.fail_at = 5
    async with running(engine, on_failure=fail_all, window=0.01) as coalescer:
        outcomes = await members_of_a_failed_step(coalescer, engine)
        assert [errors for _, errors in outcomes] == [1] * 8
        assert len(engine.batches) == 5, "the one prepared after it must not run"
        assert coalescer.stats.failed_steps == 1
        await assert_everything_returned(coalescer, engine)
        assert await answer(coalescer, [42], 5) == expected([42], 5)


async def test_a_failed_step_is_made_good() -> None:
    engine = FakeEngine()
    engine.fake.fail_at = 5
    async with running(engine) as coalescer:
        outcomes = await members_of_a_failed_step(coalescer, engine)
        assert sorted(outcomes) == sorted((expected([index], 20), 0) for index in range(8))
        assert coalescer.stats.failed_steps == 1
        assert coalescer.stats.retries == 8
        await assert_everything_returned(coalescer, engine)


@pytest.mark.parametrize("place", [0, 3, 11])
async def test_the_culprit_ends_alone_and_the_others_go_on(place: int) -> None:
    """It fails whatever step it is in, once it has drawn so many tokens."""
    engine = FakeEngine()
    culprit = 6
    drawn: dict[int, int] = {}

    def speak(opening: Opening, tokens: Sequence[int]) -> int:
        drawn[opening.sequence] = len(tokens)
        return next_token(tokens)

    def fault(items: Sequence[StepItem]) -> Exception | None:
        guilty = any(item.sequence == culprit and drawn.get(culprit, 0) >= place for item in items)
        return RuntimeError("the culprit was here") if guilty else None

    engine.fake.speak, engine.fake.fault = speak, fault
    async with running(engine) as coalescer:
        outcomes = await members_of_a_failed_step(coalescer, engine)
        assert sorted(errors for _, errors in outcomes) == [0] * 7 + [1]
        texts = [expected([index], 20) for index in range(8)]
        assert all(got in texts for got, errors in outcomes if not errors)
        assert all(got in [text[: len(got)] for text in texts] for got, _ in outcomes)
        assert coalescer.stats.failed_steps == 2
        await assert_everything_returned(coalescer, engine)


async def test_an_engine_that_always_fails_ends_everybody_soon() -> None:
    engine = FakeEngine()
    engine.fake.fault = lambda items: RuntimeError("broken") if items else None
    async with running(engine) as coalescer:
        outcomes = await members_of_a_failed_step(coalescer, engine)
        assert outcomes == [([], 1)] * 8
        assert len(engine.batches) <= 16
        engine.fake.fault = lambda items: None
        await assert_everything_returned(coalescer, engine)


async def test_bystanders_keep_what_the_engine_has_of_them() -> None:
    """Who was not in the failed step is not evaluated anew."""
    engine = FakeEngine()
    async with running(engine) as coalescer, coalescer.session(SAMPLING) as bystander:
        first = await bystander.eval([1, 2, 3])
        engine.fake.fail_at = len(engine.batches) + 2
        assert await answer(coalescer, [7], 9) == expected([7], 9)
        assert coalescer.stats.failed_steps == 1
        second = await bystander.eval()
        assert [first.token, second.token] == expected([1, 2, 3], 2)
        assert engine.batches[-1] == (StepItem(bystander.id),)


async def test_when_the_engine_dies_everybody_is_evaluated_anew() -> None:
    engine = FakeEngine()
    async with running(engine) as coalescer, coalescer.session(SAMPLING) as bystander:
        first = await bystander.eval([1, 2, 3])
        dies = len(engine.batches) + 3
        engine.fake.fault = lambda _: EngineDied("killed") if len(engine.batches) == dies else None
        outcomes = await members_of_a_failed_step(coalescer, engine)
        assert sorted(outcomes) == sorted((expected([index], 20), 0) for index in range(8))
        second = await bystander.eval()
        assert [first.token, second.token] == expected([1, 2, 3], 2)
        assert engine.batches[-1] == (StepItem(bystander.id, (1, 2, 3, first.token)),)


class Killer:
    """Kills the engine with steps that hold one sequence.

    Args:
        left: how often, by how many tokens the sequence must have.
    """

    def __init__(self, engine: FakeEngine, sequence: int, left: dict[int, int]) -> None:
        self.left = left
        self._sequence, self._length = sequence, 0
        engine.fake.speak, engine.fake.fault = self._speak, self._fault

    def _speak(self, opening: Opening, tokens: Sequence[int]) -> int:
        if opening.sequence == self._sequence:
            self._length = len(tokens)
        return next_token(tokens)

    def _fault(self, items: Sequence[StepItem]) -> Exception | None:
        for place, left in self.left.items():
            here = self._length >= place and any(item.sequence == self._sequence for item in items)
            if here and left:
                self.left[place] -= 1
                return EngineDied("killed")
        return None


@pytest.mark.parametrize("places", [(0,), (7,), (5, 20, 40)])
async def test_who_kills_the_engine_three_times_in_a_row_ends_no_lone_stream(
    places: tuple[int, ...],
) -> None:
    """From outside, that is: the first death, and two of the request by itself; and again once the
    request has got beyond that place."""
    engine = FakeEngine()
    Killer(engine, sequence=1, left=dict.fromkeys(places, 3))
    async with running(engine) as coalescer:
        assert await answer(coalescer, [42], 60) == expected([42], 60)
        assert coalescer.stats.failed_steps == 3 * len(places)
        await assert_everything_returned(coalescer, engine)


async def test_a_request_that_always_kills_the_engine_ends_alone_after_four_deaths() -> None:
    engine = FakeEngine()
    killer = Killer(engine, sequence=3, left={4: 1000})
    async with running(engine) as coalescer:
        outcomes = await members_of_a_failed_step(coalescer, engine)
        assert sorted(errors for _, errors in outcomes) == [0] * 7 + [1]
        assert killer.left == {4: 1000 - 4}
        assert coalescer.stats.failed_steps == 4
        await assert_everything_returned(coalescer, engine)


async def test_an_engine_that_dies_idle_is_started_again_before_anybody_asks() -> None:
    """What rests loses nothing, and is not suspected."""
    engine = MortalEngine()
    async with running(engine) as coalescer, coalescer.session(SAMPLING) as resting:
        first = await resting.eval([1, 2, 3])
        for _ in range(2):
            engine.mortal.die()
            with trio.fail_after(5):
                await trio.to_thread.run_sync(engine.mortal.wait_for_start, abandon_on_cancel=True)
        assert coalescer.stats.failed_steps == coalescer.stats.retries == 0
        assert resting.suspect_until is None
        second = await resting.eval()
        assert [first.token, second.token] == expected([1, 2, 3], 2)
        assert await answer(coalescer, [42], 5) == expected([42], 5)


async def test_a_step_that_hangs_is_ended_and_made_good() -> None:
    engine = MortalEngine()
    async with running(engine, step_timeout=0.05) as coalescer:
        engine.gate.clear()  # only its death opens it
        with trio.fail_after(5):
            assert await answer(coalescer, [42], 20) == expected([42], 20)
        assert engine.mortal.starts == 1
        assert coalescer.stats.failed_steps == 1


async def test_an_engine_that_cannot_be_ended_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, asked = FakeEngine(), trio.Event()
    interrupt = engine.interrupt

    def interrupted() -> bool:
        asked.set()
        return interrupt()

    monkeypatch.setattr(engine, "interrupt", interrupted)
    async with running(engine, step_timeout=0.01) as coalescer:
        engine.gate.clear()
        async with trio.open_nursery() as nursery:
            tokens: list[int] = []
            nursery.start_soon(answer, coalescer, [42], 3, tokens)
            with trio.fail_after(5):
                await asked.wait()
            engine.gate.set()
        assert tokens == expected([42], 3)
        assert coalescer.stats.failed_steps == 0


async def test_a_step_that_never_reaches_the_engine_is_made_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There may be no thread for it. The one after it does not wait for its turn forever."""
    engine = FakeEngine()
    run, tried = engine.run, 0

    def without_thread(step: Step) -> Ran:
        nonlocal tried
        tried += 1
        if tried == 5:
            raise RuntimeError("can't start new thread")
        return run(step)

    monkeypatch.setattr(engine, "run", without_thread)
    async with running(engine) as coalescer:
        outcomes = await members_of_a_failed_step(coalescer, engine)
        assert sorted(outcomes) == sorted((expected([index], 20), 0) for index in range(8))
        await assert_everything_returned(coalescer, engine)


async def test_an_engine_that_is_lost_ends_the_coalescer() -> None:
    engine = FakeEngine()
    coalescer = Coalescer(
        engine, max_sessions=4, max_waiting=5, window=0, budget=Budget(512, 128, 4)
    )
    engine.fake.fault = lambda _: EngineLost("gone")

    async def be_told() -> None:
        with pytest.raises(ServerStopping):
            await answer(coalescer, [1], 3)

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(coalescer.run)
            nursery.start_soon(be_told)

    with pytest.raises(ExceptionGroup) as caught:
        await run()
    assert caught.group_contains(EngineLost)


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


# -- limits


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
