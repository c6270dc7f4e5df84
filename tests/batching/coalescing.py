"""A coalescer that runs, and what tests of it ask of its sessions."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio

from ds4trio.batching.coalescer import Coalescer
from ds4trio.batching.failure import FailurePolicy, recover
from ds4trio.batching.schedule import Budget
from ds4trio.batching.session import Session
from ds4trio.engine.step import SamplingParams
from tests.fake_engine import FakeEngine

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
