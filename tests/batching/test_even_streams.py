"""Gaps and first tokens, on engines whose steps take as long as a model's would."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import median

import pytest
import trio
from trio.testing import MockClock

from ds4trio.batching.coalescer import Coalescer
from ds4trio.batching.schedule import Budget
from tests.batching.timed_engine import Client, TimedEngine

MODELS: dict[str, dict[str, float]] = {
    "cpu, int8": {"step_seconds": 0.020, "row": 0.002, "token": 0.0015},
    "cpu, float32": {"step_seconds": 0.040, "row": 0.0027, "token": 0.0024},
    "cpu, shared": {"step_seconds": 0.020, "row": 0.002, "token": 0.0015, "noise": 3.0},
    "gpu": {"step_seconds": 0.006, "row": 0.00002, "token": 0.00002},
}


@pytest.fixture
def patient_clock(autojump_clock: MockClock) -> MockClock:
    """Jumps after half a millisecond of idleness: at once would be a busy loop beside threads."""
    autojump_clock.autojump_threshold = 0.0005
    return autojump_clock


@asynccontextmanager
async def serving(engine: TimedEngine, *, chunk: int = 128) -> AsyncIterator[Coalescer]:
    coalescer = Coalescer(
        engine, max_sessions=64, max_waiting=99, window=0, budget=Budget(512, chunk, 64)
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(coalescer.run)
        yield coalescer
        engine.let_go()
        nursery.cancel_scope.cancel()


def p99(gaps: list[float]) -> float:
    return sorted(gaps)[int(0.99 * len(gaps))]


async def ask_together(
    coalescer: Coalescer, clients: list[Client], prompt: int, count: int
) -> None:
    async with trio.open_nursery() as nursery:
        for number, client in enumerate(clients):
            nursery.start_soon(client.ask, coalescer, prompt, count, f"user {number}")


@pytest.mark.parametrize("model", MODELS)
async def test_a_long_prompt_at_most_doubles_the_gaps_of_sixteen_streams(
    model: str, patient_clock: MockClock
) -> None:
    streams, late = [Client() for _ in range(16)], Client()
    async with serving(TimedEngine(**MODELS[model])) as coalescer, trio.open_nursery() as nursery:
        nursery.start_soon(ask_together, coalescer, streams, 64, 2000)
        for client in streams:
            await client.has_many.wait()
        began = trio.current_time()
        await late.ask(coalescer, 6000, 1, "late")
        nursery.cancel_scope.cancel()
    alone = max(client.arrivals[0] for client in streams)
    before = [gap for client in streams for gap in client.gaps_between(alone, began)]
    beside = [gap for client in streams for gap in client.gaps_between(began, late.arrivals[0])]
    assert len(beside) >= 16 * 6000 / 128
    assert p99(beside) <= 2 * p99(before)
    if model == "gpu":  # where prompt tokens are next to free, they are not held back
        assert len(beside) <= 16 * (6000 / 128 + 12)


async def test_many_prompts_at_once_are_as_fast_as_without_any_limit(
    patient_clock: MockClock,
) -> None:
    engine = TimedEngine()
    first, total = [], []
    async with serving(engine) as coalescer:
        for _ in range(2):  # cold, and when it has learnt
            clients = [Client() for _ in range(32)]
            began = trio.current_time()
            await ask_together(coalescer, clients, 64, 64)
            first.append(median(client.first for client in clients))
            total.append(trio.current_time() - began)
    # 32 prompts in 4 full steps and 12 of 128 tokens, then rows of 32: what a fixed chunk takes
    tokens, rows = 32 * 64 * engine.timed.token, 32 * 63 * engine.timed.row
    least = tokens + rows + 63 * engine.timed.step_seconds
    assert max(total) <= 1.15 * (least + 13 * engine.timed.step_seconds)
    assert max(first) <= 2.2


async def test_one_user_with_many_long_prompts_does_not_make_another_wait(
    patient_clock: MockClock,
) -> None:
    engine = TimedEngine()
    flood, one = [Client() for _ in range(30)], Client(many=1)
    async with serving(engine) as coalescer, trio.open_nursery() as nursery:
        for client in flood:
            nursery.start_soon(client.ask, coalescer, 3000, 50, "flood")
        first = Client()
        await first.ask(coalescer, 64, 1, "first")
        steps = len(engine.steps)
        await one.ask(coalescer, 64, 1, "another")
        assert len(engine.steps) - steps <= 8
        nursery.cancel_scope.cancel()
