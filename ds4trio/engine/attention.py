"""Attention over paged keys and values, for any mix of decode rows and prefill chunks.

Every row sees the positions of its own sequence up to its own, and nothing else: what a page holds
beyond a sequence's length, a former owner's NaN for instance, never reaches a result.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn import functional

from ds4trio.engine.kv_cache import KVCache

__all__ = ["AttentionPlan", "PagedAttention", "Span"]

ROW_BY_ROW = 8
"""Spans of at most this many rows are attended row by row: it costs them less than a product of
their own, and a row's bits are then the same however its sequence was cut."""

PADDING = 512
"""Positions of padding that rows of unequal length may have together before they are split into
two groups: about what the calls of one more group cost."""

SOFTMAX_LANES = 16
"""From this width on, torch's softmax of a row has the same bits whether the row ends there or is
continued with minus infinity (checked for AVX2 and AVX-512)."""


_LoneRow = tuple[Sequence[int], int]
"""The pages of a row's sequence, and how many of its positions the row sees."""


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive positions of one sequence that are evaluated in a step.

    Attributes:
        pages: the sequence's pages, in order, enough for ``start + count`` positions.
        start: the first position.
        count: how many, at least 1.
    """

    pages: Sequence[int]
    start: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.count


class _Part(Protocol):
    """Some consecutive rows of a step, and how they attend."""

    rows: slice

    def attend(
        self,
        cache: KVCache,
        layer: int,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> torch.Tensor:
        """Shapes as in ``PagedAttention.attend``, for these rows only."""
        ...


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
    parts: tuple[_Part, ...]


class PagedAttention:
    """Plans a step and attends, layer by layer.

    Args:
        cache: the pages.
        heads: query heads, a multiple of the cache's key/value heads.
    """

    def __init__(self, cache: KVCache, heads: int) -> None:
        self._cache = cache
        self._heads = heads
        self._device = cache.keys.device
        in_place = self._device.type == "cpu" and cache.keys.dtype == torch.float32
        self._row_part = _RowsInPlace if in_place else _RowsGathered

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

    def _cut(self, spans: Sequence[Span]) -> Iterator[_Part]:
        row = 0
        for short, run in itertools.groupby(spans, lambda span: span.count <= ROW_BY_ROW):
            if not short:
                for span in run:
                    yield _Chunk(slice(row, row + span.count), span, self._cache)
                    row += span.count
                continue
            lone = [(s.pages, end) for s in run for end in range(s.start + 1, s.end + 1)]
            for group in _groups(lone):
                rows = slice(row, row + len(group))
                yield self._row_part(rows, group, self._cache, self._heads)
                row = rows.stop


def _groups(lone: Sequence[_LoneRow]) -> Iterator[list[_LoneRow]]:
    """Cut rows, roughly by falling length, into groups with little padding each."""
    group: list[_LoneRow] = []
    padding = 0
    for row in lone:
        if group:
            padding += abs(group[0][1] - row[1])
            if padding > PADDING:
                yield group
                group, padding = [], 0
        group.append(row)
    yield group


class _RowGrid:
    """Which pages and places a group of rows reads, padded to the longest row.

    Attributes:
        pages: int64 [rows, most pages]; a shorter row repeats its first page.
        slots: int64 [rows, width], page * page_size + offset of each position; a shorter row
            repeats its first position, so that no row reads what is not its own.
        width: positions that the softmax runs over.
        beyond: bool [rows, 1, width], true past a row's length; None where no row has padding.
    """

    def __init__(self, group: Sequence[_LoneRow], page_size: int) -> None:
        longest = max(length for _, length in group)
        most = -(-longest // page_size)
        held = [list(pages[: -(-length // page_size)]) for pages, length in group]
        self.pages = torch.tensor([own + own[:1] * (most - len(own)) for own in held])
        self.width = longest if longest >= SOFTMAX_LANES else most * page_size
        lengths = torch.tensor([length for _, length in group]).unsqueeze(1)
        positions = torch.arange(self.width).expand(len(group), -1)
        beyond = positions >= lengths
        own = positions.masked_fill(beyond, 0)
        self.slots = self.pages.gather(1, own // page_size) * page_size + own % page_size
        self.beyond = beyond.unsqueeze(1) if bool(beyond.any()) else None


class _RowsInPlace:
    """One query per row, on the CPU in float32, reading keys and values where they lie.

    Both products are weighted sums of table rows, the operation that embedding bags are made for:
    scores of a page are the sum, over head_dim, of its key rows weighted by the query, and the
    result is the sum of value rows weighted by the probabilities. Each sum runs in order and in one
    thread, so a row has the same bits in any company.
    """

    def __init__(
        self,
        rows: slice,
        group: Sequence[_LoneRow],
        cache: KVCache,
        heads: int,
    ) -> None:
        self.rows = rows
        grid = _RowGrid(group, cache.page_size)
        kv_heads, width = cache.keys.shape[2:4]
        count, most = grid.pages.shape
        shared = heads // kv_heads
        kv_head = torch.arange(kv_heads).view(1, -1, 1, 1)
        pages = (grid.pages.view(count, 1, 1, most) * kv_heads + kv_head).int() * width
        key_rows = pages.unsqueeze(-1) + torch.arange(width, dtype=torch.int32)
        self._key_rows = key_rows.expand(-1, -1, shared, -1, -1).reshape(-1)
        self._key_bags = torch.arange(0, len(self._key_rows), width, dtype=torch.int32)
        value_rows = (grid.slots.view(count, 1, 1, -1) * kv_heads + kv_head).int()
        self._value_rows = value_rows.expand(-1, -1, shared, -1).reshape(-1)
        self._value_bags = torch.arange(0, len(self._value_rows), grid.width, dtype=torch.int32)
        self._beyond = grid.beyond
        self._width = grid.width
        self._pages = most

    def attend(
        self,
        cache: KVCache,
        layer: int,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> torch.Tensor:
        count, heads, width = queries.shape
        weights = queries.unsqueeze(2).expand(-1, -1, self._pages, -1).reshape(-1)
        table = cache.keys[layer].view(-1, cache.page_size)
        scores = _weighted_sums(table, self._key_rows, self._key_bags, weights)
        scores = scores.view(count, heads, -1)[..., : self._width]
        if self._beyond is not None:
            scores = scores.masked_fill(self._beyond, -torch.inf)
        probabilities = scores.softmax(-1).view(-1)
        table = cache.values[layer].view(-1, width)
        mixed = _weighted_sums(table, self._value_rows, self._value_bags, probabilities)
        return mixed.view(count, heads * width)


def _weighted_sums(
    table: torch.Tensor, rows: torch.Tensor, bags: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """For each bag, the sum of ``weights[i] * table[rows[i]]``; bags begin at these indices."""
    return torch.embedding_bag(table, rows, bags, False, 0, False, weights)[0]


class _RowsGathered:
    """One query per row, on any device and in any dtype, over a gathered copy."""

    def __init__(
        self,
        rows: slice,
        group: Sequence[_LoneRow],
        cache: KVCache,
        heads: int,
    ) -> None:
        self.rows = rows
        grid = _RowGrid(group, cache.page_size)
        device = cache.keys.device
        self._pages = grid.pages.to(device)
        self._slots = grid.slots.to(device)
        self._width = grid.width
        self._beyond = None if grid.beyond is None else grid.beyond.unsqueeze(1).to(device)

    def attend(
        self,
        cache: KVCache,
        layer: int,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> torch.Tensor:
        count, heads, width = queries.shape
        held = cache.keys[layer][self._pages].permute(0, 2, 3, 1, 4).flatten(-2)
        grouped = queries.view(count, held.shape[1], -1, width)
        scores = (grouped @ held)[..., : self._width].float()
        if self._beyond is not None:
            scores = scores.masked_fill(self._beyond, -torch.inf)
        probabilities = scores.softmax(-1).to(queries.dtype)
        mixed = probabilities @ cache.values[layer].flatten(0, 1)[self._slots].transpose(1, 2)
        return mixed.reshape(count, heads * width)


class _Chunk:
    """Many consecutive queries of one sequence: causal attention over a copy of its own past."""

    def __init__(self, rows: slice, span: Span, cache: KVCache) -> None:
        self.rows = rows
        self._end = span.end
        self._pages: torch.Tensor | None = None
        self._mask: torch.Tensor | None = None
        if span.start:
            device, dtype = cache.keys.device, cache.keys.dtype
            held = span.pages[: -(-span.end // cache.page_size)]
            self._pages = torch.tensor(held, dtype=torch.int64, device=device)
            mask = torch.full((span.count, span.end), -torch.inf, dtype=dtype, device=device)
            self._mask = mask.triu_(span.start + 1)

    def attend(
        self,
        cache: KVCache,
        layer: int,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> torch.Tensor:
        if self._pages is None:
            past, past_values = keys.transpose(0, 1), values.transpose(0, 1)
        else:
            past, past_values = cache.read(layer, self._pages)
            past, past_values = past[:, : self._end], past_values[:, : self._end]
        mixed = functional.scaled_dot_product_attention(
            queries.transpose(0, 1).unsqueeze(0),
            past.unsqueeze(0),
            past_values.unsqueeze(0),
            attn_mask=self._mask,
            is_causal=self._mask is None,
            scale=1.0,
            enable_gqa=True,
        )
        return mixed[0].transpose(0, 1).flatten(1)
