"""What a sequence gets does not depend on who shares its batches: on a CPU in float32 and int8, and
in the other dtypes where batch invariance is asked for (see also ``test_invariance.py``)."""

from __future__ import annotations

import functools
import random

import pytest
import torch

from ds4trio.engine.attention import Span
from ds4trio.engine.linear import activation_dtype, make_linear
from ds4trio.engine.step import SamplingParams, StepItem
from tests.engine.builders import CPU, Bench, generate, make_engine, make_pair, prompts, sampled

DTYPES = {"float32": False, "w8a16": False, "int8": False, "bfloat16": True, "float16": True}
"""And whether batch invariance has to be asked for."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(64, 96), (96, 64), (576, 960), (1536, 576), (60, 77)])
def test_a_product_has_the_same_bits_alone_and_in_a_batch(
    dtype: str, shape: tuple[int, int]
) -> None:
    inputs, outputs = shape
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(outputs, inputs, generator=generator)
    rows = torch.randn(200, inputs, generator=generator).to(activation_dtype(dtype))
    linear = make_linear(
        lambda: (weight, None), dtype=dtype, device=CPU, batch_invariant=DTYPES[dtype]
    )
    together = linear(rows)
    for count in (1, 2, 3, 5, 8, 17, 32, 33, 64, 129):
        assert torch.equal(linear(rows[:count]), together[:count])
    assert torch.equal(linear(rows[77:78]), together[77:78])


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_have_the_same_bits_alone_and_in_a_batch(dtype: str) -> None:
    """Decode rows of lengths from 1 to 200, beside each other and beside a prefill."""
    pair = make_pair()
    lengths = [1, 5, 15, 16, 17, 40, 64, 100, 199, 200]
    texts = [(prompts(1, 320, seed=i)[0] * 200)[:length] for i, length in enumerate(lengths)]
    bench = Bench(pair, dtype=dtype, pages=100, batch_invariant=DTYPES[dtype])
    tables, first = [], 0
    for length in lengths:
        tables.append(list(range(first, first + -(-length // 16))))
        first += len(tables[-1])
    steps = []
    for text, table in zip(texts, tables, strict=True):
        if len(text) > 1:
            bench.logits([(Span(table, 0, len(text) - 1), text[:-1])])
        steps.append((Span(table, len(text) - 1, 1), text[-1:]))
    alone = [bench.logits([step])[0] for step in steps]
    chunk = (Span(list(range(first, first + 3)), 0, 40), prompts(1, 320, seed=77)[0] * 40)
    chunk = (chunk[0], chunk[1][:40])
    for group in (steps, steps[::-1], [*steps, chunk], steps[3:6]):
        for step, logits in zip(group, bench.logits(group), strict=True):
            if step in steps:
                assert torch.equal(logits, alone[steps.index(step)])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(12))
def test_logits_have_the_same_bits_however_a_sequence_is_cut(dtype: str, seed: int) -> None:
    """In one piece or in any pieces, beside others that are cut in other ways."""
    chance = random.Random(seed)
    bench = shared_bench(dtype)
    texts = [(prompts(1, 320, seed=i)[0] * 90)[:length] for i, length in enumerate((90, 37, 64))]
    tables = [[5, 1, 9, 12, 3, 7], [2, 4, 8], [6, 10, 11, 0]]
    whole = [
        bench.logits([(Span(table, 0, len(text)), text)])[0]
        for text, table in zip(texts, tables, strict=True)
    ]
    found: list[list[torch.Tensor]] = [[] for _ in texts]
    done = [0] * len(texts)
    while any(at < len(text) for at, text in zip(done, texts, strict=True)):
        step, members = [], []
        for i in chance.sample(range(len(texts)), len(texts)):
            count = chance.randint(0, min(40, len(texts[i]) - done[i]))
            if count:
                step.append((Span(tables[i], done[i], count), texts[i][done[i] : done[i] + count]))
                members.append(i)
                done[i] += count
        if step:
            for i, logits in zip(members, bench.logits(step), strict=True):
                found[i].append(logits)
    for pieces, expected in zip(found, whole, strict=True):
        assert torch.equal(torch.cat(pieces), expected)


@functools.cache
def shared_bench(dtype: str) -> Bench:
    return Bench(make_pair(), dtype=dtype, batch_invariant=DTYPES[dtype])


def test_greedy_and_seeded_texts_are_those_a_sequence_gets_alone() -> None:
    pair = make_pair()
    engine = make_engine(pair, pages=200)
    texts = prompts(12, 320, longest=60)
    wishes = [
        SamplingParams(
            temperature=(0.0, 0.7, 1.0)[i % 3],
            top_p=0.9 if i % 2 else 1.0,
            top_k=20 if i % 4 == 1 else 0,
            repetition_penalty=1.1 if i % 5 == 0 else 1.0,
            seed=i,
            prompt_length=len(text),
        )
        for i, text in enumerate(texts)
    ]
    alone = [generate(engine, t, 12, w) for t, w in zip(texts, wishes, strict=True)]
    for i, wish in enumerate(wishes):
        engine.open(i, wish)
    # Sequence i joins at step i // 2, so that batches mix prefills with decodes.
    found: list[list[int]] = [[] for _ in texts]
    step = 0
    while any(len(tokens) < 12 for tokens in found):
        items = [
            StepItem(i, () if found[i] else tuple(texts[i]))
            for i in range(len(texts))
            if i // 2 <= step and len(found[i]) < 12
        ]
        for item, token in zip(items, sampled(engine, *items), strict=True):
            found[item.sequence].append(token.token)
        step += 1
    assert found == alone


def test_the_seed_decides_the_text_after_a_sequence_is_evaluated_anew() -> None:
    engine = make_engine(make_pair())
    prompt = prompts(1, 320, seed=4)[0]
    params = SamplingParams(
        temperature=1.3, seed=11, frequency_penalty=0.5, prompt_length=len(prompt)
    )
    whole = generate(engine, prompt, 20, params)
    for told in (1, 7, 19):
        assert generate(engine, [*prompt, *whole[:told]], 20 - told, params) == whole[told:]
    other = SamplingParams(temperature=1.3, seed=12, prompt_length=len(prompt))
    assert generate(engine, prompt, 20, other) != whole
