"""The parts of a step that attend with the kernels of ``paged.py``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from ds4trio.engine.attention_parts import LoneRow, Scoring, Span
from ds4trio.engine.kv_cache import KVCache
from ds4trio.engine.paged import (
    SPLIT,
    attend_chunks,
    attend_rows,
    chunk_blocks,
    chunk_tiling,
    partial_bytes,
)
from ds4trio.models.config import ModelConfig

__all__ = ["PagedChunks", "PagedRows", "kernels_suit", "paged_parts"]


PARTIAL_MEMORY = 2**28
"""Bytes for the splits of rows that attend together, where all rows of a step go row by row."""


WIDEST = 256
"""Dimensions of a head that a program of the kernels can hold."""


def kernels_suit(config: ModelConfig) -> bool:
    """Whether the kernels can do a model's attention: keys and values of one width, not too wide.
    Others attend in torch's operations."""
    return config.head_dim == config.value_dim <= WIDEST


def _table_rows(tables: Sequence[Sequence[int]], device: torch.device) -> torch.Tensor:
    padded = np.zeros((len(tables), max(map(len, tables))), dtype=np.int32)
    for row, table in zip(padded, tables, strict=True):
        row[: len(table)] = table
    return torch.from_numpy(padded).to(device)


class PagedRows:
    """One query per row: decode rows, and chunks that are short.

    Args:
        rows: of the step.
        tables, lengths, splits, merged: as in ``attend_rows``.
    """

    def __init__(
        self,
        rows: slice,
        tables: torch.Tensor,
        lengths: torch.Tensor,
        splits: int,
        *,
        merged: bool = False,
    ) -> None:
        self.rows = rows
        self._tables = tables
        self._lengths = lengths
        self._splits = splits
        self._merged = merged

    @classmethod
    def of(
        cls, first: int, lone: Sequence[LoneRow], cache: KVCache, *, merged: bool = False
    ) -> PagedRows:
        """For rows from ``first`` on."""
        device = cache.keys.device
        held = [pages[: -(-length // cache.page_size)] for pages, length in lone]
        lengths = [length for _, length in lone]
        return cls(
            slice(first, first + len(lone)),
            _table_rows(held, device),
            torch.tensor(lengths, dtype=torch.int32).to(device),
            -(-max(lengths) // SPLIT),
            merged=merged,
        )

    def attend(
        self,
        cache: KVCache,
        layer: int,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scoring: Scoring,
    ) -> torch.Tensor:
        return attend_rows(
            queries,
            cache.keys[layer],
            cache.values[layer],
            self._tables,
            self._lengths,
            splits=self._splits,
            merged=self._merged,
            window=scoring.window,
            soft_cap=scoring.soft_cap,
            sinks=scoring.sinks,
        )


class PagedChunks:
    """All chunks of a step that are longer, in one launch.

    Args:
        first: their first row in the step.
        spans: of the chunks; their rows lie one after the other.
        cache: the pages.
        heads: query heads.
    """

    def __init__(self, first: int, spans: Sequence[Span], cache: KVCache, heads: int) -> None:
        self.rows = slice(first, first + sum(span.count for span in spans))
        kv_heads, width = cache.keys.shape[2:4]
        group = heads // kv_heads
        device = cache.keys.device
        self._tiling = chunk_tiling(group, width, cache.keys.dtype)
        blocks = chunk_blocks(spans, self._tiling.rows // group)
        self._blocks = torch.tensor(blocks, dtype=torch.int32).to(device)
        held = [span.pages[: -(-span.end // cache.page_size)] for span in spans]
        self._tables = _table_rows(held, device)

    def attend(
        self,
        cache: KVCache,
        layer: int,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scoring: Scoring,
    ) -> torch.Tensor:
        return attend_chunks(
            queries,
            cache.keys[layer],
            cache.values[layer],
            self._tables,
            self._blocks,
            window=scoring.window,
            soft_cap=scoring.soft_cap,
            sinks=scoring.sinks,
            tiling=self._tiling,
        )


def paged_parts(
    spans: Sequence[Span], cache: KVCache, heads: int, *, row_by_row: int | None
) -> Iterator[PagedRows | PagedChunks]:
    """The parts of a step whose short spans come first, as ``PagedAttention.order`` has them.

    Args:
        row_by_row: spans of at most so many rows go row by row. None: all do, and run the same
            compiled code in every step, so that a row's bits do not depend on how its sequence is
            cut.
    """
    if row_by_row is None:
        yield from _every_row(spans, cache, heads)
        return
    short = [span for span in spans if span.count <= row_by_row]
    long = [span for span in spans if span.count > row_by_row]
    lone = [(s.pages, end) for s in short for end in range(s.start + 1, s.end + 1)]
    if lone:
        yield PagedRows.of(0, lone, cache)
    if long:
        yield PagedChunks(len(lone), long, cache, heads)


def _every_row(spans: Sequence[Span], cache: KVCache, heads: int) -> Iterator[PagedRows]:
    lone = [(s.pages, end) for s in spans for end in range(s.start + 1, s.end + 1)]
    splits = -(-max(length for _, length in lone) // SPLIT)
    together = max(1, PARTIAL_MEMORY // partial_bytes(heads, cache.keys.shape[3], splits))
    for first in range(0, len(lone), together):
        yield PagedRows.of(first, lone[first : first + together], cache, merged=True)
