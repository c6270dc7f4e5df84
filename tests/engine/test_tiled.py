"""Products and norms on a GPU in which a row has the same bits in any company; an engine of them.

On a machine without a GPU Triton's interpreter runs them; with one they are compiled. That they
compile ``test_paged.py`` sees.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from ds4trio.engine import attention, linear, paged_parts, runner
from ds4trio.engine.attention import PagedAttention, Span
from ds4trio.engine.engine import Engine
from ds4trio.engine.graphs import run_eagerly
from ds4trio.engine.kv_cache import KVCache
from ds4trio.engine.norm import RMSNorm
from ds4trio.engine.step import SampledToken, SamplingParams, StepItem
from ds4trio.engine.tiled import Tile, TiledGated, TiledLinear, multiply, normalise
from tests.engine.builders import Pair, make_engine, make_pair, prompts, sampled

pytest.importorskip("triton")

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
# The interpreter multiplies bfloat16 wrongly.
DTYPES = [torch.float32, torch.float16] + [torch.bfloat16] * CUDA
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
SHAPES = [(64, 96), (576, 200), (60, 77), (16, 1)]
TILE = Tile(16, 16, 16, warps=4, stages=2)


def random_rows(count: int, width: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, width, generator=generator).to(DEVICE, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_product_is_that_of_double_precision(
    dtype: torch.dtype, shape: tuple[int, int], with_bias: bool
) -> None:
    inputs, outputs = shape
    rows, weight = random_rows(70, inputs, dtype), random_rows(outputs, inputs, dtype, 1)
    weight = weight * inputs**-0.5
    bias = random_rows(1, outputs, dtype, 2)[0] if with_bias else None
    expected = rows.double() @ weight.double().T + (0.0 if bias is None else bias.double())
    found = TiledLinear(weight, bias)(rows)
    assert found.dtype == dtype
    scale = expected.abs().clamp_min(1.0)
    assert float(((found.double() - expected).abs() / scale).max()) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_of_a_product_has_the_same_bits_in_any_company(
    dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    inputs, outputs = shape
    rows, weight = random_rows(200, inputs, dtype), random_rows(outputs, inputs, dtype, 1)
    together = multiply(rows, weight, None)
    for count in (1, 2, 16, 17, 63, 64, 65, 129):
        assert torch.equal(multiply(rows[:count], weight, None), together[:count])
    other = torch.cat((rows[:5], random_rows(60, inputs, dtype, 3)))
    assert torch.equal(multiply(other, weight, None)[:5], together[:5])
    if CUDA:  # the interpreter's products do depend on the place in a tile
        assert torch.equal(multiply(rows[77:78], weight, None), together[77:78])


def test_a_tile_decides_how_and_not_what() -> None:
    rows, weight = random_rows(40, 60, torch.float32), random_rows(33, 60, torch.float32, 1)
    found = multiply(rows, weight, None, TILE)
    assert torch.allclose(found, functional.linear(rows, weight), atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [16, 60, 576])
def test_a_norm_is_the_norm_and_the_same_in_any_company(dtype: torch.dtype, width: int) -> None:
    rows, weight = random_rows(20, width, dtype), random_rows(1, width, dtype, 1)[0]
    norm = RMSNorm(weight, 1e-5)
    found = normalise(rows, norm)
    assert found.dtype == dtype
    expected = RMSNorm(weight.double(), 1e-5)(rows.double())
    assert float((found.double() - expected).abs().max()) < 4 * TOLERANCE[dtype]
    for row in range(20):
        assert torch.equal(normalise(rows[row : row + 1], norm)[0], found[row])


def test_products_take_the_norm_and_the_sum_along() -> None:
    rows, weight = random_rows(5, 64, torch.float32), random_rows(64, 64, torch.float32, 1)
    norm = RMSNorm(random_rows(1, 64, torch.float32, 2)[0], 1e-5)
    product = TiledLinear(weight, None)
    expected = functional.linear(norm(rows), weight)
    assert torch.allclose(product(rows, norm), expected, atol=1e-4)
    hidden = random_rows(5, 64, torch.float32, 4)
    added = hidden + functional.linear(rows, weight)
    assert torch.allclose(product.add_to(hidden, rows), added, atol=1e-4)
    assert torch.allclose(hidden, added, atol=1e-4)
    assert torch.equal(product.rows(torch.tensor([3, 1], device=DEVICE)), weight[[3, 1]])
    gate, up = expected.chunk(2, -1)
    gated = TiledGated(weight, None)(rows, norm)
    assert torch.allclose(gated, functional.silu(gate) * up, atol=1e-4)


def test_attention_gives_a_row_the_same_bits_however_its_sequence_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beyond a split, beside others or alone, and when there is memory for few rows at a time."""
    config = make_pair().config
    cache = KVCache(config, pages=40, page_size=16, dtype=torch.float16, device=DEVICE)
    generator = torch.Generator().manual_seed(0)
    for held in (cache.keys, cache.values):
        held.copy_(torch.randn(held.shape, generator=generator))
    kernels = PagedAttention(config, cache, 512, paged=True, batch_invariant=True)
    inputs = random_rows(12, (config.heads + 2 * config.kv_heads) * config.head_dim, torch.float16)
    pages, beside = list(range(20))[::-1], Span([25], 3, 9)

    def attend(start: int, count: int, *others: Span) -> torch.Tensor:
        rows = inputs[start - 250 :][:count]
        rows = torch.cat((rows, *(inputs[: other.count] for other in others)))
        plan = kernels.plan([Span(pages, start, count), *others])
        return kernels.attend(0, plan, rows)[:count]

    whole = attend(250, 12)
    for pieces in ((1, 8, 3), (11, 1)):
        start = 250
        for count in pieces:
            for others in ((), (beside,)):
                found = attend(start, count, *others)
                assert torch.equal(found, whole[start - 250 :][:count])
            start += count
    monkeypatch.setattr(paged_parts, "PARTIAL_MEMORY", 3000)
    assert torch.equal(attend(250, 12), whole)


