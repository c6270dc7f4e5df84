"""With guesses a sequence gets the same tokens and the same logprobs as without, in fewer steps."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from ds4trio.engine.engine import Engine
from ds4trio.engine.step import Evaluated, Refused, SampledToken, SamplingParams, StepItem
from tests.engine.builders import GREEDY, Pair, make_engine, make_pair, prompts

FEW = dict.fromkeys(range(5, 9), 50.0)
"""A bias to so few tokens that an answer soon repeats itself, though not always."""

WISHES = tuple(
    replace(wish, logit_bias=FEW, logprobs=True)
    for wish in (
        SamplingParams(temperature=0.0, top_logprobs=3),
        SamplingParams(temperature=0.0, repetition_penalty=1.05),
        SamplingParams(temperature=0.3, seed=5),
        SamplingParams(temperature=0.5, top_p=0.8, top_k=20, seed=6, top_logprobs=2),
        SamplingParams(temperature=0.3, seed=7, frequency_penalty=0.1, presence_penalty=0.2),
        SamplingParams(temperature=0.6, min_p=0.05, seed=8),
    )
)


@pytest.fixture(scope="module")
def pair() -> Pair:
    return make_pair()


def run(
    engine: Engine, sequence: int, prompt: Sequence[int], count: int, draft: int
) -> tuple[list[SampledToken], int, int]:
    """The first ``count`` tokens; how many steps they took, and how many guesses."""
    tokens: list[SampledToken] = []
    steps = guesses = 0
    while len(tokens) < count:
        most = min(draft, count - len(tokens) - 1) if tokens else 0
        item = StepItem(sequence, () if tokens else tuple(prompt), draft=most)
        (outcome,) = engine.eval_batch([item]).outcomes
        assert isinstance(outcome, Evaluated), outcome
        assert len(outcome.sampled) <= 1 + outcome.guessed <= 1 + most
        tokens.extend(outcome.sampled)
        steps += 1
        guesses += outcome.guessed
    return tokens, steps, guesses


@pytest.mark.parametrize("dtype", ["float32", "w8a16", "int8", "bfloat16"])
@pytest.mark.parametrize("wish", WISHES)
def test_guesses_change_neither_tokens_nor_logprobs(
    pair: Pair, dtype: str, wish: SamplingParams
) -> None:
    engine = make_engine(pair, dtype=dtype, batch_invariant=True, pages=200, prefix_cache=False)
    saved = found = 0
    for number, prompt in enumerate(prompts(4, 12, seed=3, longest=60)):
        params = replace(wish, prompt_length=len(prompt))
        for draft in (0, 1, 7):
            engine.open(10 * number + draft, params)
        alone, steps, _ = run(engine, 10 * number, prompt, 60, 0)
        for draft in (1, 7):
            guessed, fewer, guesses = run(engine, 10 * number + draft, prompt, 60, draft)
            assert guessed == alone
            saved += steps - fewer
            found += guesses
        assert engine.length(10 * number + 7) == engine.length(10 * number) == len(prompt) + 59
    assert found > saved > 0  # some held, and some did not


def test_a_copy_takes_a_fraction_of_the_steps(pair: Pair) -> None:
    """Among few tokens a greedy answer soon goes round in circles."""
    engine = make_engine(pair)
    engine.open(1, WISHES[0])
    engine.open(2, WISHES[0])
    slow, slow_steps, _ = run(engine, 1, [7, 8, 9], 200, 0)
    fast, fast_steps, _ = run(engine, 2, [7, 8, 9], 200, 7)
    assert fast == slow
    assert slow_steps == 200
    assert fast_steps < 100


@pytest.mark.parametrize("seed", range(4))
def test_rows_with_guesses_and_all_others_leave_each_other_alone(pair: Pair, seed: int) -> None:
    """Decode rows with any number of guesses beside chunks of prompts, on pages that were used."""
    chance = random.Random(seed)
    engine = make_engine(pair, pages=200)
    texts = prompts(6, 12, seed=seed, longest=60)
    alone: list[list[SampledToken]] = []
    for number, (text, wish) in enumerate(zip(texts, WISHES, strict=True)):
        engine.open(number, wish)
        alone.append(run(engine, number, text, 50, 0)[0])
        engine.close(number)
        engine.open(number, wish)
    done = [0] * len(texts)
    got: list[list[SampledToken]] = [[] for _ in texts]
    while any(len(tokens) < 50 for tokens in got):
        items = []
        for number, text in enumerate(texts):
            if len(got[number]) >= 50 or chance.random() < 0.2:
                continue
            if done[number] < len(text):
                count = chance.randint(1, len(text) - done[number])
                chunk = tuple(text[done[number] : done[number] + count])
                done[number] += count
                items.append(StepItem(number, chunk, sample=done[number] == len(text)))
            else:
                most = min(7, 49 - len(got[number]))
                items.append(StepItem(number, draft=chance.randint(0, most)))
        for outcome in engine.eval_batch(items).outcomes:
            assert isinstance(outcome, Evaluated), outcome
            got[outcome.sequence].extend(outcome.sampled)
    assert got == alone


def test_guesses_that_did_not_hold_leave_the_cache_as_it_was(pair: Pair) -> None:
    """Others share the pages afterwards, and get what they would have got."""
    engine = make_engine(pair)
    fresh = make_engine(pair)
    engine.open(1, GREEDY)
    prompt = [3, 4, 5, 9, 3, 4, 6, 9, 3, 4, 5] * 2
    tokens = [t.token for t in run(engine, 1, prompt, 80, 7)[0]]
    history = [*prompt, *tokens[:60]]
    engine.open(2, GREEDY)
    reused = engine.reuse(2, history)
    assert reused > len(prompt)
    fresh.open(2, GREEDY)
    assert run(engine, 2, history[reused:], 20, 0)[0] == run(fresh, 2, history, 20, 0)[0]


def test_guesses_go_to_the_end_of_the_context_and_of_the_pages_and_not_beyond(pair: Pair) -> None:
    engine = make_engine(pair, pages=4)
    engine.open(1, GREEDY)
    engine.open(2, GREEDY)
    alone, _, _ = run(engine, 1, [5] * 40, 25, 0)
    engine.close(1)
    assert engine.info.longest_sequence == 64
    guessed, _, _ = run(engine, 2, [5] * 40, 25, 7)
    assert guessed == alone
    assert engine.length(2) == 64
    (outcome,) = engine.eval_batch([StepItem(2)]).outcomes
    assert isinstance(outcome, Refused)
    assert engine.free_pages == 0


def test_a_step_that_fails_with_guesses_is_as_if_it_had_not_been(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(pair)
    engine.open(1, GREEDY)
    engine.open(2, GREEDY)
    alone, _, _ = run(engine, 2, [7, 8, 9], 100, 0)
    got, _, _ = run(engine, 1, [7, 8, 9], 40, 7)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("planted")

    with monkeypatch.context() as patch:
        patch.setattr("ds4trio.engine.runner.sample", fail)
        with pytest.raises(RuntimeError, match="planted"):
            engine.eval_batch([StepItem(1, draft=7)])
    while len(got) < 100:
        (outcome,) = engine.eval_batch([StepItem(1, draft=min(7, 99 - len(got)))]).outcomes
        assert isinstance(outcome, Evaluated)
        got.extend(outcome.sampled)
    assert got == alone
