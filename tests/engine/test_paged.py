"""The kernels over pages against dense attention in float64.

On a machine without a GPU Triton's interpreter runs them; with one they are compiled.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from ds4trio.engine.attention_parts import Span
from ds4trio.engine.paged import (
    Tiling,
    attend_chunks,
    attend_rows,
    chunk_blocks,
    store_rows,
)

pytest.importorskip("triton")

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
# The interpreter multiplies bfloat16 wrongly.
HALVES = [torch.float16, torch.bfloat16] if CUDA else [torch.float16]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}
ROWS = Tiling(rows=16, tile=16, warps=4, stages=2)
CHUNKS = Tiling(rows=32, tile=32, warps=4, stages=2)
SPLIT = 32


@dataclass(frozen=True)
class Options:
    """What a layer asks of attention."""

    window: int = 0
    soft_cap: float = 0.0
    sinks: torch.Tensor | None = None


class Pages:
    """Sequences with random keys and values, in pages in no order, NaN in all the rest."""

    def __init__(
        self,
        lengths: Sequence[int],
        *,
        heads: int = 6,
        kv_heads: int = 2,
        width: int = 16,
        page_size: int = 16,
        dtype: torch.dtype = torch.float32,
        keys_by_dimension: bool = False,
    ) -> None:
        self.heads = heads
        self.width = width
        self.dtype = dtype
        self._generator = torch.Generator().manual_seed(sum(lengths) + heads + page_size)
        counts = [-(-length // page_size) for length in lengths]
        total = sum(counts) + 3
        by_position = torch.full((total, page_size, kv_heads, width), torch.nan, dtype=dtype)
        self.cached_values = by_position.clone().to(DEVICE)
        self.cached_keys = by_position.to(DEVICE).permute(0, 2, 3, 1)
        if keys_by_dimension:
            self.cached_keys = self.cached_keys.contiguous()
        free = torch.randperm(total, generator=self._generator).tolist()
        self.tables = [[free.pop() for _ in range(count)] for count in counts]
        self.keys = [self.random(length, kv_heads) for length in lengths]
        self.values = [self.random(length, kv_heads) for length in lengths]
        for table, keys, values in zip(self.tables, self.keys, self.values, strict=True):
            places = torch.arange(len(keys))
            pages, offsets = torch.tensor(table)[places // page_size], places % page_size
            self.cached_keys[pages, :, :, offsets] = keys.to(DEVICE)
            self.cached_values[pages, offsets] = values.to(DEVICE)

    def random(self, rows: int, heads: int) -> torch.Tensor:
        normal = torch.randn(rows, heads, self.width, generator=self._generator)
        return normal.to(self.dtype)

    def queries(self, rows: int) -> torch.Tensor:
        scaled: torch.Tensor = self.random(rows, self.heads) * self.width**-0.5
        return scaled

    def table_rows(self, sequences: Sequence[int]) -> torch.Tensor:
        """Tables side by side, filled up with a page that the rows may not look at."""
        tables = [self.tables[i] for i in sequences]
        foreign = len(self.cached_keys) - 1
        longest = max(map(len, tables)) + 2
        rows = [table + [foreign] * (longest - len(table)) for table in tables]
        return torch.tensor(rows, dtype=torch.int32, device=DEVICE)

    def rows(
        self, queries: torch.Tensor, sequences: Sequence[int], splits: int, options: Options
    ) -> torch.Tensor:
        lengths = [len(self.keys[i]) for i in sequences]
        sinks = options.sinks
        return attend_rows(
            queries.to(DEVICE),
            self.cached_keys,
            self.cached_values,
            self.table_rows(sequences),
            torch.tensor(lengths, dtype=torch.int32, device=DEVICE),
            splits=splits,
            window=options.window,
            soft_cap=options.soft_cap,
            sinks=None if sinks is None else sinks.to(DEVICE),
            tiling=ROWS,
            split=SPLIT,
        ).cpu()

    def chunks(
        self, queries: torch.Tensor, parts: Sequence[tuple[int, int, int]], options: Options
    ) -> torch.Tensor:
        """Parts are sequence, first position, count; their queries lie in turn."""
        spans = [Span(self.tables[i], start, count) for i, start, count in parts]
        blocks = chunk_blocks(spans, CHUNKS.rows // (self.heads // self.cached_keys.shape[1]))
        sinks = options.sinks
        return attend_chunks(
            queries.to(DEVICE),
            self.cached_keys,
            self.cached_values,
            self.table_rows([i for i, _, _ in parts]),
            torch.tensor(blocks, dtype=torch.int32, device=DEVICE),
            window=options.window,
            soft_cap=options.soft_cap,
            sinks=None if sinks is None else sinks.to(DEVICE),
            tiling=CHUNKS,
        ).cpu()

    def expected(
        self, query: torch.Tensor, sequence: int, length: int, options: Options
    ) -> torch.Tensor:
        """One query over the first ``length`` positions, plainly."""
        group = self.heads // self.cached_keys.shape[1]
        keys = self.keys[sequence][:length].double().repeat_interleave(group, 1)
        values = self.values[sequence][:length].double().repeat_interleave(group, 1)
        scores = torch.einsum("hd,nhd->hn", query.double(), keys)
        if options.soft_cap:
            scores = options.soft_cap * torch.tanh(scores / options.soft_cap)
        if options.window:
            scores[:, : max(0, length - options.window)] = -torch.inf
        if options.sinks is not None:
            scores = torch.cat((scores, options.sinks.double().unsqueeze(1)), 1)
        weights = scores.softmax(1)[:, :length]
        return torch.einsum("hn,nhd->hd", weights, values).flatten()


def assert_near(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert found.dtype == dtype
    difference = float((found.double() - expected).abs().max())
    assert difference < TOLERANCE[dtype], difference


SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "no groups": {"heads": 2, "kv_heads": 2},
    "one key head": {"heads": 5, "kv_heads": 1, "width": 24},
    "small pages": {"page_size": 4},
    "odd pages": {"page_size": 5, "heads": 4},
    "keys by dimension": {"keys_by_dimension": True},
}
OPTIONS = {
    "plain": Options(),
    "window": Options(window=20),
    "narrow window": Options(window=1),
    "soft cap": Options(soft_cap=0.7),
    "sinks": Options(sinks=torch.linspace(-1.0, 2.0, 6)),
    "all": Options(window=33, soft_cap=2.0, sinks=torch.linspace(-1.0, 2.0, 6)),
}
LENGTHS = [1, 16, 32, 33, 70]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_rows_of_ragged_lengths_attend_as_dense_attention_does(shape: dict[str, Any]) -> None:
    pages = Pages(LENGTHS, **shape)
    queries = pages.queries(len(LENGTHS))
    found = pages.rows(queries, range(len(LENGTHS)), 3, Options())
    expected = [pages.expected(queries[i], i, n, Options()) for i, n in enumerate(LENGTHS)]
    assert_near(found, torch.stack(expected), torch.float32)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_rows_attend_with_windows_caps_and_sinks(options: Options) -> None:
    """With a window, the first splits of the long rows are empty."""
    pages = Pages([3, 31, 70])
    queries = pages.queries(3)
    found = pages.rows(queries, range(3), 3, options)
    expected = [pages.expected(queries[i], i, len(pages.keys[i]), options) for i in range(3)]
    assert_near(found, torch.stack(expected), torch.float32)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_chunks_attend_as_dense_attention_does(options: Options) -> None:
    pages = Pages([40, 61, 7])
    parts = [(1, 41, 20), (0, 0, 40), (2, 3, 4)]
    queries = pages.queries(64)
    found = pages.chunks(queries, parts, options)
    places = [(i, place + 1) for i, start, count in parts for place in range(start, start + count)]
    expected = [
        pages.expected(query, *place, options) for query, place in zip(queries, places, strict=True)
    ]
    assert_near(found, torch.stack(expected), torch.float32)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_chunk_of_any_shape(shape: dict[str, Any]) -> None:
    pages = Pages([45], **shape)
    queries = pages.queries(25)
    found = pages.chunks(queries, [(0, 20, 25)], Options())
    expected = [pages.expected(queries[i], 0, 21 + i, Options()) for i in range(25)]
    assert_near(found, torch.stack(expected), torch.float32)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_half_precision_sums_in_float32(dtype: torch.dtype) -> None:
    pages = Pages([40, 3], dtype=dtype)
    queries = pages.queries(2)
    found = pages.rows(queries, [0, 1], 2, Options())
    expected = [pages.expected(queries[i], i, n, Options()) for i, n in enumerate((40, 3))]
    assert_near(found, torch.stack(expected), dtype)
    queries = pages.queries(20)
    found = pages.chunks(queries, [(0, 20, 20)], Options())
    expected = [pages.expected(queries[i], 0, 21 + i, Options()) for i in range(20)]
    assert_near(found, torch.stack(expected), dtype)


def test_a_row_has_the_same_bits_in_any_company() -> None:
    """Alone, among others, and with more splits than it needs."""
    pages = Pages(LENGTHS)
    queries = pages.queries(len(LENGTHS))
    together = pages.rows(queries, range(len(LENGTHS)), 4, Options())
    for i, length in enumerate(LENGTHS):
        alone = pages.rows(queries[i : i + 1], [i], -(-length // SPLIT), Options())
        assert torch.equal(alone[0], together[i])


def test_a_chunk_is_the_same_however_it_is_cut() -> None:
    """In its bits, where products of matrices do not depend on where a row lies in them; the
    interpreter's do."""
    pages = Pages([50, 21])
    queries = pages.queries(50)
    whole = pages.chunks(queries, [(0, 0, 50)], Options())
    for cut in (9, 32, 37):
        first = pages.chunks(queries[:cut], [(0, 0, cut)], Options())
        beside = torch.cat((pages.queries(21), queries[cut:]))
        rest = pages.chunks(beside, [(1, 0, 21), (0, cut, 50 - cut)], Options())[21:]
        assert_near(torch.cat((first, rest)), whole.double(), torch.float32)
        assert torch.equal(torch.cat((first, rest)), whole) or not CUDA


