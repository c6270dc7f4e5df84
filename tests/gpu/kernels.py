"""Times of the attention kernels alone, over caches larger than any processor's."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from ds4trio.engine.attention_parts import Span
from ds4trio.engine.paged import (
    SPLIT,
    Tiling,
    attend_chunks,
    attend_rows,
    chunk_blocks,
    chunk_tiling,
    row_tiling,
)
from tests.gpu.machine import Machine

__all__ = ["Heads", "time_chunks", "time_rows"]

PAGE = 16
CACHE_BYTES = 2**30
Heads = tuple[int, int, int]
"""Query heads, key/value heads, head_dim."""


class _Pages:
    """Layers of random keys and values, and tables over them, pages in no order."""

    def __init__(self, machine: Machine, heads: Heads, sequences: int, length: int) -> None:
        self.machine = machine
        self.heads, self.kv_heads, self.width = heads
        per_sequence = -(-length // PAGE)
        count = sequences * per_sequence
        shape = (count, PAGE, self.kv_heads, self.width)
        size = 2 * count * PAGE * self.kv_heads * self.width * machine.dtype.itemsize
        budget = 1 if machine.rehearsal else CACHE_BYTES
        layers = max(1, min(128, budget // size))
        self.layers = [
            (self._random(*shape).permute(0, 2, 3, 1), self._random(*shape)) for _ in range(layers)
        ]
        order = torch.randperm(count, device=machine.device).to(torch.int32)
        self.tables = order.view(sequences, per_sequence)

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, device=self.machine.device, dtype=self.machine.dtype)

    def queries(self, rows: int) -> torch.Tensor:
        queries: torch.Tensor = self._random(rows, self.heads, self.width) * self.width**-0.5
        return queries


def time_rows(
    machine: Machine,
    heads: Heads,
    rows: int,
    length: int,
    *,
    tiling: Tiling | None = None,
    split: int = SPLIT,
) -> dict[str, Any]:
    """Decode rows of one length."""
    pages = _Pages(machine, heads, rows, length)
    queries = pages.queries(rows)
    lengths = torch.full((rows,), length, dtype=torch.int32, device=machine.device)
    tiling = tiling or row_tiling(heads[0] // heads[1], heads[2], machine.dtype)

    def work() -> None:
        for keys, values in pages.layers:
            attend_rows(
                queries,
                keys,
                values,
                pages.tables,
                lengths,
                splits=-(-length // split),
                split=split,
                tiling=tiling,
            )

    each = machine.repeated(work) / len(pages.layers)
    read = 2 * rows * length * heads[1] * heads[2] * machine.dtype.itemsize
    return {
        "heads": heads,
        "rows": rows,
        "length": length,
        "split": split,
        "tiling": str(tiling),
        "microseconds": each * 1000,
        "bytes_per_second": read / each * 1000,
    }


def time_chunks(
    machine: Machine,
    heads: Heads,
    sequences: int,
    start: int,
    count: int,
    *,
    tiling: Tiling | None = None,
) -> dict[str, Any]:
    """Chunks of so many queries from a start on; beside torch's attention where start is 0."""
    pages = _Pages(machine, heads, sequences, start + count)
    queries = pages.queries(sequences * count)
    group = heads[0] // heads[1]
    tiling = tiling or chunk_tiling(group, heads[2], machine.dtype)
    spans = [Span([], start, count)] * sequences
    blocks = torch.tensor(
        chunk_blocks(spans, tiling.rows // group), dtype=torch.int32, device=machine.device
    )

    def work() -> None:
        for keys, values in pages.layers[:4]:
            attend_chunks(queries, keys, values, pages.tables, blocks, tiling=tiling)

    each = machine.repeated(work) / len(pages.layers[:4])
    seen = sequences * count * (2 * start + count + 1) / 2
    operations = 4 * heads[0] * heads[2] * seen
    result = {
        "heads": heads,
        "sequences": sequences,
        "start": start,
        "count": count,
        "tiling": str(tiling),
        "microseconds": each * 1000,
        "flop_per_second": operations / each * 1000,
    }
    if start == 0:
        shape = (sequences, -1, count, heads[2])
        dense = [torch.randn(*shape[:1], n, *shape[2:]) for n in (heads[0], heads[1], heads[1])]
        query, key, value = (x.to(machine.device, machine.dtype) for x in dense)

        def theirs() -> None:
            functional.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=True
            )

        result["torch_microseconds"] = machine.repeated(theirs) * 1000
    return result
