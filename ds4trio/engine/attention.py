"""Attention over paged keys and values, for any mix of decode rows and prefill chunks.

Every row sees the positions of its own sequence up to its own, and nothing else: what a page holds
beyond a sequence's length, a former owner's NaN for instance, never reaches a result.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from ds4trio.engine.attention_parts import (
    Chunk,
    LoneRow,
    Part,
    RowsGathered,
    RowsInPlace,
    Span,
)
from ds4trio.engine.kv_cache import KVCache
from ds4trio.engine.paged import has_kernels, store_rows
from ds4trio.engine.paged_parts import paged_parts

__all__ = ["AttentionPlan", "PagedAttention", "Span"]

ROW_BY_ROW = 8
"""Spans of at most this many rows are attended row by row: it costs them less than a product of
their own, and a row's bits are then the same however its sequence was cut."""

PADDING = 512
"""Positions of padding that rows of unequal length may have together before they are split into
two groups: about what the calls of one more group cost."""


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """What is the same for all layers of a step.

    Attributes:
        positions: int64 [rows], each row's place in its sequence.
        pages, offsets: int64 [rows], where its key and value go.
        parts: the rows again, cut by the way they attend; together they are all rows, in order.
    """

    positions: torch.Tensor
    pages: torch.Tensor
    offsets: torch.Tensor
    parts: tuple[Part, ...]


class PagedAttention:
    """Plans a step and attends, layer by layer.

    Args:
        cache: the pages.
        heads: query heads, a multiple of the cache's key/value heads.
        paged: use the kernels of ``paged.py``; None where the device has them.
    """

    def __init__(self, cache: KVCache, heads: int, *, paged: bool | None = None) -> None:
        self._cache = cache
        self._heads = heads
        self._device = cache.keys.device
        self._paged = has_kernels(self._device) if paged is None else paged
        in_place = self._device.type == "cpu" and cache.keys.dtype == torch.float32
        self._row_part = RowsInPlace if in_place else RowsGathered

    @staticmethod
    def order(spans: Sequence[Span]) -> list[int]:
        """The order in which a step's spans attend best: short ones by length, then chunks."""
        return sorted(
            range(len(spans)),
            key=lambda i: (spans[i].count > ROW_BY_ROW, -spans[i].end),
        )

    def plan(self, spans: Sequence[Span]) -> AttentionPlan:
        """Prepare the indices of a step. The rows of the step are those of the spans, in turn."""
        size = self._cache.page_size
        positions = [p for span in spans for p in range(span.start, span.end)]
        places = [s.pages[p // size] for s in spans for p in range(s.start, s.end)]
        where = torch.tensor(positions, dtype=torch.int64)
        return AttentionPlan(
            positions=where.to(self._device),
            pages=torch.tensor(places, dtype=torch.int64, device=self._device),
            offsets=(where % size).to(self._device),
            parts=tuple(self._cut(spans)),
        )

    def attend(
        self,
        layer: int,
        plan: AttentionPlan,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> torch.Tensor:
        """Store the rows' keys and values, then attend.

        Args:
            layer: of the decoder.
            plan: of this step.
            queries: [rows, heads, head_dim], rotated, and scaled by 1 / sqrt(head_dim).
            keys, values: [rows, kv_heads, head_dim], keys rotated.

        Returns:
            [rows, heads * head_dim].
        """
        if self._paged:
            cached = self._cache.keys[layer], self._cache.values[layer]
            store_rows(*cached, plan.pages, plan.offsets, keys, values)
        else:
            self._cache.write(layer, plan.pages, plan.offsets, keys, values)
        if len(plan.parts) == 1:
            return plan.parts[0].attend(self._cache, layer, queries, keys, values)
        return torch.cat(
            [
                part.attend(
                    self._cache, layer, queries[part.rows], keys[part.rows], values[part.rows]
                )
                for part in plan.parts
            ]
        )

    def _cut(self, spans: Sequence[Span]) -> Iterator[Part]:
        if self._paged:
            yield from paged_parts(spans, self._cache, self._heads, row_by_row=ROW_BY_ROW)
            return
        row = 0
        for short, run in itertools.groupby(spans, lambda span: span.count <= ROW_BY_ROW):
            if not short:
                for span in run:
                    yield Chunk(slice(row, row + span.count), span, self._cache)
                    row += span.count
                continue
            lone = [(s.pages, end) for s in run for end in range(s.start + 1, s.end + 1)]
            for group in _groups(lone):
                rows = slice(row, row + len(group))
                yield self._row_part(rows, group, self._cache, self._heads)
                row = rows.stop


def _groups(lone: Sequence[LoneRow]) -> Iterator[list[LoneRow]]:
    """Cut rows, roughly by falling length, into groups with little padding each."""
    group: list[LoneRow] = []
    padding = 0
    for row in lone:
        if group:
            padding += abs(group[0][1] - row[1])
            if padding > PADDING:
                yield group
                group, padding = [], 0
        group.append(row)
    yield group
