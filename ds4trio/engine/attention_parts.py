"""The ways in which some rows of a step attend, each for the rows that it suits.

No part reads a position that is not its sequence's own: padding repeats the sequence's first page
or position, and its scores are minus infinity.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn import functional

from ds4trio.engine.kv_cache import KVCache

__all__ = ["Chunk", "LoneRow", "Part", "RowsApart", "RowsGathered", "Scoring", "Span"]

SOFTMAX_LANES = 16
"""From this width on, torch's softmax of a row has the same bits whether the row ends there or is
continued with minus infinity (checked for AVX2 and AVX-512)."""


APART = 256
"""Positions that ``RowsApart`` looks at together, at least a page."""


SCORES = 2**24
"""Scores that ``Chunk`` holds at a time where torch's fused attention cannot be used."""


LoneRow = tuple[Sequence[int], int]
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


@dataclass(frozen=True, slots=True)
class Scoring:
    """What a layer makes of scores.

    Attributes:
        window: a row sees so many of the last positions, its own among them; 0 sees all.
        soft_cap: scores become ``soft_cap * tanh(score / soft_cap)``; 0 leaves them.
        sinks: float32 [heads], for each a score more whose value is zero; None for none.
    """

    window: int = 0
    soft_cap: float = 0.0
    sinks: torch.Tensor | None = None

    def capped(self, scores: torch.Tensor) -> torch.Tensor:
        """Scores in float32, capped."""
        scores = scores.float()
        return self.soft_cap * (scores / self.soft_cap).tanh() if self.soft_cap else scores

    def weights(self, scores: torch.Tensor) -> torch.Tensor:
        """Softmax of scores, float32 [..., kv_heads, heads / kv_heads, rows, positions]. The sink
        comes first: where it stands must not depend on how many positions others see."""
        if self.sinks is None:
            return scores.softmax(-1)
        sinks = self.sinks.view(*scores.shape[-4:-2], 1, 1).expand(*scores.shape[:-1], 1)
        return torch.cat((sinks, scores), -1).softmax(-1)[..., 1:]

    def first(self, position: int) -> int:
        """The first position that the row at a position sees."""
        return max(0, position - self.window + 1) if self.window else 0


class Part(Protocol):
    """Some consecutive rows of a step, and how they attend."""

    rows: slice

    def attend(
        self,
        cache: KVCache,
        layer: int,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scoring: Scoring,
    ) -> torch.Tensor:
        """Attend, for these rows only, whose keys and values are stored already.

        Args:
            cache: the pages.
            layer: of the decoder.
            queries: [rows, heads, head_dim], rotated and scaled.
            keys, values: [rows, kv_heads, head_dim] and [..., value_dim], keys rotated.
            scoring: of the layer.

        Returns:
            [rows, heads * value_dim].
        """
        ...


