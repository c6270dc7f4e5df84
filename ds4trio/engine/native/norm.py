"""RMSNorm of rows or of heads (arXiv:1910.07467) by itself, where no product takes it along."""

from __future__ import annotations

import math

import numpy as np
import torch
from numba.types import float32, void

from ds4trio.engine.native.compiled import compiled
from ds4trio.engine.native.vector import PANEL, sum_of_squares

__all__ = ["normalise"]

_rows = float32[:, :, :]


@compiled(void(_rows, float32[::1], float32))
def _normalise(rows, weight, epsilon):
    width = rows.shape[2]
    whole = width // PANEL * PANEL
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            row = rows[i, j]
            total = sum_of_squares(row.ctypes.data, whole)
            for k in range(whole, width):
                total += row[k] * row[k]
            factor = np.float32(1.0) / np.float32(math.sqrt(total / np.float32(width) + epsilon))
            for k in range(width):
                row[k] = row[k] * factor * weight[k]


def normalise(rows: torch.Tensor, weight: torch.Tensor, epsilon: float) -> None:
    """Normalise in place.

    Args:
        rows: float32 [rows, parts, width], each part by itself; without gaps along width.
        weight: float32 [width].
        epsilon: added to the mean square.
    """
    _normalise(rows.numpy(), weight.numpy(), epsilon)
