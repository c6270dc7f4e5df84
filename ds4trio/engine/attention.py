"""Attention over paged keys and values, for any mix of decode rows and prefill chunks: what the
decoder asks for, and one way of doing it with torch's tensors. On a CPU, ``native`` has another.

Every row sees the positions of its own sequence up to its own, and nothing else: what a page holds
beyond a sequence's length, a former owner's NaN for instance, never reaches a result.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ds4trio.engine.attention_parts import (
    Chunk,
    LoneRow,
    Part,
    RowsApart,
    RowsGathered,
    Scoring,
    Span,
)
from ds4trio.engine.kv_cache import KVCache
from ds4trio.engine.linear import ROUNDED, activation_dtype, is_native
from ds4trio.engine.paged import has_kernels, store_rows
from ds4trio.engine.paged_parts import kernels_suit, paged_parts
from ds4trio.engine.rope import Rotary
from ds4trio.engine.streams import PagedStreams
from ds4trio.models.config import ModelConfig

__all__ = [
    "Attention",
    "Cache",
    "PagedAttention",
    "PagedPlan",
    "Plan",
    "Span",
    "cache_dtype",
    "make_attention",
]

ROW_BY_ROW = 8
"""Spans of at most this many rows are attended row by row: it costs them less than a product of
their own, and a row's bits are then the same however its sequence was cut."""

PADDING = 512
"""Positions of padding that rows of unequal length may have together before they are split into
two groups: about what the calls of one more group cost."""


class Plan(Protocol):
    """What is the same for all layers of a step; each ``Attention`` has its own kind."""


