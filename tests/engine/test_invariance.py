"""Batch invariance where it has to be asked for: tokens and logprobs, to the last bit, alone and in
any company; on a CPU in 16 bits, and by the operations that other devices have."""

from __future__ import annotations

import functools
import logging
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import trio
from torch.nn import functional

from ds4trio.batching.coalescer import Coalescer
from ds4trio.batching.schedule import Budget
from ds4trio.engine.attention import Span
from ds4trio.engine.engine import Engine
from ds4trio.engine.spec import RunnerSpec
from ds4trio.engine.step import SampledToken, SamplingParams, StepItem
from ds4trio.errors import ModelUnavailable
from ds4trio.models.resolve import ModelSource
from ds4trio.settings import Settings
from tests.engine.builders import Bench, Pair, make_engine, make_pair, prompts, sampled

HALVES = ["bfloat16", "float16"]
COUNT = 20
COMPANY = 32


@functools.cache
def the_pair() -> Pair:
    return make_pair()


def engine_of(dtype: str, *, pages: int = 200, **settings: Any) -> Engine:
    return make_engine(the_pair(), pages=pages, dtype=dtype, batch_invariant=True, **settings)


def wish(number: int, prompt: Sequence[int]) -> SamplingParams:
    """Greedy and drawn, whole and cut vocabularies; all with logprobs."""
    return SamplingParams(
        temperature=(0.0, 0.8, 1.2)[number % 3],
        top_p=0.9 if number % 2 else 1.0,
        seed=number,
        logprobs=True,
        top_logprobs=number % 4,
        prompt_length=len(prompt),
    )


def say(
    engine: Engine,
    prompt: Sequence[int],
    *,
    number: int = 1,
    told: Sequence[SampledToken] = (),
    pieces: Sequence[int] = (),
) -> list[SampledToken]:
    """By itself: the prompt, in pieces of these sizes and the rest, then tokens up to COUNT.

    Args:
        told: the beginning of the answer, to be evaluated with the prompt.
    """
    sequence = 1_000_000
    engine.open(sequence, wish(number, prompt))
    text = [*prompt, *(token.token for token in told)]
    done = engine.reuse(sequence, text)
    for piece in pieces:
        if len(text) - done > piece:
            part = tuple(text[done : done + piece])
            engine.eval_batch([StepItem(sequence, part, sample=False)])
            done += piece
    said = sampled(engine, StepItem(sequence, tuple(text[done:])))
    while len(told) + len(said) < COUNT:
        said.extend(sampled(engine, StepItem(sequence)))
    engine.close(sequence)
    return said


@functools.cache
def texts() -> list[list[int]]:
    """Of lengths that fill neither pages nor blocks of rows, some of them for several."""
    lengths = [1, 3, 14, 17, 40, 62, 100] * 5
    return [
        (prompts(1, 320, seed=i)[0] * 100)[:length] for i, length in enumerate(lengths[:COMPANY])
    ]


@pytest.mark.parametrize("dtype", HALVES)
def test_a_company_of_32_changes_no_token_and_no_logprob(dtype: str) -> None:
    """Sequence i joins at step i // 4, so that prompts meet answers."""
    engine = engine_of(dtype, pages=400, prefix_cache=False)
    alone = [say(engine, text, number=i) for i, text in enumerate(texts())]
    for i, text in enumerate(texts()):
        engine.open(i, wish(i, text))
    found: list[list[SampledToken]] = [[] for _ in texts()]
    step = 0
    while any(len(said) < COUNT for said in found):
        items = [
            StepItem(i, () if found[i] else tuple(text))
            for i, text in enumerate(texts())
            if i // 4 <= step and len(found[i]) < COUNT
        ]
        random.Random(step).shuffle(items)
        for item, token in zip(items, sampled(engine, *items), strict=True):
            found[item.sequence].append(token)
        step += 1
    assert found == alone


@pytest.mark.parametrize("dtype", HALVES)
def test_neither_pieces_nor_found_pages_nor_a_new_start_change_anything(dtype: str) -> None:
    engine = engine_of(dtype, prefix_cache=False)
    prompt = (prompts(1, 320, seed=5)[0] * 100)[:77]
    whole = say(engine, prompt)
    for pieces in ([1] * 76, [7] * 10, [8, 9, 16, 17, 3], [48], [64, 12]):
        assert say(engine, prompt, pieces=pieces) == whole
    for told in (1, 5, 9):  # as after it gave up its pages
        assert say(engine, prompt, told=whole[:told]) == whole[told:]
    keeping = engine_of(dtype)
    assert say(keeping, prompt) == whole
    keeping.open(3, wish(1, prompt))
    assert keeping.reuse(3, prompt) == 64
    keeping.close(3)
    assert say(keeping, prompt) == whole


