"""Paged attention and its cache on a CPU, between torch's tensors and the kernels.

Everything here is float32; rows that come in 16 bits are widened, and what becomes of them rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ds4trio.engine.attention_parts import Span
from ds4trio.engine.native.attention import attend, attend_units, prepare, store, store_rows
from ds4trio.engine.native.vector import PANEL, ROWS
from ds4trio.engine.native.workers import workers
from ds4trio.engine.rope import rotations
from ds4trio.errors import ModelUnavailable
from ds4trio.models.config import ModelConfig

__all__ = ["NativeAttention", "NativePlan"]

FEW_ROWS = 16
"""Rows that one thread rotates and stores sooner than it could share them."""

FEW_PRODUCTS = 512 * 15 * 128
"""Numbers that one thread multiplies, with keys and values, sooner than it could share them."""


@dataclass(frozen=True, slots=True)
class NativePlan:
    """What is the same for all layers of a step; the arguments of the kernels, described there."""

    positions: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]
    blocks: npt.NDArray[np.int64]
    tables: npt.NDArray[np.int64]
    workers: int


class NativeAttention:
    """``Attention`` on a CPU, in float32. Keys and values may be kept in float16.

    A row has the same bits in any company.

    Memory of the cache is asked for, not touched: the system provides it as pages come into use.

    Args:
        config: of the model.
        context_length: positions that a sequence can have.
        pages: of the cache.
        page_size: positions in each, a multiple of ``PANEL``.
        dtype: of the cache, float32 or float16.

    Raises:
        ModelUnavailable: the page size is not.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        context_length: int,
        pages: int,
        page_size: int,
        dtype: torch.dtype,
    ) -> None:
        if page_size % PANEL:
            raise ModelUnavailable(f"pages must hold a multiple of {PANEL} positions")
        self._page_size = page_size
        self._heads = config.heads
        self._head_dim = config.head_dim
        self._value_dim = config.value_dim
        self._rows_together = max(1, ROWS * config.kv_heads // config.heads)
        self._few_pairs = FEW_PRODUCTS // (config.heads * (config.head_dim + config.value_dim))
        turns = [rotations(rope, context_length).numpy() for rope in config.ropes]
        # No pairs turn where there is no rotary embedding.
        turns.append(np.empty((context_length, 0, 2), np.float32))
        kinds = [config.kind(layer) for layer in range(config.layers)]
        self._rotations = [turns[-1 if kind.rope is None else kind.rope] for kind in kinds]
        self._windows = [kind.window for kind in kinds]
        self._soft_cap = config.attention_soft_cap
        self._no_sinks = np.full(config.heads, -np.inf, np.float32)
        places = (config.layers, pages, config.kv_heads)
        key_panels, value_panels = page_size // PANEL, -(-config.value_dim // PANEL)
        kind = np.uint16 if dtype == torch.float16 else np.float32
        prepare(halves=dtype == torch.float16)
        self._keys = np.empty((*places, key_panels, config.head_dim, PANEL), kind)
        self._values = np.empty((*places, value_panels, page_size, PANEL), kind)

    def order(self, spans: Sequence[Span]) -> list[int]:
        """As they come."""
        return list(range(len(spans)))

    def plan(self, spans: Sequence[Span]) -> NativePlan:
        """See ``Attention``."""
        size = self._page_size
        positions = np.concatenate([np.arange(span.start, span.end) for span in spans])
        places: list[npt.NDArray[np.int64]] = []
        tables: list[int] = []
        blocks: list[tuple[int, int, int, int]] = []
        row = pairs = 0
        for span in spans:
            own = np.asarray(span.pages[: -(-span.end // size)], np.int64)
            where = np.arange(span.start, span.end)
            places.append(own[where // size] * size + where % size)
            for start in range(span.start, span.end, self._rows_together):
                count = min(self._rows_together, span.end - start)
                blocks.append((row, count, start, len(tables)))
                row += count
            tables.extend(own)
            pairs += span.count * span.end
        return NativePlan(
            positions,
            np.concatenate(places),
            np.array(blocks, np.int64),
            np.array(tables, np.int64),
            1 if pairs < self._few_pairs else workers(),
        )

    def attend(
        self,
        layer: int,
        plan: NativePlan,
        inputs: torch.Tensor,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See ``Attention``."""
        rows = inputs.shape[0]
        queries = np.empty((rows, self._heads, self._head_dim), np.float32)
        stored = (
            inputs.float().numpy(),
            self._rotations[layer],
            plan.positions,
            plan.places,
            queries,
            self._keys[layer],
            self._values[layer],
        )
        if rows < FEW_ROWS or plan.workers == 1:
            store_rows(*stored, 0, rows)
        else:
            store(*stored, plan.workers)
        mixed = np.empty((rows, self._heads * self._value_dim), np.float32)
        attended = (
            queries,
            *stored[-2:],
            plan.blocks,
            plan.tables,
            self._windows[layer],
            self._soft_cap,
            self._no_sinks if sinks is None else sinks.numpy(),
            mixed,
        )
        if plan.workers == 1:
            attend_units(*attended, np.zeros(1, np.int64))
        else:
            attend(*attended, plan.workers)
        return torch.from_numpy(mixed).to(inputs.dtype)
