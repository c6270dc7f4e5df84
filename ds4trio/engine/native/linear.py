"""Packed weights and their products, between torch's tensors and the kernels."""

from __future__ import annotations

import numpy as np
import torch

from ds4trio.engine.activation import Activation
from ds4trio.engine.native.packed import Packed
from ds4trio.engine.native.products import (
    ADD,
    EIGHT_BITS,
    FINE,
    FOUR_BITS,
    GATES,
    STORE,
    combine,
    multiply,
    multiply_panels,
    read_rows,
)
from ds4trio.engine.native.vector import PANEL
from ds4trio.engine.native.workers import workers
from ds4trio.engine.norm import RMSNorm

__all__ = ["NativeGated", "NativeLinear", "interleaved"]

FEW = 1 << 18
"""Multiplications that one thread does sooner than it could share them."""

WIDE = 8192
"""Outputs from which on rows of a result are kept apart."""

_none = np.empty(0, np.float32)


class _Product:
    def __init__(self, packed: Packed, *, fine: bool) -> None:
        kind = (
            packed.kind + FINE if fine and packed.kind in (FOUR_BITS, EIGHT_BITS) else packed.kind
        )
        self._packed = packed
        self._weights = (packed.weight, kind, packed.scales, packed.bias)
        self._size = packed.outputs * packed.inputs
        self._norm: RMSNorm | None = None
        self._norm_numbers = (_none, np.float32(0.0))

    def multiply(
        self, rows: torch.Tensor, norm: RMSNorm | None, out: torch.Tensor, ending: int
    ) -> None:
        if norm is not self._norm:  # a product has the same one in every step
            self._norm = norm
            self._norm_numbers = (
                (_none, np.float32(0.0))
                if norm is None
                else (norm.weight.numpy(), np.float32(norm.epsilon))
            )
        arguments = (rows.numpy(), *self._norm_numbers, *self._weights, out.numpy(), ending)
        if rows.shape[0] * self._size < FEW or workers() == 1:
            multiply_panels(*arguments, np.array((0, len(self._packed.weight))))
        else:
            multiply(*arguments, workers())


class NativeLinear(_Product):
    """``Linear`` on a CPU. A row has the same bits in any company.

    Args:
        packed: the weight.
        fine: where activations are rounded, to 16 bits in place of 8.
    """

    def __init__(self, packed: Packed, *, fine: bool = False) -> None:
        super().__init__(packed, fine=fine)

    def __call__(self, rows: torch.Tensor, norm: RMSNorm | None = None) -> torch.Tensor:
        # A panel more between rows, or every row of a large product begins on the same cache set.
        outputs = self._packed.outputs
        apart = PANEL if outputs >= WIDE else 0
        out = rows.new_empty((rows.shape[0], outputs + apart))[:, :outputs]
        self.multiply(rows, norm, out, STORE)
        return out

    def add_to(self, hidden: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        self.multiply(rows, None, hidden, ADD)
        return hidden

    def rows(self, numbers: torch.Tensor) -> torch.Tensor:
        """Rows of the weight itself, float32 [count, inputs]: an embedding tied to the head.

        Args:
            numbers: int64 or int32 [count]. The ledger refuses tokens outside the vocabulary before
                they come here; other callers may not, and a kernel reads whatever lies there.

        Raises:
            IndexError: there is no such row.
        """
        packed = self._packed
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < packed.outputs:
            raise IndexError(f"rows are numbered from 0 to {packed.outputs - 1}")
        out = torch.empty(len(numbers), packed.inputs)
        read_rows(numbers.long().numpy(), packed.weight, packed.kind, packed.scales, out.numpy())
        return out


class NativeGated(_Product):
    """``Gated`` on a CPU.

    Args:
        packed: of the weights that ``interleaved`` made.
        width: outputs.
        activation: of the gates.
        fine: as for ``NativeLinear``.
    """

    def __init__(
        self, packed: Packed, width: int, activation: Activation, *, fine: bool = False
    ) -> None:
        super().__init__(packed, fine=fine)
        self._width = width
        self._ending = GATES[activation]

    def __call__(self, rows: torch.Tensor, norm: RMSNorm | None = None) -> torch.Tensor:
        out = rows.new_empty((rows.shape[0], self._width))
        self.multiply(rows, norm, out, self._ending)
        return out

    def apart(self, rows: torch.Tensor, norm: RMSNorm | None = None) -> torch.Tensor:
        """Both products, [rows, panels * PANEL], in the order of ``interleaved``."""
        both = rows.new_empty((rows.shape[0], len(self._packed.weight) * PANEL))
        self.multiply(rows, norm, both, STORE)
        return both

    def combined(self, both: torch.Tensor) -> torch.Tensor:
        """What ``apart`` gave as a call combines it; it is changed."""
        out = both.new_empty((both.shape[0], self._width))
        combine(both.numpy(), out.numpy(), self._ending)
        return out


def interleaved(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Eight rows of one, eight of the other, and so on; zeros after the last."""
    half = PANEL // 2
    blocks = -(-len(gate) // half)
    mixed = gate.new_zeros((blocks, 2, half, *gate.shape[1:]))
    for place, part in enumerate((gate, up)):
        whole = len(part) // half
        mixed[:whole, place] = part[: whole * half].view(whole, half, *part.shape[1:])
        if rest := len(part) % half:
            mixed[whole, place, :rest] = part[whole * half :]
    return mixed.flatten(0, 2)
