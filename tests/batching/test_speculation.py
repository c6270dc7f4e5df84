"""Guesses from the coalescer down to a real model's logits: the same answers in fewer steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio

from ds4trio.batching.coalescer import Coalescer
from ds4trio.batching.schedule import Budget
from ds4trio.engine.engine import Engine
from ds4trio.engine.step import SampledToken, SamplingParams
from tests.engine.builders import Pair, make_engine, make_pair, prompts

FEW = dict.fromkeys(range(5, 9), 50.0)
"""A bias to so few tokens that an answer soon repeats itself, though not always."""

WISHES = (
    SamplingParams(temperature=0.0, logit_bias=FEW, logprobs=True),
    SamplingParams(temperature=0.3, seed=1, logit_bias=FEW, logprobs=True, top_logprobs=2),
    SamplingParams(temperature=0.3, seed=2, logit_bias=FEW, frequency_penalty=0.05, logprobs=True),
    SamplingParams(temperature=1.0, seed=3, logprobs=True),
)

Answer = tuple[list[SampledToken], str | None]


@pytest.fixture(scope="module")
def pair() -> Pair:
    return make_pair()


async def answers(
    engine: Engine,
    wanted: list[tuple[list[int], SamplingParams, int, frozenset[int]]],
    *,
    speculate: bool,
    sessions: int = 64,
) -> tuple[list[Answer], Coalescer]:
    """What each gets when all ask at once."""
    coalescer = Coalescer(
        engine,
        max_sessions=64,
        max_waiting=8,
        window=0,
        budget=Budget(64, 16, sessions),
        speculate=speculate,
    )
    got: dict[int, Answer] = {}

    async def ask(index: int) -> None:
        prompt, sampling, count, stops = wanted[index]
        tokens: list[SampledToken] = []
        async with coalescer.session(replace(sampling, prompt_length=len(prompt))) as session:
            session.start(prompt, max_new_tokens=count, stop_tokens=stops)
            while True:
                delivery = await session.receive()
                tokens.extend(delivery.tokens)
                if delivery.end is not None:
                    got[index] = tokens, delivery.end
                    return

    with trio.fail_after(60):
        async with trio.open_nursery() as running:
            await running.start(coalescer.run)
            async with trio.open_nursery() as asking:
                for index in range(len(wanted)):
                    asking.start_soon(ask, index)
            running.cancel_scope.cancel()
    assert engine.free_pages == engine.info.total_pages
    return [got[index] for index in range(len(wanted))], coalescer


@pytest.mark.parametrize("sessions", [1, 64])
async def test_one_user_gets_the_same_in_fewer_steps(pair: Pair, sessions: int) -> None:
    for wish in WISHES:
        wanted = [([5, 6, 7, 8, 5], wish, 150, frozenset[int]())]
        plain, without = await answers(
            make_engine(pair), wanted, speculate=False, sessions=sessions
        )
        guessed, coalescer = await answers(
            make_engine(pair), wanted, speculate=True, sessions=sessions
        )
        assert guessed == plain
        stats = coalescer.stats
        assert stats.sampled_tokens == 150
        assert stats.draft_tokens >= stats.accepted_tokens
        assert without.stats.draft_tokens == without.stats.accepted_tokens == 0
        if wish is WISHES[0]:
            assert stats.steps < without.stats.steps / 2
            assert stats.steps == 150 - stats.accepted_tokens


async def test_many_users_get_the_same_whatever_pages_there_are(pair: Pair) -> None:
    texts = prompts(6, 12, seed=2, longest=50)
    wanted = [(text, WISHES[i % 4], 20 + 13 * i, frozenset[int]()) for i, text in enumerate(texts)]
    plain, _ = await answers(make_engine(pair), wanted, speculate=False)
    for pages in (64, 9):  # one sequence takes all of the nine
        guessed, coalescer = await answers(make_engine(pair, pages=pages), wanted, speculate=True)
        assert guessed == plain
        assert coalescer.stats.accepted_tokens > 0
        assert (coalescer.stats.preemptions > 0) is (pages == 9)


async def test_limits_and_stop_tokens_count_within_guesses(pair: Pair) -> None:
    prompt = [5, 6, 7, 8, 5]
    whole, _ = (
        await answers(
            make_engine(pair), [(prompt, WISHES[1], 80, frozenset[int]())], speculate=False
        )
    )[0][0]
    for count in range(40, 60):
        wanted = [(prompt, WISHES[1], count, frozenset[int]())]
        got, coalescer = await answers(make_engine(pair), wanted, speculate=True)
        assert got == [(whole[:count], "length")]
        assert coalescer.stats.accepted_tokens > 0
    tokens = [token.token for token in whole]
    for stop in set(tokens):
        wanted = [(prompt, WISHES[1], 80, frozenset({stop}))]
        got, _ = await answers(make_engine(pair), wanted, speculate=True)
        assert got == [(whole[: tokens.index(stop)], "stop")]


async def test_an_answer_fills_the_context_and_no_more(pair: Pair) -> None:
    wanted = [([5, 6, 7, 8, 5], WISHES[0], 10_000, frozenset[int]())]
    plain, _ = await answers(make_engine(pair, pages=10), wanted, speculate=False)
    guessed, coalescer = await answers(make_engine(pair, pages=10), wanted, speculate=True)
    assert guessed == plain
    assert len(guessed[0][0]) == 160 - 5
    assert coalescer.stats.steps < 100


async def test_a_full_batch_carries_no_guesses(pair: Pair) -> None:
    wanted = [([5, 6, 7, 8, 5], WISHES[0], 60, frozenset[int]())] * 5
    got, coalescer = await answers(make_engine(pair), wanted, speculate=True)
    assert got == [got[0]] * 5
    assert coalescer.stats.draft_tokens < 5 * 7  # where the first ones have not ended yet: none
