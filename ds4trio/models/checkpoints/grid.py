"""Numbers that are multiplied by scales, one scale for each rectangle of a matrix.

A rectangle is the whole matrix, a row (output), a run of inputs in a row, or a block of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ds4trio.models.checkpoints.assembly import Assembly
from ds4trio.models.checkpoints.packing import CHUNK

if TYPE_CHECKING:
    import torch

__all__ = ["SCALES", "Grid", "grid_of", "scaled", "scales_of"]

SCALES = ("F32", "F16", "BF16", "F8_E8M0", "U8")
"""Types of scales; the last is a power of two by its exponent alone, as F8_E8M0 is."""


@dataclass(frozen=True, slots=True)
class Grid:
    """How scales lie over a matrix [outputs, inputs], or a stack of such.

    Attributes:
        scales: their shape, [outputs / height, inputs / width], both rounded up; of a stack,
            [n, ...].
        height, width: of a rectangle.
    """

    scales: tuple[int, ...]
    height: int
    width: int


def grid_of(
    name: str, weight: tuple[int, ...], scales: tuple[int, ...], block: Sequence[int] | None
) -> Grid:
    """Find how scales lie over a weight.

    Args:
        name: of the scales, for errors.
        weight: its shape, [outputs, inputs] or [n, outputs, inputs].
        scales: their shape: one number, one for each output, or as many as there are blocks.
        block: height and width of a block, as the settings have it; None if they do not say.

    Raises:
        ModelUnavailable: they do not fit.
    """
    shape = scales
    if all(size == 1 for size in scales):
        shape = (1,) * len(weight)
    elif len(scales) == len(weight) - 1 and scales == weight[:-1]:
        shape = (*scales, 1)
    height, width = block or (0, 0)
    fits = len(shape) == len(weight) and all(
        have in (1, want) for have, want in zip(shape[:-2], weight[:-2], strict=True)
    )
    if not fits:
        Assembly.refuse(name, f"{list(scales)} scales do not fit a weight of {list(weight)}")
    sides = [
        _side(size, count, length)
        for size, count, length in zip(weight[-2:], shape[-2:], (height, width), strict=True)
    ]
    if not all(sides):
        Assembly.refuse(name, f"{list(scales)} scales do not fit a weight of {list(weight)}")
    return Grid(shape, *sides)


def _side(size: int, count: int, length: int) -> int:
    """How long a rectangle is, of ``count`` over ``size``; 0 if they do not fit."""
    if count == 1:
        return max(size, 1)
    if length > 0 and -(-size // length) == count:
        return length
    return size // count if count and size % count == 0 and length <= 0 else int(count == size)


def scales_of(raw: torch.Tensor, grid: Grid) -> torch.Tensor:
    """Scales as they are stored -> float32 in the grid's shape."""
    import torch

    if raw.dtype == torch.uint8:
        raw = raw.view(torch.float8_e8m0fnu)
    return raw.float().view(grid.scales)


def scaled(
    weight: torch.Tensor, scales: torch.Tensor, grid: Grid, zeros: torch.Tensor | None = None
) -> torch.Tensor:
    """``(weight - zero) * scale`` in float32.

    Args:
        weight: of one byte each, [outputs, inputs], or a stack [n, outputs, inputs].
        scales: float32 in the grid's shape.
        grid: how they lie.
        zeros: float32, lies like the scales.
    """
    import torch

    result = torch.empty(weight.shape, dtype=torch.float32)
    if weight.ndim > 2:
        for index in range(len(weight)):
            place = index if len(scales) > 1 else 0
            zero = None if zeros is None else zeros[place]
            result[index] = scaled(weight[index], scales[place], grid, zero)
        return result
    table, stored, out = _table(weight.dtype), weight.view(torch.uint8).numpy(), result.numpy()
    step = max(1, CHUNK // max(weight.shape[1], 1))
    for begin in range(0, len(out), step):
        rows = slice(begin, begin + step)
        np.take(table, stored[rows], out=out[rows], mode="clip")
        if zeros is not None:
            out[rows] -= _spread(zeros, grid, rows, *out.shape)
        out[rows] *= _spread(scales, grid, rows, *out.shape)
    return result


def _spread(
    scales: torch.Tensor, grid: Grid, rows: slice, outputs: int, inputs: int
) -> NDArray[np.float32]:
    """The scales of some rows, one for each input, or one alone for all of them."""
    values: NDArray[np.float32] = scales.numpy()
    if len(values) > 1:
        values = values[np.arange(*rows.indices(outputs)) // grid.height]
    if values.shape[1] > 1:
        values = np.repeat(values, grid.width, axis=1)[:, :inputs]
    return values


@cache
def _table(dtype: torch.dtype) -> NDArray[np.float32]:
    """A byte -> the number of this type that it is, float32 [256]."""
    import torch

    table: NDArray[np.float32] = torch.arange(256, dtype=torch.uint8).view(dtype).float().numpy()
    return table
