"""Rows with different adapters in one step, against models that have them in their weights."""

from __future__ import annotations

import pytest
import torch

from ds4trio.engine.engine import Engine
from ds4trio.engine.step import SamplingParams, StepItem
from ds4trio.errors import InternalError
from ds4trio.models.lora import Adapter, open_adapter
from tests.engine.builders import GREEDY, Pair, generate, make_engine, make_pair, prompts, sampled
from tests.lora_files import make_adapter, merged

NAMES = ("", "first", "second", "partial")


@pytest.fixture(scope="module")
def pair() -> Pair:
    return make_pair(attention_bias=True, mlp_bias=True)


@pytest.fixture(scope="module")
def adapters(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> tuple[Adapter, ...]:
    folder = tmp_path_factory.mktemp("adapters")
    shapes = {"first": {"seed": 1}, "second": {"seed": 2, "rank": 7}, "partial": {"seed": 3}}
    opened = []
    for name, shape in shapes.items():
        modules = ("v_proj", "up_proj") if name == "partial" else None
        more = {} if modules is None else {"modules": modules}
        make_adapter(folder / name, pair.weights, **shape, **more)  # type: ignore[arg-type]
        opened.append(open_adapter(name, folder / name, pair.config))
    return tuple(opened)


def wish(number: int) -> SamplingParams:
    return SamplingParams(temperature=0.8 * (number % 2), seed=number, logprobs=True)


def mixed(engine: Engine, texts: list[list[int]], count: int) -> list[list[tuple[int, float]]]:
    """All texts at once, text i with adapter i modulo 4; tokens and logprobs of each."""
    for i in range(len(texts)):
        engine.open(i, wish(i), adapter=NAMES[i % 4])
    found: list[list[tuple[int, float]]] = [[] for _ in texts]
    for _ in range(count):
        items = [StepItem(i, () if found[i] else tuple(text)) for i, text in enumerate(texts)]
        for own, token in zip(found, sampled(engine, *items), strict=True):
            assert token.logprob is not None
            own.append((token.token, token.logprob))
    for i in range(len(texts)):
        engine.close(i)
    return found


@pytest.mark.parametrize("dtype", ["float32", "w8a16", "int8"])
def test_a_row_has_the_same_bits_with_its_adapter_in_any_company(
    pair: Pair, adapters: tuple[Adapter, ...], dtype: str
) -> None:
    engine = make_engine(pair, adapters=adapters, dtype=dtype, pages=200)
    texts = prompts(12, 320, longest=40)
    together = mixed(engine, texts, 8)
    for i, text in enumerate(texts):
        engine.open(100, wish(i), adapter=NAMES[i % 4])
        alone = []
        for step in range(8):
            (token,) = sampled(engine, StepItem(100, () if step else tuple(text)))
            alone.append((token.token, token.logprob))
        engine.close(100)
        assert alone == together[i]
    # And what has no adapter is what a server without any answers.
    plain = make_engine(pair, dtype=dtype)
    for i in range(0, len(texts), 4):
        tokens = generate(plain, texts[i], 8, wish(i))
        assert tokens == [token for token, _ in together[i]]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_answers_as_a_model_with_merged_weights(
    pair: Pair, adapters: tuple[Adapter, ...], dtype: str
) -> None:
    engine = make_engine(pair, adapters=adapters, dtype=dtype, pages=200)
    texts = prompts(4, 320, seed=5, longest=40)
    together = mixed(engine, texts, 1)
    for i, adapter in enumerate(adapters, 1):
        weights = merged(pair.weights, adapter.pairs)
        own = make_engine(Pair(pair.reference, pair.config, weights), dtype=dtype)
        own.open(1, wish(i))
        (expected,) = sampled(own, StepItem(1, tuple(texts[i])))
        token, logprob = together[i][0]
        assert expected.logprob is not None
        if dtype == "float32":
            assert token == expected.token
            assert logprob == pytest.approx(expected.logprob, abs=1e-3)
        else:
            assert abs(logprob - expected.logprob) < 0.5 or token != expected.token


def test_adapters_never_share_what_is_cached(pair: Pair, adapters: tuple[Adapter, ...]) -> None:
    engine = make_engine(pair, adapters=adapters)
    text = prompts(1, 320, seed=8)[0] * 40
    text = text[:100]
    engine.open(1, GREEDY, adapter="first")
    sampled(engine, StepItem(1, tuple(text)))
    reused = {}
    for number, name in enumerate(NAMES, 2):
        engine.open(number, GREEDY, adapter=name)
        reused[name] = engine.reuse(number, text)
    assert reused == {"": 0, "first": 96, "second": 0, "partial": 0}
    engine.open(10, GREEDY, cache_salt="first")
    assert engine.reuse(10, text) == 0


def test_an_unknown_adapter_is_refused(pair: Pair) -> None:
    with pytest.raises(InternalError, match="no adapter 'other'"):
        make_engine(pair).open(1, GREEDY, adapter="other")


def test_adapters_change_answers(pair: Pair, adapters: tuple[Adapter, ...]) -> None:
    engine = make_engine(pair, adapters=adapters)
    text = prompts(1, 320, seed=8)[0]
    answers = set()
    for number, name in enumerate(NAMES):
        engine.open(number, GREEDY, adapter=name)
        tokens = [sampled(engine, StepItem(number, tuple(text)))[0].token]
        tokens += [sampled(engine, StepItem(number))[0].token for _ in range(7)]
        answers.add(tuple(tokens))
    assert len(answers) == len(NAMES)
    assert torch.is_inference_mode_enabled() is False