class _RowGrid:
    """Which pages and places a group of rows reads, padded to the longest row.

    Attributes:
        pages: int64 [rows, most pages], those that a row sees; a shorter row repeats its first one.
        slots: int64 [rows, width], page * page_size + offset of each position; for those that it
            does not see a row repeats one that it sees, so that none reads what is not its own.
        width: positions that the softmax runs over.
        unseen: bool [rows, 1, 1, 1, width]; None where every row sees all.
    """

    def __init__(self, group: Sequence[LoneRow], cache: KVCache, scoring: Scoring) -> None:
        size, device = cache.page_size, cache.keys.device
        firsts = [scoring.first(length - 1) for _, length in group]
        pages = [
            list(own[first // size : -(-length // size)])
            for (own, length), first in zip(group, firsts, strict=True)
        ]
        starts = torch.tensor([first % size for first in firsts]).unsqueeze(1)
        ends = [
            length - first // size * size for (_, length), first in zip(group, firsts, strict=True)
        ]
        most = max(map(len, pages))
        table = torch.tensor([own + own[:1] * (most - len(own)) for own in pages])
        self.width = max(ends) if max(ends) >= SOFTMAX_LANES else most * size
        places = torch.arange(self.width).expand(len(group), -1)
        unseen = (places >= torch.tensor(ends).unsqueeze(1)) | (places < starts)
        own = torch.where(unseen, starts, places)
        self.slots = (table.gather(1, own // size) * size + own % size).to(device)
        self.pages = table.to(device)
        self.unseen = unseen[:, None, None, None].to(device) if bool(unseen.any()) else None


class RowsGathered:
    """One query per row, on any device and in any dtype, over a gathered copy."""

    def __init__(
        self,
        rows: slice,
        group: Sequence[LoneRow],
        cache: KVCache,
    ) -> None:
        self.rows = rows
        self._group = group
        self._grids: dict[int, _RowGrid] = {}

    def attend(
        self,
        cache: KVCache,
        layer: int,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scoring: Scoring,
    ) -> torch.Tensor:
        grid = self._grids.get(scoring.window)
        if grid is None:
            grid = self._grids[scoring.window] = _RowGrid(self._group, cache, scoring)
        count, _, width = queries.shape
        held = cache.keys[layer][grid.pages].permute(0, 2, 3, 1, 4).flatten(-2)
        grouped = queries.reshape(count, held.shape[1], -1, width)
        scores = scoring.capped((grouped @ held)[..., : grid.width]).unsqueeze(-2)
        if grid.unseen is not None:
            scores = scores.masked_fill(grid.unseen, -torch.inf)
        weights = scoring.weights(scores).squeeze(-2).to(queries.dtype)
        mixed = weights @ cache.values[layer].flatten(0, 1)[grid.slots].transpose(1, 2)
        return mixed.reshape(count, -1)


_Cut = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class RowsApart:
    """One query after the other, each over parts of fixed size in their order: every operation has
    one shape, so that a row's bits depend on its own sequence alone, on any device. Slow."""

    def __init__(self, rows: slice, lone: Sequence[LoneRow], cache: KVCache) -> None:
        self.rows = rows
        self._lone = lone
        self._cuts: dict[int, list[list[_Cut]]] = {}

    def _cut(self, cache: KVCache, row: LoneRow, first: int) -> Iterator[_Cut]:
        """The parts that a row sees, from its first position on: for each its pages, where its
        values are, and which places (bool) are not seen."""
        pages, length = row
        size, device = cache.page_size, cache.keys.device
        most = max(1, APART // size)
        width = most * size
        offsets = torch.arange(width)
        for start in range(first // width * width, length, width):
            held = list(pages[start // size : -(-min(start + width, length) // size)])
            table = torch.tensor(held + held[:1] * (most - len(held)))
            places = start + offsets
            unseen = (places < first) | (places >= length)
            # What is not seen repeats a place that is, which every part has.
            own = torch.where(unseen, max(start, first) - start, offsets)
            yield (
                table.to(device),
                (table[own // size] * size + own % size).to(device),
                unseen.to(device),
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
        count, heads, width = queries.shape
        mixed = queries.new_empty((count, heads * values.shape[-1]))
        if scoring.window not in self._cuts:
            self._cuts[scoring.window] = [
                list(self._cut(cache, row, scoring.first(row[1] - 1))) for row in self._lone
            ]
        for row, parts in enumerate(self._cuts[scoring.window]):
            query = queries[row].reshape(keys.shape[1], -1, width).clone()
            mixed[row] = self._attend_row(cache, layer, query, parts, scoring).flatten()
        return mixed

    @staticmethod
    def _attend_row(
        cache: KVCache,
        layer: int,
        query: torch.Tensor,
        parts: Sequence[_Cut],
        scoring: Scoring,
    ) -> torch.Tensor:
        """The running softmax of flash attention (arXiv:2205.14135), [kv_heads, group, width]; a
        sink is what it has seen before it begins."""
        top = query.new_full((*query.shape[:2], 1), -torch.inf, dtype=torch.float32)
        total = torch.zeros_like(top)
        if scoring.sinks is not None:
            top, total = scoring.sinks.view_as(top), torch.ones_like(top)
        sums = top.new_zeros((*query.shape[:2], cache.values.shape[-1]))
        for pages, slots, unseen in parts:
            held = cache.keys[layer].index_select(0, pages)
            scores = scoring.capped(query @ held.permute(1, 2, 0, 3).flatten(-2))
            scores = scores.masked_fill(unseen, -torch.inf)
            higher = torch.maximum(top, scores.amax(-1, keepdim=True))
            weights, fade = (scores - higher).exp(), (top - higher).exp()
            value = cache.values[layer].flatten(0, 1).index_select(0, slots)
            more = weights.to(query.dtype) @ value.transpose(0, 1).contiguous()
            total = total * fade + weights.sum(-1, keepdim=True)
            sums = sums * fade + more.float()
            top = higher
        return (sums / total).to(query.dtype)


class Chunk:
    """Many consecutive queries of one sequence: causal attention over a copy of its own past."""

    def __init__(self, rows: slice, span: Span, cache: KVCache) -> None:
        self.rows = rows
        self._span = span
        self._unseen: dict[int, torch.Tensor] = {}

    def attend(
        self,
        cache: KVCache,
        layer: int,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scoring: Scoring,
    ) -> torch.Tensor:
        span, first = self._span, scoring.first(self._span.start)
        queries, past, past_values = (x.transpose(0, 1) for x in (queries, keys, values))
        if span.start:
            size = cache.page_size
            held = torch.tensor(span.pages[first // size : -(-span.end // size)])
            seen = slice(first % size, first % size + span.end - first)
            past, past_values = (x[:, seen] for x in cache.read(layer, held.to(keys.device)))
        unseen = self._unseen.get(scoring.window)
        if unseen is None:
            back = torch.arange(span.start, span.end).unsqueeze(1) - torch.arange(first, span.end)
            unseen = (back < 0) | (back >= scoring.window) if scoring.window else back < 0
            unseen = self._unseen[scoring.window] = unseen.to(keys.device)
        if scoring.soft_cap or scoring.sinks is not None or keys.shape[-1] != values.shape[-1]:
            return _attend_plainly(queries, past, past_values, unseen, scoring)
        causal = not span.start and not scoring.window
        mixed = functional.scaled_dot_product_attention(
            queries.unsqueeze(0),
            past.unsqueeze(0),
            past_values.unsqueeze(0),
            attn_mask=None if causal else ~unseen,
            is_causal=causal,
            scale=1.0,
            enable_gqa=True,
        )
        return mixed[0].transpose(0, 1).flatten(1)


def _attend_plainly(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    unseen: torch.Tensor,
    scoring: Scoring,
) -> torch.Tensor:
    """What torch's fused attention does not have, over some rows at a time.

    Args:
        queries: [heads, rows, head_dim].
        keys, values: [kv_heads, positions, head_dim] and [..., value_dim].
        unseen: bool [rows, positions].

    Returns:
        [rows, heads * value_dim].
    """
    heads, count, width = queries.shape
    kv_heads, positions = keys.shape[:2]
    grouped = queries.reshape(kv_heads, heads // kv_heads, count, width)
    by_dimension, values = keys.transpose(1, 2).unsqueeze(1), values.unsqueeze(1)
    together = max(1, SCORES // (heads * positions))
    mixed = []
    for first in range(0, count, together):
        rows = slice(first, first + together)
        scores = scoring.capped(grouped[:, :, rows] @ by_dimension)
        weights = scoring.weights(scores.masked_fill(unseen[rows], -torch.inf))
        mixed.append((weights.to(values.dtype) @ values).flatten(0, 1))
    return torch.cat(mixed, 1).transpose(0, 1).flatten(1)
