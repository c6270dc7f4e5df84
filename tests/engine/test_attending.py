"""Attention by itself, in every way there is of doing it, against plain dense attention in float64.

Layers differ in what they see, in what is turned, in caps and sinks, and in the widths of keys and
values.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from ds4trio.engine.attention import Attention, PagedAttention, Span
from ds4trio.engine.kv_cache import KVCache
from ds4trio.engine.native.paged import NativeAttention
from ds4trio.engine.rope import rotations
from ds4trio.models.config import Latent, LayerKind, ModelConfig, Rope, RopeScaling

CPU = torch.device("cpu")
CONTEXT = 600
PAGE = 16
PAGES = 96
KINDS = (
    LayerKind(),
    LayerKind(window=20, rope=1),
    LayerKind(rope=None),
    LayerKind(window=1, rope=None),
    LayerKind(window=64),
)
ROPES = (
    Rope(theta=1e4, dims=16),
    Rope(
        theta=1e6, dims=8, scaling=RopeScaling(kind="linear", factor=4.0, original_context_length=9)
    ),
)


def config_of(**changes: Any) -> ModelConfig:
    shape: dict[str, Any] = {
        "architecture": "llama",
        "vocab_size": 32,
        "hidden_size": 32,
        "intermediate_size": 32,
        "layers": len(KINDS),
        "heads": 6,
        "kv_heads": 2,
        "head_dim": 16,
        "norm_eps": 1e-5,
        "ropes": ROPES,
        "context_length": CONTEXT,
        "kinds": KINDS,
    }
    return ModelConfig(**(shape | changes))


LATENT = Latent(query_rank=0, rank=24, plain_dim=8, turned_dim=16, value_dim=8)
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "cap": {"attention_soft_cap": 1.5},
    "sinks": {"sinks": True},
    "cap and sinks": {"attention_soft_cap": 3.0, "sinks": True},
    "wider than turned": {"head_dim": 24, "heads": 4, "sinks": True},
    "latent": {"heads": 16, "kv_heads": 1, "head_dim": 40, "latent": LATENT},
    "latent, many heads": {"heads": 70, "kv_heads": 1, "head_dim": 40, "latent": LATENT},
    "odd values": {
        "heads": 3,
        "kv_heads": 1,
        "head_dim": 18,
        "attention_soft_cap": 2.0,
        "latent": Latent(query_rank=0, rank=10, plain_dim=2, turned_dim=16, value_dim=8),
    },
}
"""What differs between models. All layers of each are tried."""


def make(config: ModelConfig, path: str, *, spoiled: bool = True) -> Attention:
    """Attention of a kind, over pages that hold NaN."""
    if path.startswith("native"):
        dtype = torch.float16 if path == "native float16" else torch.float32
        native = NativeAttention(
            config, context_length=CONTEXT, pages=PAGES, page_size=PAGE, dtype=dtype
        )
        if spoiled:
            not_a_number = 0x7E00 if dtype == torch.float16 else torch.nan
            native._keys.fill(not_a_number)
            native._values.fill(not_a_number)
        return native
    dtype = torch.bfloat16 if "bfloat16" in path else torch.float32
    cache = KVCache(config, pages=PAGES, page_size=PAGE, dtype=dtype, device=CPU)
    if spoiled:
        cache.keys.fill_(torch.nan)
        cache.values.fill_(torch.nan)
    return PagedAttention(
        config,
        cache,
        CONTEXT,
        paged=path.startswith("kernels"),
        batch_invariant="invariant" in path,
    )


@dataclasses.dataclass
class Text:
    """Rows of queries, keys and values of one sequence, and its pages."""

    inputs: torch.Tensor
    pages: list[int]

    def __len__(self) -> int:
        return len(self.inputs)


def sequences_of(config: ModelConfig, lengths: Sequence[int]) -> list[Text]:
    generator = torch.Generator().manual_seed(sum(lengths))
    free = torch.randperm(PAGES, generator=generator).tolist()
    queries = config.heads * config.head_dim
    keys_and_values = config.kv_heads * (config.head_dim + config.value_dim)
    made = []
    for length in lengths:
        rows = torch.randn(length, queries + keys_and_values, generator=generator)
        rows[:, :queries] *= 2 * config.head_dim**-0.5
        made.append(Text(rows, [free.pop() for _ in range(-(-length // PAGE))]))
    return made


def sinks_of(config: ModelConfig) -> torch.Tensor | None:
    return torch.linspace(-2.0, 3.0, config.heads) if config.sinks else None


def step(
    attention: Attention,
    config: ModelConfig,
    layer: int,
    work: Sequence[tuple[Text, int, int]],
    dtype: torch.dtype,
) -> list[torch.Tensor]:
    """Evaluate positions of sequences, from one to another, in one step."""
    spans = [Span(sequence.pages, start, end - start) for sequence, start, end in work]
    order = attention.order(spans)
    inputs = torch.cat([work[i][0].inputs[work[i][1] : work[i][2]] for i in order]).to(dtype)
    with torch.inference_mode():
        plan = attention.plan([spans[i] for i in order])
        mixed = attention.attend(layer, plan, inputs, sinks_of(config))
    assert mixed.dtype == dtype
    counts = [spans[i].count for i in order]
    parts = dict(zip(order, torch.split_with_sizes(mixed, counts), strict=True))
    return [parts[i] for i in range(len(work))]


def whole_run(
    attention: Attention,
    config: ModelConfig,
    layer: int,
    sequences: Sequence[Text],
    cuts: Sequence[int],
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> list[torch.Tensor]:
    """Evaluate sequences side by side in random pieces of these sizes, not all in every step."""
    choose = random.Random(seed)
    done = [0] * len(sequences)
    found: list[list[torch.Tensor]] = [[] for _ in sequences]
    while any(at < len(sequence) for at, sequence in zip(done, sequences, strict=True)):
        active = [i for i, at in enumerate(done) if at < len(sequences[i])]
        active = choose.sample(active, choose.randint(1, len(active)))
        work = []
        for i in active:
            end = min(len(sequences[i]), done[i] + choose.choice(cuts))
            work.append((sequences[i], done[i], end))
        for i, rows in zip(active, step(attention, config, layer, work, dtype), strict=True):
            found[i].append(rows)
            done[i] += len(rows)
    return [torch.cat(rows) for rows in found]


def turned(config: ModelConfig, layer: int, heads: torch.Tensor) -> torch.Tensor:
    """[positions, heads, head_dim], turned by complex numbers."""
    number = config.kind(layer).rope
    if number is None:
        return heads
    rope = config.ropes[number]
    turns = torch.view_as_complex(rotations(rope, CONTEXT).double())[: len(heads), None]
    pairs = torch.view_as_complex(heads[..., : rope.dims].reshape(*heads.shape[:2], -1, 2))
    first = torch.view_as_real(pairs * turns).flatten(-2)
    return torch.cat((first, heads[..., rope.dims :]), -1)


def dense(config: ModelConfig, layer: int, inputs: torch.Tensor) -> torch.Tensor:
    """Every position of a sequence, plainly."""
    heads, kv_heads, width = config.heads, config.kv_heads, config.head_dim
    length = len(inputs)
    sizes = [heads * width, kv_heads * width, kv_heads * config.value_dim]
    queries, keys, values = torch.split_with_sizes(inputs.double(), sizes, 1)
    queries = turned(config, layer, queries.view(length, heads, width))
    keys = turned(config, layer, keys.view(length, kv_heads, width))
    keys = keys.repeat_interleave(heads // kv_heads, 1)
    values = values.view(length, kv_heads, -1).repeat_interleave(heads // kv_heads, 1)
    scores = torch.einsum("qhd,khd->hqk", queries, keys)
    if config.attention_soft_cap:
        cap = config.attention_soft_cap
        scores = cap * torch.tanh(scores / cap)
    place = torch.arange(length)
    back = place[:, None] - place
    unseen = back < 0
    if config.kind(layer).window:
        unseen |= back >= config.kind(layer).window
    scores = scores.masked_fill(unseen, -torch.inf)
    sinks = sinks_of(config)
    if sinks is not None:
        more = sinks.double()[:, None, None].expand(-1, length, 1)
        scores = torch.cat((scores, more), -1)
    weights = scores.softmax(-1)[..., :length]
    return torch.einsum("hqk,khd->qhd", weights, values).flatten(1)


PATHS = {
    "native": 2e-5,
    "native float16": 4e-3,
    "torch": 2e-5,
    "torch bfloat16": 6e-2,
    "torch invariant": 2e-5,
    "torch bfloat16 invariant": 6e-2,
}
"""Ways of attending, and how near they come."""


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", CONFIGS)
def test_mixed_steps_agree_with_dense_attention(name: str, path: str) -> None:
    """Decode rows, short chunks and long ones of unequal sequences, on pages that held NaN."""
    config = config_of(**CONFIGS[name])
    dtype = torch.bfloat16 if "bfloat16" in path else torch.float32
    sequences = sequences_of(config, [1, 17, 90, 131])
    for sequence in sequences:
        sequence.inputs = sequence.inputs.to(dtype).float()
    attention = make(config, path)
    for layer in range(config.layers):
        found = whole_run(attention, config, layer, sequences, (1, 2, 8, 9, 40), dtype, layer)
        for sequence, rows in zip(sequences, found, strict=True):
            difference = rows.double() - dense(config, layer, sequence.inputs)
            assert float(difference.abs().max()) < PATHS[path], layer


@pytest.mark.parametrize("path", ["kernels", "kernels invariant"])
@pytest.mark.parametrize("name", ["plain", "cap and sinks", "latent"])
def test_the_kernels_agree_where_they_suit_and_are_left_elsewhere(name: str, path: str) -> None:
    pytest.importorskip("triton")
    config = config_of(**CONFIGS[name])
    sequences = sequences_of(config, [2, 26])
    for layer in range(config.layers):
        attention = make(config, path)
        assert isinstance(attention, PagedAttention)
        assert attention.paged == (name != "latent")
        found = whole_run(attention, config, layer, sequences, (3, 9, 40), seed=layer)
        for sequence, rows in zip(sequences, found, strict=True):
            difference = rows.double() - dense(config, layer, sequence.inputs)
            assert float(difference.abs().max()) < 2e-5, layer


@pytest.mark.parametrize("path", ["native", "native float16", "torch invariant"])
@pytest.mark.parametrize("name", ["cap and sinks", "latent", "latent, many heads", "plain"])
def test_a_row_has_the_same_bits_however_it_comes(name: str, path: str) -> None:
    """In one piece by itself, row by row, and in pieces beside others."""
    config = config_of(**CONFIGS[name])
    sequences = sequences_of(config, [150, 37, 64, 3])
    run = functools.partial(whole_run, config=config)
    for layer in range(config.layers):
        alone = [
            run(make(config, path), layer=layer, sequences=[s], cuts=(999,))[0] for s in sequences
        ]
        single = run(make(config, path), layer=layer, sequences=sequences[:1], cuts=(1,))
        assert torch.equal(single[0], alone[0])
        for seed in range(3):
            found = run(
                make(config, path),
                layer=layer,
                sequences=sequences,
                cuts=(1, 3, 7, 16, 50),
                seed=seed,
            )
            for mine, other in zip(alone, found, strict=True):
                assert torch.equal(mine, other), (layer, seed)


@pytest.mark.parametrize("path", ["native", "native float16", "torch", "torch invariant"])
def test_what_was_written_over_before_the_window_never_reaches_a_result(path: str) -> None:
    """Places that no row of a step sees may hold anything, on pages that they share with places
    that are seen."""
    config = config_of(**CONFIGS["cap and sinks"])
    (sequence,) = sequences_of(config, [150])
    clean, spoiled = make(config, path), make(config, path)
    for layer, kind in enumerate(config.kinds):
        if not kind.window:
            continue
        for attention in (clean, spoiled):
            step(attention, config, layer, [(sequence, 0, 100)], torch.float32)
        unseen = Text(torch.full_like(sequence.inputs, torch.nan), sequence.pages)
        step(spoiled, config, layer, [(unseen, 0, 101 - kind.window)], torch.float32)
        for start, end in ((100, 101), (101, 104), (104, 150)):
            work = [(sequence, start, end)]
            expected = step(clean, config, layer, work, torch.float32)[0]
            found = step(spoiled, config, layer, work, torch.float32)[0]
            assert torch.equal(found, expected), (layer, start)
