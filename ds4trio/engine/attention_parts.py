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

__all__ = ["Chunk", "Part", "RowsGathered", "Span"]

SOFTMAX_LANES = 16
"""From this width on, torch's softmax of a row has the same bits whether the row ends there or is
continued with minus infinity (checked for AVX2 and AVX-512)."""


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
