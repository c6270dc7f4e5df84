"""All experts that rows use, in one call: starting a call for each would take as long as a fast
machine needs to read the weights of one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numba import prange
from numba.types import float32, int8, int64, void

from ds4trio.engine.activation import Activation
from ds4trio.engine.native.compiled import compiled
from ds4trio.engine.native.linear import FEW
from ds4trio.engine.native.packed import Packed, pack_weight
from ds4trio.engine.native.products import (
    CLAIMS,
    EIGHT_BITS,
    FINE,
    FOUR_BITS,
    GATES,
    STORE,
    multiply_panels,
)
from ds4trio.engine.native.vector import PANEL
from ds4trio.engine.native.workers import workers

__all__ = ["NativeExperts", "pack_experts"]


@compiled(
    void(
        float32[:, ::1],
        int64[::1],
        int8[:, ::1],
        int64,
        float32[::1],
        float32[::1],
        float32[:, ::1],
        int64,
        int64,
    ),
    parallel=True,
)
def _multiply_each(rows, starts, weight, kind, scales, bias, out, ending, workers):
    """Each expert's rows with its weights, which lie one after the other; see ``multiply``."""
    experts = len(starts) - 1
    panels = len(weight) // experts
    counters = np.zeros((experts, 2), np.int64)
    counters[:, 1] = max(1, panels // (workers * CLAIMS))
    none = np.empty(0, np.float32)
    for _ in prange(workers):
        for e in range(experts):
            begin, end = starts[e], starts[e + 1]
            if begin < end:
                first, last = e * panels, (e + 1) * panels
                multiply_panels(
                    rows[begin:end],
                    none,
                    np.float32(0.0),
                    weight[first:last],
                    kind,
                    scales[first * PANEL : last * PANEL] if len(scales) else scales,
                    bias[first * PANEL : last * PANEL] if len(bias) else bias,
                    out[begin:end],
                    ending,
                    counters[e],
                )


@compiled(
    void(float32[:, ::1], int64[::1], float32[::1], float32[:, ::1], int64),
    parallel=True,
)
def _add_shares(results, rows, shares, out, workers):
    """Add results times their shares to rows of ``out``, in turn. Workers share the columns, so
    that each number is a sum in that order."""
    width = out.shape[1]
    for worker in prange(workers):
        first, last = width * worker // workers, width * (worker + 1) // workers
        for i in range(len(rows)):
            row, share = rows[i], shares[i]
            for j in range(first, last):
                out[row, j] += results[i, j] * share


class NativeExperts:
    """The experts of a layer on a CPU. A row has the same bits in any company.

    Args:
        gated, down: their products, from ``pack_experts``.
        width: of an expert.
        activation: of the gates.
        fine: where activations are rounded, to 16 bits in place of 8.
    """

    def __init__(
        self, gated: Packed, down: Packed, width: int, activation: Activation, *, fine: bool
    ) -> None:
        self._gated = _numbers(gated, fine)
        self._down = _numbers(down, fine)
        self._width = width
        self._ending = GATES[activation]
        self._size = width * gated.inputs

    def add_to(
        self,
        total: torch.Tensor,
        rows: torch.Tensor,
        starts: torch.Tensor,
        at: torch.Tensor,
        shares: torch.Tensor,
    ) -> None:
        """Add what experts make of rows; as ``Routes`` has the last three.

        Args:
            total: float32 [rows, hidden_size], changed.
            rows: float32 [rows, hidden_size].
        """
        gathered = rows.index_select(0, at)
        middle = rows.new_empty((len(at), self._width))
        results = torch.empty_like(gathered)
        begins = starts.numpy()
        several = workers() if len(at) * self._size >= FEW else 1
        _multiply_each(
            gathered.numpy(), begins, *self._gated, middle.numpy(), self._ending, several
        )
        _multiply_each(middle.numpy(), begins, *self._down, results.numpy(), STORE, several)
        several = workers() if results.numel() >= FEW else 1
        _add_shares(results.numpy(), at.numpy(), shares.numpy(), total.numpy(), several)


def pack_experts(
    weights: Callable[[int], tuple[torch.Tensor, torch.Tensor | None]], count: int, *, rounded: bool
) -> Packed:
    """One product of each expert, in panels one expert after the other.

    Args:
        weights: gives an expert's weight, [out, in], and its bias, [out] or None.
        count: of experts.
        rounded: as for ``pack_weight``. All have the same form: four bits where that loses nothing
            in any of them, float32 where none of fewer bits holds all.
    """
    parts: list[Packed] = []
    for less, readable in ((rounded, False), (rounded, True), (False, False)):
        parts = [pack_weight(*weights(i), rounded=less, readable=readable) for i in range(count)]
        if all(part.kind == parts[0].kind for part in parts):
            break
    return Packed(
        count * len(parts[0].weight) * PANEL,
        parts[0].inputs,
        parts[0].kind,
        np.concatenate([part.weight for part in parts]),
        np.concatenate([part.scales for part in parts]),
        np.concatenate([part.bias for part in parts]),
    )


def _numbers(packed: Packed, fine: bool) -> tuple[object, ...]:
    kind = packed.kind
    if fine and kind in (FOUR_BITS, EIGHT_BITS):
        kind += FINE
    return packed.weight, kind, packed.scales, packed.bias
