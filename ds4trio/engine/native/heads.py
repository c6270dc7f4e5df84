"""Products of every head with a matrix of its own, on a CPU, in one call for all of them.

One product is so small that calling it from Python would take longer than the product itself.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import prange
from numba.types import float32, int64, void
from numba.types import int8 as _int8

from ds4trio.engine.native.compiled import compiled
from ds4trio.engine.native.packed import Packed, pack_weight
from ds4trio.engine.native.products import (
    EIGHT_BITS,
    FINE,
    FOUR_BITS,
    STORE,
    multiply_panels,
)
from ds4trio.engine.native.vector import PANEL, claim
from ds4trio.engine.native.workers import workers

__all__ = ["NativeHeads", "pack_heads"]

FEW = 1 << 18
"""Multiplications that one thread does sooner than it could share them."""

_arguments = (
    float32[:, :, :],
    _int8[:, :, ::1],
    int64,
    float32[:, ::1],
    float32[:, :, :],
)


@compiled(void(*_arguments, int64[::1]))
def _multiply_claimed(rows, weight, kind, scales, out, counter):
    count, heads, inputs = rows.shape
    none = np.empty(0, np.float32)
    own = np.empty((count, inputs), np.float32)
    every = np.empty(2, np.int64)
    head = claim(counter.ctypes.data)
    while head < heads:
        own[:] = rows[:, head]
        every[0], every[1] = 0, weight.shape[1]  # all panels of a head are one claim
        multiply_panels(
            own,
            none,
            np.float32(0.0),
            weight[head],
            kind,
            scales[head],
            none,
            out[:, head],
            STORE,
            every,
        )
        head = claim(counter.ctypes.data)


@compiled(void(*_arguments, int64), parallel=True)
def _multiply(rows, weight, kind, scales, out, workers):
    """Multiply, by so many workers that share the heads.

    Args:
        rows: float32 [rows, heads, inputs], lying as they like.
        weight: int8 [heads, panels, bytes of a panel].
        kind: as for ``products.multiply``.
        scales: float32 [heads, panels * PANEL] for WIDENED, else [heads, 0].
        out: float32 [rows, heads, outputs], lying as it likes.
        workers: threads.
    """
    counter = np.zeros(1, np.int64)
    for _ in prange(workers):
        _multiply_claimed(rows, weight, kind, scales, out, counter)


def pack_heads(weight: torch.Tensor, *, rounded: bool) -> Packed:
    """Bring [heads, outputs, inputs] into panels, of which each head begins a new one."""
    heads, outputs, inputs = weight.shape
    padded = weight.new_zeros((heads, -(-outputs // PANEL) * PANEL, inputs))
    padded[:, :outputs] = weight
    return pack_weight(padded.flatten(0, 1), None, rounded=rounded)


class NativeHeads:
    """``Headwise`` on a CPU. A row has the same bits in any company.

    Args:
        packed: from ``pack_heads``.
        heads: how many.
        fine: where activations are rounded, to 16 bits in place of 8.
    """

    def __init__(self, packed: Packed, heads: int, *, fine: bool) -> None:
        rounded = packed.kind in (FOUR_BITS, EIGHT_BITS)
        self._weights = (
            packed.weight.reshape(heads, -1, packed.weight.shape[1]),
            packed.kind + FINE if fine and rounded else packed.kind,
            packed.scales.reshape(heads, len(packed.scales) // heads),
        )
        self._size = packed.outputs * packed.inputs

    def __call__(self, rows: torch.Tensor, out: torch.Tensor) -> None:
        arguments = (rows.numpy(), *self._weights, out.numpy())
        if len(rows) * self._size < FEW or workers() == 1:
            _multiply_claimed(*arguments, np.zeros(1, np.int64))
        else:
            _multiply(*arguments, workers())
