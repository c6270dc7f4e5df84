"""What users are charged for, and what comes of it, from the coalescer's own edge."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio

from ds4trio.batching.coalescer import Coalescer
from ds4trio.batching.schedule import Budget
from ds4trio.batching.session import Session
from ds4trio.batching.shares import QUANTUM, Shares
from ds4trio.engine.step import SamplingParams, StepItem
from tests.fake_engine import FakeEngine, expected


@pytest.fixture
def paid(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Tokens that each user was charged for, whether anybody waited or not."""
    counts: Counter[str] = Counter()
    charge = Shares.charge

    def counted(self: Shares, user: str, count: int) -> None:
        counts[user] += count
        charge(self, user, count)

    monkeypatch.setattr(Shares, "charge", counted)
    return counts


@asynccontextmanager
async def running(
    engine: FakeEngine, budget: Budget, *, speculate: bool = False
) -> AsyncIterator[Coalescer]:
    coalescer = Coalescer(
        engine, max_sessions=64, max_waiting=8, window=0, budget=budget, speculate=speculate
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(coalescer.run)
        yield coalescer
        nursery.cancel_scope.cancel()


async def read(session: Session) -> list[int]:
    tokens: list[int] = []
    while True:
        delivery = await session.receive()
        tokens += [sampled.token for sampled in delivery.tokens]
        if delivery.end is not None:
            return tokens


async def ask_all(coalescer: Coalescer, wanted: dict[str, tuple[list[int], int]]) -> None:
    """Every user asks at once, and gets what the model says."""

    async def ask(user: str, prompt: list[int], count: int) -> None:
        async with coalescer.session(SamplingParams(), user=user) as session:
            session.start(prompt, max_new_tokens=count, stop_tokens=frozenset())
            assert await read(session) == expected(prompt, count)

    with trio.fail_after(30):
        async with trio.open_nursery() as asking:
            for user, (prompt, count) in wanted.items():
                asking.start_soon(ask, user, prompt, count)


WANTED = {f"user {n}": ([n] * (3 + 5 * n), 30 + n) for n in range(4)}
EACH_TOKEN_ONCE = {user: len(prompt) + count - 1 for user, (prompt, count) in WANTED.items()}
"""The token drawn last is evaluated by nobody."""


async def test_a_guess_that_holds_costs_what_a_token_costs(paid: Counter[str]) -> None:
    async with running(FakeEngine(), Budget(64, 16, 64), speculate=True) as coalescer:
        await ask_all(coalescer, WANTED)
        assert coalescer.stats.accepted_tokens > 0
        assert coalescer.stats.draft_tokens > coalescer.stats.accepted_tokens
    assert paid == EACH_TOKEN_ONCE


@pytest.mark.parametrize("speculate", [False, True])
async def test_what_is_evaluated_anew_costs_nothing(paid: Counter[str], speculate: bool) -> None:
    """After failed steps, and after preemption."""
    engine = FakeEngine(pages=24, page_size=4)

    def fault(items: Sequence[StepItem]) -> Exception | None:
        fails = len(engine.batches) % 9 == 5 and len(items) > 1
        return RuntimeError("planted fault") if fails else None

    engine.fake.fault = fault
    async with running(engine, Budget(64, 16, 64), speculate=speculate) as coalescer:
        await ask_all(coalescer, WANTED)
        assert coalescer.stats.failed_steps > 1
        assert coalescer.stats.preemptions > 0
    assert paid == EACH_TOKEN_ONCE


async def test_what_was_cached_costs_nothing(paid: Counter[str]) -> None:
    async with running(FakeEngine(page_size=4), Budget(64, 16, 64)) as coalescer:
        await ask_all(coalescer, {"first": ([1] * 18, 5)})
        await ask_all(coalescer, {"second": ([1] * 18, 5)})
    assert paid == {"first": 18 + 4, "second": 2 + 4}


async def test_one_whose_steps_fail_does_not_lose_turns_by_it() -> None:
    """Two long prompts beside an answer. Steps with a part of the one keep failing."""
    engine = FakeEngine(page_size=16)
    unlucky, other, chunk, failures = 7, 8, 64, 0
    furthest: Counter[int] = Counter()
    leads: list[int] = []
    sessions: list[Session] = []

    def fault(items: Sequence[StepItem]) -> Exception | None:
        nonlocal failures
        for session in sessions:
            token = session.tokens[0]
            furthest[token] = max(furthest[token], session.evaluated)
        if failures < 10:
            leads.append(furthest[other] - furthest[unlucky])
        if failures < 10 and len(items) > 1 and any(unlucky in item.tokens for item in items):
            failures += 1
            return RuntimeError("planted fault")
        return None

    async def ask(coalescer: Coalescer, token: int) -> None:
        async with coalescer.session(SamplingParams(), user=f"{token}") as session:
            session.start([token] * 1500, max_new_tokens=1, stop_tokens=frozenset())
            sessions.append(session)
            await read(session)

    with trio.fail_after(60):
        async with (
            running(engine, Budget(chunk + 1, chunk, 64)) as coalescer,
            coalescer.session(SamplingParams()) as answer,
        ):
            answer.start([1], max_new_tokens=9000, stop_tokens=frozenset())
            await answer.receive()
            engine.fake.fault = fault
            async with trio.open_nursery() as beside:
                beside.start_soon(read, answer)
                async with trio.open_nursery() as asking:
                    asking.start_soon(ask, coalescer, unlucky)
                    asking.start_soon(ask, coalescer, other)
                beside.cancel_scope.cancel()
    assert failures == 10
    assert max(leads) <= QUANTUM + 2 * chunk