# -- an engine of these products, of attention by kernels and of recorded steps


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no GPU, use them on the CPU, with an interpreter whose products do not depend
    on the place in a tile."""
    if CUDA:
        return

    def by_rows(left: Any, right: Any, dtype: Any) -> Any:
        return np.einsum("ij,jk->ik", left.astype(dtype), right.astype(dtype), optimize=False)

    monkeypatch.setattr(np, "matmul", by_rows)
    monkeypatch.setattr(attention, "has_kernels", lambda device: True)
    monkeypatch.setattr(linear, "has_kernels", lambda device: True)
    for module in (attention, linear, runner):
        monkeypatch.setattr(module, "is_native", lambda dtype, device: False)
    monkeypatch.setattr(runner, "CudaRecorder", lambda device: run_eagerly)


def engine_of(pair: Pair, **settings: Any) -> Engine:
    return make_engine(pair, device=str(DEVICE), dtype="float16", pages=100, **settings)


def say(engine: Engine, prompt: Sequence[int], pieces: Sequence[int], count: int) -> list[object]:
    engine.open(99, SamplingParams(temperature=0.8, seed=3, logprobs=True, top_logprobs=2))
    done = 0
    for piece in pieces:
        engine.eval_batch([StepItem(99, tuple(prompt[done : done + piece]), sample=False)])
        done += piece
    said: list[object] = [*sampled(engine, StepItem(99, tuple(prompt[done:])))]
    said.extend(sampled(engine, StepItem(99))[0] for _ in range(count - 1))
    engine.close(99)
    return said


@pytest.mark.usefixtures("kernels")
def test_an_engine_of_kernels_says_the_same_in_any_company_and_any_pieces() -> None:
    pair = make_pair(num_hidden_layers=1)
    engine = engine_of(pair, batch_invariant=True, prefix_cache=False)
    prompt = (prompts(1, 320, seed=5)[0] * 100)[:37]
    alone = say(engine, prompt, (), 3)
    for pieces in ((1,), (8, 9, 19)):
        assert say(engine, prompt, pieces, 3) == alone
    others = [text[:20] for text in prompts(6, 320, seed=9)]
    engine.open(99, SamplingParams(temperature=0.8, seed=3, logprobs=True, top_logprobs=2))
    found: list[SampledToken] = []
    items = [StepItem(99, tuple(prompt))]
    for step in range(3):
        for i, text in enumerate(others):
            if i // 2 == step:
                engine.open(i, SamplingParams(temperature=0.0, seed=i))
                items.append(StepItem(i, tuple(text)))
        random.Random(step).shuffle(items)
        drawn = zip(items, sampled(engine, *items), strict=True)
        found.extend(token for item, token in drawn if item.sequence == 99)
        items = [StepItem(item.sequence) for item in items]
    assert found == alone


@pytest.mark.usefixtures("kernels")
def test_it_says_about_what_an_engine_without_them_says() -> None:
    pair = make_pair(num_hidden_layers=1)
    prompt = (prompts(1, 320, seed=5)[0] * 100)[:37]
    engine = engine_of(pair, batch_invariant=True)
    plain = make_engine(pair)
    for each in (engine, plain):
        each.open(1, SamplingParams(temperature=0.0, logprobs=True))
    ours, theirs = (sampled(each, StepItem(1, tuple(prompt)))[0] for each in (engine, plain))
    assert ours.token == theirs.token
    assert ours.logprob == pytest.approx(theirs.logprob, abs=0.02)