class Attention(Protocol):
    """The cache of keys and values, and attention over it."""

    def order(self, spans: Sequence[Span]) -> list[int]:
        """The order in which a step's spans attend best."""
        ...

    def plan(self, spans: Sequence[Span]) -> Plan:
        """Prepare the indices of a step. The rows of the step are those of the spans, in turn."""
        ...

    def attend(
        self, layer: int, plan: Any, inputs: torch.Tensor, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Rotate queries and keys, store the rows' keys and values, then attend.

        Args:
            layer: of the decoder; the config says which window and rotation it has.
            plan: of this step.
            inputs: [rows, heads * head_dim + kv_heads * (head_dim + value_dim)]: queries, scaled,
                keys and values.
            sinks: float32 [heads], a score more for each head, whose value is zero; None for none.

        Returns:
            [rows, heads * value_dim].
        """
        ...


Cache = Attention | PagedStreams
"""What a decoder is given: which of the two goes with its layers, the config says."""


def cache_dtype(dtype: str, device: torch.device, *, batch_invariant: bool = False) -> torch.dtype:
    """In which keys and values are kept: as they come; by a CPU's own kernels in float32, but where
    weights are rounded, and in float16, in float16 if the processor converts it. What that changes
    is far below the rounding."""
    if not _on_own_kernels(dtype, device, batch_invariant):
        return activation_dtype(dtype)
    if dtype in (*ROUNDED, "float16"):
        from ds4trio.engine.native.vector import HALVES

        return torch.float16 if HALVES else torch.float32
    return torch.float32


def _on_own_kernels(dtype: str, device: torch.device, batch_invariant: bool) -> bool:
    if is_native(dtype, device):
        return True
    # What torch has over many rows does not keep their bits, and one row at a time is far slower.
    return batch_invariant and device.type == "cpu" and not has_kernels(device)


def make_attention(
    config: ModelConfig,
    *,
    context_length: int,
    pages: int,
    page_size: int,
    dtype: str,
    device: torch.device,
    batch_invariant: bool = False,
) -> Cache:
    """The kind of attention that suits the device.

    Args:
        config: of the model.
        context_length: positions that a sequence can have.
        pages: of the cache.
        page_size: positions in each.
        dtype: of the products, as ``make_linear`` has them.
        device: where everything is computed.
        batch_invariant: a row has the same bits in any company, also where that costs time.
    """
    if config.compressed is not None:
        return PagedStreams(
            config,
            context_length=context_length,
            pages=pages,
            page_size=page_size,
            dtype=activation_dtype(dtype),
            device=device,
        )
    kind = cache_dtype(dtype, device, batch_invariant=batch_invariant)
    if _on_own_kernels(dtype, device, batch_invariant):
        from ds4trio.engine.native.paged import NativeAttention

        return NativeAttention(
            config, context_length=context_length, pages=pages, page_size=page_size, dtype=kind
        )
    cache = KVCache(config, pages=pages, page_size=page_size, dtype=kind, device=device)
    return PagedAttention(config, cache, context_length, batch_invariant=batch_invariant)


@dataclass(frozen=True, slots=True)
class PagedPlan:
    """What is the same for all layers of a step.

    Attributes:
        rotations: of the rows, for each of the model's rotary embeddings.
        pages, offsets: int64 [rows], where each row's key and value go; int32 does for kernels.
        parts: the rows again, cut by the way they attend; together they are all rows, in order.
    """

    rotations: tuple[torch.Tensor, ...]
    pages: torch.Tensor
    offsets: torch.Tensor
    parts: tuple[Part, ...]


class PagedAttention:
    """``Attention`` on any device and in any floating dtype: in kernels of our own on CUDA, else in
    torch's operations.

    Args:
        config: of the model.
        cache: the pages.
        context_length: positions that a sequence can have.
        paged: use the kernels of ``paged.py``, for heads that suit them; None where the device has
            them.
        batch_invariant: attend every row by itself, in the same way in every step.

    Attributes:
        cache, batch_invariant: what it was made with.
        paged: whether it uses the kernels.
    """

    def __init__(
        self,
        config: ModelConfig,
        cache: KVCache,
        context_length: int,
        *,
        paged: bool | None = None,
        batch_invariant: bool = False,
    ) -> None:
        self.cache = cache
        self._config = config
        self._heads = config.heads
        self._device = cache.keys.device
        # Products of complex numbers may be rounded in another way at the end of a vector.
        complex_numbers = False if batch_invariant else None
        self._rotaries = [
            Rotary(rope, context_length, self._device, complex_numbers=complex_numbers)
            for rope in config.ropes
        ]
        able = has_kernels(self._device) if paged is None else paged
        self.paged = able and kernels_suit(config)
        self.batch_invariant = batch_invariant

    @staticmethod
    def order(spans: Sequence[Span]) -> list[int]:
        """The order in which a step's spans attend best: short ones by length, then chunks."""
        return sorted(
            range(len(spans)),
            key=lambda i: (spans[i].count > ROW_BY_ROW, -spans[i].end),
        )

    def plan(self, spans: Sequence[Span]) -> PagedPlan:
        """See ``Attention``."""
        size = self.cache.page_size
        positions = [p for span in spans for p in range(span.start, span.end)]
        places = [s.pages[p // size] for s in spans for p in range(s.start, s.end)]
        where = torch.tensor(positions, dtype=torch.int64)
        return self.plan_over(
            where.to(self._device),
            torch.tensor(places, dtype=torch.int64, device=self._device),
            (where % size).to(self._device),
            tuple(self._cut(spans)),
        )

    def plan_over(
        self,
        positions: torch.Tensor,
        pages: torch.Tensor,
        offsets: torch.Tensor,
        parts: tuple[Part, ...],
    ) -> PagedPlan:
        """A plan from indices on the device (int32 or int64 [rows]) and the parts of its rows."""
        rotations = tuple(rotary.at(positions) for rotary in self._rotaries)
        return PagedPlan(rotations, pages, offsets, parts)

    def attend(
        self,
        layer: int,
        plan: PagedPlan,
        inputs: torch.Tensor,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See ``Attention``."""
        kv_heads, head_dim = self.cache.keys.shape[2:4]
        rows, width = len(inputs), (self._heads + kv_heads) * head_dim
        turned = inputs[:, :width].view(rows, -1, head_dim)
        values = inputs[:, width:].view(rows, kv_heads, -1)
        kind = self._config.kind(layer)
        if kind.rope is not None:
            turned = self._rotaries[kind.rope].turn(turned, plan.rotations[kind.rope])
        queries, keys = turned[:, :-kv_heads], turned[:, -kv_heads:]
        scoring = Scoring(kind.window, self._config.attention_soft_cap, sinks)
        if self.paged:
            cached = self.cache.keys[layer], self.cache.values[layer]
            store_rows(*cached, plan.pages, plan.offsets, keys, values)
        else:
            self.cache.write(layer, plan.pages, plan.offsets, keys, values)
        if len(plan.parts) == 1:
            return plan.parts[0].attend(self.cache, layer, queries, keys, values, scoring)
        return torch.cat(
            [
                part.attend(
                    self.cache,
                    layer,
                    queries[part.rows],
                    keys[part.rows],
                    values[part.rows],
                    scoring,
                )
                for part in plan.parts
            ]
        )

    def _cut(self, spans: Sequence[Span]) -> Iterator[Part]:
        if self.paged:
            yield from paged_parts(
                spans,
                self.cache,
                self._heads,
                row_by_row=None if self.batch_invariant else ROW_BY_ROW,
            )
            return
        if self.batch_invariant:
            every = [(s.pages, end) for s in spans for end in range(s.start + 1, s.end + 1)]
            yield RowsApart(slice(0, len(every)), every, self.cache)
            return
        row = 0
        for short, run in itertools.groupby(spans, lambda span: span.count <= ROW_BY_ROW):
            if not short:
                for span in run:
                    yield Chunk(slice(row, row + span.count), span, self.cache)
                    row += span.count
                continue
            lone = [(s.pages, end) for s in run for end in range(s.start + 1, s.end + 1)]
            for group in _groups(lone):
                rows = slice(row, row + len(group))
                yield RowsGathered(rows, group, self.cache)
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