@pytest.mark.parametrize("dtype", HALVES)
def test_nor_does_a_crowd_with_little_memory(dtype: str) -> None:
    """Under the coalescer, where prompts are cut, sessions give up pages, and guesses are made: at
    temperature 0 a text like these goes round in circles."""
    crowd = [[7 + i, 9, 30] * 4 + [11, 12, 13][: i % 4] for i in range(COMPANY)]
    alone = [say(engine_of(dtype), text, number=i) for i, text in enumerate(crowd)]
    engine = engine_of(dtype, pages=16)
    coalescer = Coalescer(
        engine,
        max_sessions=COMPANY,
        max_waiting=COMPANY,
        window=0,
        budget=Budget(step_tokens=100, prefill_chunk=23, sessions=COMPANY, guess_rows=64),
    )
    found: list[list[SampledToken]] = [[] for _ in crowd]

    async def ask(number: int, text: list[int]) -> None:
        async with coalescer.session(wish(number, text)) as session:
            session.draft = 2
            session.start(text, max_new_tokens=COUNT, stop_tokens=frozenset())
            while True:
                delivery = await session.receive()
                found[number].extend(delivery.tokens)
                if delivery.end is not None:
                    return

    async def main() -> None:
        with trio.fail_after(120):
            async with trio.open_nursery() as running:
                await running.start(coalescer.run)
                async with trio.open_nursery() as asking:
                    for number, text in enumerate(crowd):
                        asking.start_soon(ask, number, text)
                running.cancel_scope.cancel()

    trio.run(main)
    assert coalescer.stats.preemptions > 0
    assert coalescer.stats.draft_tokens > 0
    assert found == alone


# -- by the operations of devices that have no kernels of ours


@functools.cache
def plain_bench(dtype: str, page_size: int = 16) -> Bench:
    bench = Bench(
        the_pair(), dtype=dtype, pages=60, page_size=page_size, plain=True, batch_invariant=True
    )
    bench.spoil()
    return bench


@pytest.mark.parametrize("page_size", [16, 48, 512])
@pytest.mark.parametrize("dtype", ["float32", *HALVES])
def test_rows_apart_see_their_own_sequence_and_nothing_else(dtype: str, page_size: int) -> None:
    """A sequence of several parts, in pages of which the rest holds NaN."""
    text = (prompts(1, 320, seed=3)[0] * 400)[:300]
    pages = [1, 0] if page_size == 512 else list(range(50 * 16 // page_size))[::-1]
    bench = plain_bench(dtype, page_size)
    found = torch.cat(
        [
            bench.logits([(Span(pages, 0, 40), text[:40])])[0],
            bench.logits([(Span(pages, 40, 260), text[40:])])[0],
        ]
    )
    expected = the_pair().expected(text)
    if dtype == "float32":
        assert float((found - expected).abs().max()) < 2e-3
    else:
        near = functional.cosine_similarity(found, expected, dim=-1)
        assert float(near.min()) > 0.99


@pytest.mark.parametrize("dtype", HALVES)
def test_rows_apart_have_the_same_bits_however_a_sequence_is_cut(dtype: str) -> None:
    bench = plain_bench(dtype)
    text = (prompts(1, 320, seed=4)[0] * 300)[:270]
    pages, beside = list(range(17)), Span([20], 0, 9)
    whole = bench.logits([(Span(pages, 0, 270), text)])[0]
    for pieces in ([255, 1, 1, 13], [9, 17, 244]):
        done = 0
        for count in pieces:
            step = [(Span(pages, done, count), text[done : done + count]), (beside, text[:9])]
            assert torch.equal(bench.logits(step)[0], whole[done : done + count])
            done += count


# -- what is said at the start


@pytest.mark.parametrize("dtype", ["float32", "w8a16", "int8"])
def test_where_it_holds_anyway_it_changes_nothing(
    dtype: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    plain = make_engine(the_pair(), dtype=dtype)
    assert "batch-invariant" not in caplog.text
    asked = make_engine(the_pair(), dtype=dtype, batch_invariant=True)
    assert "costs nothing" in caplog.text
    prompt = prompts(1, 320, seed=4)[0]
    assert say(asked, prompt) == say(plain, prompt)
    assert asked.info == plain.info


def test_what_it_costs_is_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    engine_of("bfloat16")
    assert "--batch-invariant: products go in blocks of fixed size" in caplog.text


@pytest.mark.parametrize("pages", [4, 5, 200])
def test_a_product_that_depends_on_company_ends_the_start(
    pages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However little memory there is to find out in, of what a start accepts."""
    product = functional.linear

    def by_place(rows: torch.Tensor, *others: Any) -> torch.Tensor:
        return product(rows, *others) * torch.linspace(1, 2, len(rows), dtype=rows.dtype)[:, None]

    engine_of("bfloat16", pages=pages)
    monkeypatch.setattr(functional, "linear", by_place)
    with pytest.raises(ModelUnavailable, match="--batch-invariant cannot be kept in bfloat16 on c"):
        engine_of("bfloat16", pages=pages)


def test_the_setting_reaches_the_engine(tiny_model: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    settings = Settings.load(
        {"DS4TRIO_BATCH_INVARIANT": "true"},
        {"device": "cpu", "dtype": "bfloat16", "kv_memory": "1MiB"},
    )
    spec = RunnerSpec.of(settings, ModelSource("tiny", "folder", tiny_model))
    assert spec.load().info.dtype == "bfloat16"
    assert "--batch-invariant: products" in caplog.text