@pytest.mark.parametrize("by_dimension", [False, True])
def test_storing_touches_only_its_places(by_dimension: bool) -> None:
    pages = Pages([11], page_size=4, width=24, keys_by_dimension=by_dimension)
    keys, values = pages.cached_keys.clone(), pages.cached_values.clone()
    new_keys, new_values = pages.random(3, 2).to(DEVICE), pages.random(3, 2).to(DEVICE)
    to, offsets = torch.tensor([0, 2, 2], device=DEVICE), torch.tensor([3, 0, 1], device=DEVICE)
    store_rows(pages.cached_keys, pages.cached_values, to, offsets, new_keys, new_values)
    keys[to, :, :, offsets] = new_keys
    values[to, offsets] = new_values
    assert torch.equal(pages.cached_keys.nan_to_num(7.5), keys.nan_to_num(7.5))
    assert torch.equal(pages.cached_values.nan_to_num(7.5), values.nan_to_num(7.5))


def test_blocks_cover_every_row_once_and_the_longest_past_comes_first() -> None:
    spans = [Span([], 0, 30), Span([], 100, 21), Span([], 7, 1)]
    blocks = chunk_blocks(spans, 10)
    rows = sorted(row for first, _, count, _ in blocks for row in range(first, first + count))
    assert rows == list(range(52))
    assert [place for _, place, _, _ in blocks] == [120, 110, 100, 20, 10, 7, 0]
    assert blocks[0] == (50, 120, 1, 1)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the assembler is there for x86-64")
def test_the_kernels_compile_for_gpus_of_two_generations() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.compile_kernels"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
