"""What a model thinks of a prompt: against transformers, and however the prompt is cut."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from ds4trio.engine import logprobs
from ds4trio.engine.engine import Engine
from ds4trio.engine.step import Evaluated, SampledToken, SamplingParams, StepItem
from tests.engine.builders import GREEDY, make_engine, make_pair, prompts

Told = list[SampledToken]


def asking(prompt: list[int], top: int = 3) -> SamplingParams:
    return replace(GREEDY, prompt_logprobs=top, prompt_length=len(prompt))


def pieces(sequence: int, tokens: list[int], cuts: list[int], prompt: int) -> list[StepItem]:
    """Chunks that end at these places, and at the end."""
    items = []
    for start, end in zip([0, *cuts], [*cuts, len(tokens)], strict=True):
        follows = tokens[end] if end < prompt else None
        chunk = tuple(tokens[start:end])
        items.append(StepItem(sequence, chunk, sample=end == len(tokens), follows=follows))
    return items


def step(engine: Engine, told: dict[int, Told], *items: StepItem) -> None:
    for outcome in engine.eval_batch(items).outcomes:
        assert isinstance(outcome, Evaluated), outcome
        told.setdefault(outcome.sequence, []).extend(outcome.prompt)


def alone(engine: Engine, prompt: list[int], *cuts: int, top: int = 3) -> Told:
    told: dict[int, Told] = {}
    engine.open(1000, asking(prompt, top))
    for item in pieces(1000, prompt, list(cuts), len(prompt)):
        step(engine, told, item)
    engine.close(1000)
    return told[1000]


@pytest.mark.parametrize("slice_bytes", [1, 5 * 320 * 4, 32 << 20])
def test_they_are_those_of_the_reference(slice_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprobs, "SLICE_BYTES", slice_bytes)
    pair = make_pair()
    prompt = random.Random(0).choices(range(320), k=60)
    expected = pair.expected(prompt).log_softmax(-1)
    told = alone(make_engine(pair), prompt, 7, 8, 40)
    assert [one.token for one in told] == prompt[1:]
    for place, one in enumerate(told):
        assert one.logprob == pytest.approx(float(expected[place, one.token]), abs=2e-3)
        values, ids = expected[place].topk(3)
        assert [token for token, _ in one.top_logprobs] == ids.tolist()
        assert [value for _, value in one.top_logprobs] == pytest.approx(values.tolist(), abs=2e-3)


def test_none_are_told_that_were_not_asked_for_and_none_of_the_answer() -> None:
    engine = make_engine(make_pair())
    prompt = prompts(1, 320, seed=5, longest=40)[0] * 3
    assert all(not one.top_logprobs for one in alone(engine, prompt, top=0))
    engine.open(1, replace(GREEDY, prompt_length=len(prompt)))
    engine.open(2, asking(prompt))
    told: dict[int, Told] = {}
    step(engine, told, StepItem(1, tuple(prompt)))
    # Evaluated anew with an answer behind it.
    for item in pieces(2, [*prompt, 5, 6, 7], [len(prompt) - 1], len(prompt)):
        step(engine, told, item)
    step(engine, told, StepItem(2, draft=3))
    assert told[1] == []
    assert [one.token for one in told[2]] == prompt[1:]


def test_one_token_has_nothing_to_tell() -> None:
    assert alone(make_engine(make_pair()), [5]) == []


@pytest.mark.parametrize("dtype", ["float32", "w8a16", "int8"])
def test_they_are_the_same_in_any_company_and_any_pieces(dtype: str) -> None:
    engine = make_engine(make_pair(), dtype=dtype, pages=200)
    chance = random.Random(4)
    texts = [chance.choices(range(320), k=k) for k in (90, 33, 61, 20)]
    expected = [alone(engine, text) for text in texts]
    waiting: list[list[StepItem]] = []
    for i, text in enumerate(texts):
        engine.open(i, asking(text))
        cuts = sorted(chance.sample(range(1, len(text)), 4))
        waiting.append(pieces(i, text, cuts, len(text)))
    engine.open(9, GREEDY)
    told: dict[int, Told] = {}
    step(engine, told, StepItem(9, (4, 5)))
    while any(waiting):
        items = [own.pop(0) for own in waiting if own and chance.random() < 0.7]
        step(engine, told, StepItem(9), *items)
    assert [told[i] for i in range(len(texts))] == expected


def test_nothing_is_taken_from_the_prefix_cache_and_its_pages_stay_there() -> None:
    engine = make_engine(make_pair())
    prompt = random.Random(1).choices(range(320), k=70)
    first = alone(engine, prompt)
    engine.open(1, asking(prompt))
    assert engine.reuse(1, prompt) == 0
    engine.open(2, GREEDY)
    assert engine.reuse(2, prompt) == 64
    assert alone(engine, prompt) == first


def test_logits_that_are_not_finite_fail_the_step() -> None:
    pair = make_pair()
    spoilt = replace(pair, weights={**pair.weights})
    name = "model.norm.weight"
    spoilt.weights[name] = torch.full_like(pair.weights[name], torch.nan)  # type: ignore[index]
    engine = make_engine(spoilt)
    engine.open(1, asking([1, 2, 3, 4]))
    with pytest.raises(FloatingPointError):
        engine.eval_batch([StepItem(1, (1, 2, 3), sample=False, follows=4)])
