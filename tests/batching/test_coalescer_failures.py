"""Steps that fail, and engines that die, hang or are lost: who pays for it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ds4trio.batching.coalescer import Coalescer
from ds4trio.batching.failure import fail_all
from ds4trio.batching.schedule import Budget
from ds4trio.engine.step import Opening, Ran, Step, StepItem
from ds4trio.errors import (
    BatchFailed,
    EngineDied,
    EngineLost,
    ServerStopping,
)
from tests.batching.coalescing import SAMPLING, answer, assert_everything_returned, collect, running
from tests.fake_engine import FakeEngine, MortalEngine, expected, next_token


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
