"""Products in which a row has the same bits in any company, made of the framework's own.

A library chooses how to multiply by the shape, and with it the order of its sums. So every product
here has one shape: rows go in blocks of a fixed number, the last one filled up with zeros, each in
memory of its own. That a row's place in a block and its neighbours do not matter is the library's
doing; ``invariance.py`` looks whether it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch.nn import functional

from ds4trio.engine.activation import Activation, gated
from ds4trio.engine.norm import RMSNorm

__all__ = ["BlockGated", "BlockLinear", "in_blocks"]

BLOCK = 16
"""Rows of a block. Measured in bfloat16 with AVX-512: one row costs up to 1.5 times as much as by
itself, and 128 rows 1.8 times as much as together."""

SHARED_FROM = 32768
"""Numbers from which on torch shares an operation on a CPU among threads. It may then end in the
middle of a row for one of them, and the last numbers of a thread are computed by other code."""


def in_blocks(
    rows: torch.Tensor, work: Callable[[torch.Tensor], torch.Tensor], size: int = BLOCK
) -> Iterator[torch.Tensor]:
    """What becomes of rows ([rows, width]) block by block; the last has rows of padding."""
    for part in torch.split(rows, size):
        block = rows.new_zeros((size, rows.shape[1]))
        block[: len(part)] = part
        yield work(block)


class BlockLinear:
    """``Linear`` on any device.

    Args:
        weight: [out, in].
        bias: [out] or None.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._bias = bias
        # In float16 torch multiplies row by row on most CPUs: padding would cost what rows do.
        lone = weight.device.type == "cpu" and weight.dtype == torch.float16
        self._block = 1 if lone else BLOCK

    def __call__(self, rows: torch.Tensor, norm: RMSNorm | None = None) -> torch.Tensor:
        return torch.cat(list(self.products(rows, norm)))[: len(rows)]

    def products(self, rows: torch.Tensor, norm: RMSNorm | None) -> Iterator[torch.Tensor]:
        """The products block by block, [block, out]; the last has rows of padding."""

        def multiply(block: torch.Tensor) -> torch.Tensor:
            normed = block if norm is None else norm(block)
            return functional.linear(normed, self._weight, self._bias)

        return in_blocks(rows, multiply, self._block)

    def add_to(self, hidden: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return hidden.add_(self(rows))

    def rows(self, numbers: torch.Tensor) -> torch.Tensor:
        return self._weight.index_select(0, numbers)


class BlockGated:
    """``Gated`` on any device.

    Args:
        weight: [2 * width, in], gates first.
        bias: [2 * width] or None.
        activation: of the gates.
    """

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, activation: Activation = "silu"
    ) -> None:
        self._activation = activation
        self._product = BlockLinear(weight, bias)
        self._together = max(1, (SHARED_FROM - 1) // (len(weight) // 2))

    def __call__(self, rows: torch.Tensor, norm: RMSNorm | None = None) -> torch.Tensor:
        done = [self.combined(block) for block in self._product.products(rows, norm)]
        return torch.cat(done)[: len(rows)]

    def apart(self, rows: torch.Tensor, norm: RMSNorm | None = None) -> torch.Tensor:
        return self._product(rows, norm)

    def combined(self, both: torch.Tensor) -> torch.Tensor:
        parts = (part.chunk(2, -1) for part in torch.split(both, self._together))
        return torch.cat([gated(self._activation, gate, up) for gate, up in parts])
