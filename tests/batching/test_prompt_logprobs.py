"""Each token of a prompt is told of once, whatever happens to the session meanwhile."""

from __future__ import annotations

import pytest
import trio

from ds4trio.batching.coalescer import Coalescer
from ds4trio.batching.schedule import Budget
from ds4trio.batching.session import MAX_UNREAD
from ds4trio.engine.step import SampledToken, SamplingParams
from tests.api.helpers import until
from tests.fake_engine import FakeEngine, MortalEngine, expected, prompt_logprob

PROMPTS = [[(i * 7 + n * 3) % 97 for n in range(20 + i)] for i in range(8)]


def wanted(prompt: list[int]) -> list[SampledToken]:
    return [
        SampledToken(token, prompt_logprob(prompt[:place], token))
        for place, token in enumerate(prompt)
        if place
    ]


async def told(
    coalescer: Coalescer, prompt: list[int], count: int = 12
) -> tuple[list[SampledToken], list[int]]:
    """What comes of the prompt, all of it before the first token of the answer; and the answer."""
    before: list[SampledToken] = []
    answer: list[int] = []
    wish = SamplingParams(temperature=0.0, prompt_logprobs=0, prompt_length=len(prompt))
    async with coalescer.session(wish) as session:
        session.start(prompt, max_new_tokens=count, stop_tokens=frozenset())
        end = None
        while end is None:
            delivery = await session.receive()
            assert not (delivery.prompt and answer)
            before += delivery.prompt
            answer += [token.token for token in delivery.tokens]
            end = delivery.end
    return before, answer


def make(engine: FakeEngine, budget: Budget) -> Coalescer:
    return Coalescer(engine, max_sessions=16, max_waiting=16, window=0, budget=budget)


async def check(engine: FakeEngine, budget: Budget, count: int = 12) -> Coalescer:
    coalescer = make(engine, budget)
    found: dict[int, tuple[list[SampledToken], list[int]]] = {}

    async def ask(number: int) -> None:
        found[number] = await told(coalescer, PROMPTS[number], count)

    async with trio.open_nursery() as nursery:
        await nursery.start(coalescer.run)
        async with trio.open_nursery() as asking:
            for number in range(len(PROMPTS)):
                asking.start_soon(ask, number)
        nursery.cancel_scope.cancel()
    for number, prompt in enumerate(PROMPTS):
        assert found[number] == (wanted(prompt), expected(prompt, count))
    return coalescer


@pytest.mark.parametrize("chunk", [1, 3, 7, 64])
async def test_in_pieces(chunk: int) -> None:
    await check(FakeEngine(), Budget(64, chunk, 16))


async def test_when_pages_are_taken() -> None:
    coalescer = await check(FakeEngine(pages=40), Budget(64, 5, 16), 80)
    assert coalescer.stats.preemptions


@pytest.mark.parametrize("step", [1, 2, 3, 5])
async def test_when_a_step_fails(step: int) -> None:
    engine = FakeEngine()
    engine.fake.fail_at = step
    coalescer = await check(engine, Budget(64, 8, 16))
    assert coalescer.stats.failed_steps == 1


async def test_when_the_process_dies() -> None:
    engine = MortalEngine()
    steps = 0

    def dies(items: object) -> None:
        nonlocal steps
        steps += 1
        if steps == 4:
            engine.mortal.die()

    engine.fake.fault = dies
    await check(engine, Budget(64, 8, 16))
    assert engine.mortal.starts == 1


async def test_one_that_nobody_reads_rests() -> None:
    engine = FakeEngine()
    coalescer = make(engine, Budget(64, 64, 16))
    prompt = [n % 97 for n in range(3 * MAX_UNREAD)]
    wish = SamplingParams(temperature=0.0, prompt_logprobs=0, prompt_length=len(prompt))
    async with trio.open_nursery() as nursery:
        await nursery.start(coalescer.run)
        async with coalescer.session(wish) as session:
            session.start(prompt, max_new_tokens=1, stop_tokens=frozenset())
            await until(lambda: session.full and not session.in_flight)
            assert session.evaluated < MAX_UNREAD + 3 * 64
        assert (await told(coalescer, prompt, 1))[0] == wanted(prompt)
        nursery.cancel_scope.cancel()
