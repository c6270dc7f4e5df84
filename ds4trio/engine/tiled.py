"""Products on a GPU in which a row has the same bits in any company: how kernels are launched.

``tiled_kernels.py`` has the kernels; they are imported with the first launch, as in ``paged.py``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from types import ModuleType

import torch

from ds4trio.engine.activation import Activation, gated
from ds4trio.engine.norm import RMSNorm

__all__ = ["Tile", "TiledGated", "TiledLinear", "multiply", "normalise", "product_tile"]


@dataclass(frozen=True, slots=True)
class Tile:
    """How a product is cut; powers of two, at least 16.

    Attributes:
        rows, columns: of the result that a program computes.
        depth: inputs that it looks at together.
        warps, stages: of the program; stages are loads in flight.
    """

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


@functools.cache
def _kernels() -> ModuleType:
    from ds4trio.engine import tiled_kernels

    return tiled_kernels


def product_tile(dtype: torch.dtype) -> Tile:
    """The one tile of a dtype, for any number of rows."""
    if dtype == torch.float32:
        # Without tensor cores a program holds its sums in registers.
        return Tile(32, 32, 32, warps=4, stages=2)
    return Tile(64, 64, 64, warps=4, stages=4)


def multiply(
    rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, tile: Tile | None = None
) -> torch.Tensor:
    """``rows weight^T + bias``, summed in float32.

    Args:
        rows: [rows, in].
        weight: [out, in], contiguous.
        bias: [out] or None.
        tile: that of the dtype if None.

    Returns:
        [rows, out], in the rows' dtype.
    """
    outputs, inputs = weight.shape
    tile = tile or product_tile(weight.dtype)
    result = rows.new_empty((len(rows), outputs))
    grid = -(-len(rows) // tile.rows), -(-outputs // tile.columns)
    _kernels().product_kernel[grid](
        rows.contiguous(),
        weight,
        weight if bias is None else bias,
        result,
        len(rows),
        INPUTS=inputs,
        OUTPUTS=outputs,
        HAS_BIAS=bias is not None,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        DEPTH=tile.depth,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return result


def normalise(rows: torch.Tensor, norm: RMSNorm) -> torch.Tensor:
    """What ``norm(rows)`` is, [rows, in], computed in float32."""
    result = torch.empty_like(rows, memory_format=torch.contiguous_format)
    inputs = rows.shape[1]
    _kernels().norm_kernel[(len(rows),)](
        rows.contiguous(),
        norm.weight,
        result,
        norm.epsilon,
        INPUTS=inputs,
        PADDED=1 << (inputs - 1).bit_length(),
        num_warps=4,
    )
    return result


class TiledLinear:
    """``Linear`` on CUDA.

    Args:
        weight: [out, in].
        bias: [out] or None.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight.contiguous()
        self._bias = bias

    def __call__(self, rows: torch.Tensor, norm: RMSNorm | None = None) -> torch.Tensor:
        if norm is not None:
            rows = normalise(rows, norm)
        return multiply(rows, self._weight, self._bias)

    def add_to(self, hidden: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return hidden.add_(self(rows))

    def rows(self, numbers: torch.Tensor) -> torch.Tensor:
        return self._weight.index_select(0, numbers)


class TiledGated:
    """``Gated`` on CUDA.

    Args:
        weight: [2 * width, in], gates first.
        bias: [2 * width] or None.
        activation: of the gates.
    """

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, activation: Activation = "silu"
    ) -> None:
        self._activation = activation
        self._product = TiledLinear(weight, bias)

    def __call__(self, rows: torch.Tensor, norm: RMSNorm | None = None) -> torch.Tensor:
        return self.combined(self._product(rows, norm))

    def apart(self, rows: torch.Tensor, norm: RMSNorm | None = None) -> torch.Tensor:
        return self._product(rows, norm)

    def combined(self, both: torch.Tensor) -> torch.Tensor:
        return gated(self._activation, *both.chunk(2, -1))
