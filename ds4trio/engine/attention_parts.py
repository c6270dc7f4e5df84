"""The ways in which some rows of a step attend, each for the rows that it suits.

No part reads a position that is not its sequence's own: padding repeats the sequence's first page
or position, and its scores are minus infinity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn import functional

from ds4trio.engine.kv_cache import KVCache

__all__ = ["Chunk", "Part", "RowsApart", "RowsGathered", "Span"]

SOFTMAX_LANES = 16
"""From this width on, torch's softmax of a row has the same bits whether the row ends there or is
continued with minus infinity (checked for AVX2 and AVX-512)."""


APART = 256
"""Positions that ``RowsApart`` looks at together, at least a page."""


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
    ) -> torch.Tensor:
        """Attend, for these rows only, whose keys and values are stored already.

        Args:
            cache: the pages.
            layer: of the decoder.
            queries: [rows, heads, head_dim], rotated and scaled.
            keys, values: [rows, kv_heads, head_dim], keys rotated.

        Returns:
            [rows, heads * head_dim].
        """
        ...


class _RowGrid:
    """Which pages and places a group of rows reads, padded to the longest row.

    Attributes:
        pages: int64 [rows, most pages]; a shorter row repeats its first page.
        slots: int64 [rows, width], page * page_size + offset of each position; a shorter row
            repeats its first position, so that no row reads what is not its own.
        width: positions that the softmax runs over.
        beyond: bool [rows, 1, width], true past a row's length; None where no row has padding.
    """

    def __init__(self, group: Sequence[LoneRow], page_size: int) -> None:
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


class RowsGathered:
    """One query per row, on any device and in any dtype, over a gathered copy."""

    def __init__(
        self,
        rows: slice,
        group: Sequence[LoneRow],
        cache: KVCache,
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


class RowsApart:
    """One query after the other, each over parts of fixed size in their order: every operation has
    one shape, so that a row's bits depend on its own sequence alone, on any device. Slow."""

    def __init__(self, rows: slice, lone: Sequence[LoneRow], cache: KVCache) -> None:
        self.rows = rows
        size, device = cache.page_size, cache.keys.device
        most = max(1, APART // size)
        width = most * size
        self._counts = [-(-length // width) for _, length in lone]
        pages: list[list[int]] = []
        for (own, length), count in zip(lone, self._counts, strict=True):
            held = [*own[: -(-length // size)], *list(own[:1]) * (most * count)]
            pages.extend(held[most * part : most * (part + 1)] for part in range(count))
        places = torch.cat([torch.arange(count * width) for count in self._counts]).view(-1, width)
        ends = torch.tensor([length for _, length in lone])
        beyond = places >= ends.repeat_interleave(torch.tensor(self._counts)).unsqueeze(1)
        table = torch.tensor(pages)
        offsets = torch.arange(width)
        slots = table[:, offsets // size] * size + offsets % size
        # What is beyond repeats the first place of its part, which every part has.
        slots = torch.where(beyond, slots[:, :1], slots)
        self._pages, self._slots, self._beyond = (
            table.to(device),
            slots.to(device),
            beyond.to(device),
        )

    def attend(
        self,
        cache: KVCache,
        layer: int,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> torch.Tensor:
        count, heads, width = queries.shape
        mixed = queries.new_empty((count, heads * width))
        part = 0
        for row, parts in enumerate(self._counts):
            query = queries[row].reshape(keys.shape[1], -1, width).clone()
            mixed[row] = self._attend_row(cache, layer, query, range(part, part + parts)).flatten()
            part += parts
        return mixed

    def _attend_row(
        self, cache: KVCache, layer: int, query: torch.Tensor, parts: range
    ) -> torch.Tensor:
        """The running softmax of flash attention (arXiv:2205.14135), [kv_heads, group, width]."""
        top = query.new_full((*query.shape[:2], 1), -torch.inf, dtype=torch.float32)
        total = torch.zeros_like(top)
        sums = torch.zeros_like(query, dtype=torch.float32)
        for part in parts:
            held = cache.keys[layer].index_select(0, self._pages[part])
            scores = (query @ held.permute(1, 2, 0, 3).flatten(-2)).float()
            scores.masked_fill_(self._beyond[part], -torch.inf)
            higher = torch.maximum(top, scores.amax(-1, keepdim=True))
            weights, fade = (scores - higher).exp(), (top - higher).exp()
            value = cache.values[layer].flatten(0, 1).index_select(0, self._slots[part])
            more = weights.to(query.dtype) @ value.transpose(0, 1).contiguous()
            total = total * fade + weights.sum(-1, keepdim=True)
            sums = sums * fade + more.float()
            top = higher
        return (sums / total).to(query.dtype)


class Chunk:
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
