"""Attention over pages on a GPU: how Triton's kernels are launched.

``paged_kernels.py`` has the kernels, ``paged_parts.py`` what uses them in a step. Kernels are
imported with the first launch, since Triton is there only where torch was built for a GPU.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import torch

from ds4trio.engine.attention_parts import Span

__all__ = [
    "SPLIT",
    "Tiling",
    "attend_chunks",
    "attend_rows",
    "chunk_blocks",
    "chunk_tiling",
    "has_kernels",
    "partial_bytes",
    "row_tiling",
    "store_rows",
]

SPLIT = 256
"""Positions that one program attends for a row. It is the same for every row and every step, so
that sums run in the same order in any company; short enough for one long row to fill a GPU."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a kernel cuts its work.

    Attributes:
        rows: queries times heads that a program holds, a power of two, at least 16.
        tile: positions that it looks at together, likewise; a divisor of ``SPLIT``.
        warps, stages: of the program; stages are loads in flight.
    """

    rows: int
    tile: int
    warps: int
    stages: int


def has_kernels(device: torch.device) -> bool:
    """Whether the kernels run on a device: CUDA, with Triton installed."""
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


@functools.cache
def _kernels() -> ModuleType:
    from ds4trio.engine import paged_kernels

    return paged_kernels


def partial_bytes(heads: int, width: int, splits: int) -> int:
    """Memory that ``attend_rows`` takes for a row while it has several splits."""
    return heads * splits * (_power_of_two(16, width) + 2) * 4


def _power_of_two(least: int, number: int) -> int:
    return max(least, 1 << (number - 1).bit_length())


def row_tiling(group: int, width: int, dtype: torch.dtype) -> Tiling:
    """For one query per row; ``group`` heads share a key/value head of ``width`` dimensions."""
    rows = _power_of_two(16, group)
    if dtype == torch.float32:
        return Tiling(rows, 32 if width <= 64 else 16, warps=4, stages=2)
    return Tiling(rows, 64 if width <= 128 else 32, warps=4, stages=3 if width <= 128 else 2)


def chunk_tiling(group: int, width: int, dtype: torch.dtype) -> Tiling:
    """For many queries of a sequence."""
    if dtype == torch.float32:
        # Without tensor cores a program holds its sums in registers, and there are not many.
        rows = 32 if width <= 64 else 16
        return Tiling(_power_of_two(rows, group), rows, warps=4, stages=1)
    if width <= 128:
        return Tiling(_power_of_two(64, group), 64, warps=4, stages=2)
    return Tiling(_power_of_two(32, group), 32, warps=4, stages=1)


def store_rows(
    cached_keys: torch.Tensor,
    cached_values: torch.Tensor,
    pages: torch.Tensor,
    offsets: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
) -> None:
    """Store rows of keys and values in their pages, in one launch.

    Args:
        cached_keys: a layer's, [pages, kv_heads, head_dim, page_size], of any strides.
        cached_values: a layer's, [pages, page_size, kv_heads, head_dim], contiguous in head_dim.
        pages, offsets: int32 or int64 [rows].
        keys, values: [rows, kv_heads, head_dim], contiguous in head_dim.
    """
    rows, heads, width = keys.shape
    _kernels().store_kernel[(rows, heads)](
        keys,
        values,
        cached_keys,
        cached_values,
        pages,
        offsets,
        keys.stride(0),
        keys.stride(1),
        values.stride(0),
        values.stride(1),
        cached_keys.stride(0),
        cached_keys.stride(3),
        cached_keys.stride(1),
        cached_keys.stride(2),
        cached_values.stride(0),
        cached_values.stride(1),
        cached_values.stride(2),
        WIDTH=width,
        PADDED=_power_of_two(16, width),
        num_warps=1,
    )


def attend_rows(
    queries: torch.Tensor,
    cached_keys: torch.Tensor,
    cached_values: torch.Tensor,
    tables: torch.Tensor,
    lengths: torch.Tensor,
    *,
    splits: int,
    merged: bool = False,
    window: int = 0,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
    tiling: Tiling | None = None,
    split: int = SPLIT,
) -> torch.Tensor:
    """One query per row over the pages of its sequence.

    Args:
        queries: [rows, heads, head_dim], scaled, contiguous in head_dim.
        cached_keys, cached_values: a layer's, as in ``store_rows``.
        tables: int32 [rows, pages], the pages of each row's sequence in order.
        lengths: int32 [rows], how many positions each row sees, at least 1.
        splits: parts of ``split`` positions that the longest row has; more are allowed.
        merged: take the way of several splits also where there is one, so that every step runs the
            same compiled code.
        window: see only the last so many positions; 0 sees all.
        soft_cap: scores become ``soft_cap * tanh(score / soft_cap)``; 0 leaves them.
        sinks: float32 [heads], a score per head whose value is zero; None for none.

    Returns:
        [rows, heads * head_dim], in the queries' dtype.
    """
    rows, heads, width = queries.shape
    kv_heads, page_size = cached_keys.shape[1], cached_keys.shape[3]
    group = heads // kv_heads
    tiling = tiling or row_tiling(group, width, queries.dtype)
    padded = _power_of_two(16, width)
    result = queries.new_empty((rows, heads * width))
    alone = splits == 1 and not merged
    # With one split there is nothing to put together; the kernel wants pointers all the same.
    numbers = torch.float32
    partial = result if alone else queries.new_empty((rows, heads, splits, padded), dtype=numbers)
    tops = result if alone else queries.new_empty((rows, heads, splits), dtype=numbers)
    totals = result if alone else torch.empty_like(tops)
    kernels = _kernels()
    kernels.row_kernel[(rows, kv_heads, splits)](
        queries,
        cached_keys,
        cached_values,
        tables,
        lengths,
        result if sinks is None else sinks,
        partial,
        tops,
        totals,
        result,
        queries.stride(0),
        queries.stride(1),
        *_strides(cached_keys, cached_values),
        tables.stride(0),
        tables.stride(1),
        splits,
        GROUP=group,
        ROWS=tiling.rows,
        PAGE=page_size,
        TILE=tiling.tile,
        SPLIT=split,
        ALONE=alone,
        WIDTH=width,
        PADDED=padded,
        WINDOW=window,
        SOFT_CAP=soft_cap,
        HAS_SINKS=sinks is not None,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    if not alone:
        kernels.merge_kernel[(rows, heads)](
            partial,
            tops,
            totals,
            lengths,
            result if sinks is None else sinks,
            result,
            splits,
            SPLIT=split,
            WIDTH=width,
            PADDED=padded,
            HAS_SINKS=sinks is not None,
            num_warps=1,
        )
    return result


def attend_chunks(
    queries: torch.Tensor,
    cached_keys: torch.Tensor,
    cached_values: torch.Tensor,
    tables: torch.Tensor,
    blocks: torch.Tensor,
    *,
    window: int = 0,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
    tiling: Tiling | None = None,
) -> torch.Tensor:
    """Consecutive queries of one or several sequences, each over its own past.

    Args:
        queries, cached_keys, cached_values, window, soft_cap, sinks: as in ``attend_rows``.
        tables: int32 [sequences, pages].
        blocks: int32 [blocks, 4], from ``chunk_blocks`` with the same tiling.

    Returns:
        [rows, heads * head_dim], in the queries' dtype.
    """
    rows, heads, width = queries.shape
    kv_heads, page_size = cached_keys.shape[1], cached_keys.shape[3]
    group = heads // kv_heads
    tiling = tiling or chunk_tiling(group, width, queries.dtype)
    result = queries.new_empty((rows, heads * width))
    _kernels().chunk_kernel[(len(blocks), kv_heads)](
        queries,
        cached_keys,
        cached_values,
        tables,
        blocks,
        result if sinks is None else sinks,
        result,
        queries.stride(0),
        queries.stride(1),
        *_strides(cached_keys, cached_values),
        tables.stride(0),
        tables.stride(1),
        GROUP=group,
        ROWS=tiling.rows,
        PAGE=page_size,
        TILE=tiling.tile,
        WIDTH=width,
        PADDED=_power_of_two(16, width),
        WINDOW=window,
        SOFT_CAP=soft_cap,
        HAS_SINKS=sinks is not None,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    return result


def chunk_blocks(spans: Sequence[Span], queries_each: int) -> list[tuple[int, int, int, int]]:
    """Cut spans, whose rows lie one after the other, into blocks of so many queries.

    Returns:
        For each block its first row, that row's position, its rows, and the number of its span; the
        blocks with the longest past first, so that no long one is left for the end.
    """
    blocks = []
    first = 0
    for number, span in enumerate(spans):
        for done in range(0, span.count, queries_each):
            count = min(queries_each, span.count - done)
            blocks.append((first + done, span.start + done, count, number))
        first += span.count
    return sorted(blocks, key=lambda block: -block[1])


def _strides(cached_keys: torch.Tensor, cached_values: torch.Tensor) -> tuple[int, ...]:
    key, value = cached_keys.stride, cached_values.stride
    return key(0), key(3), key(1), key(2), value(0), value(1), value(2)
