"""Packed weights and their products, between torch's tensors and the kernels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from ds4trio.engine.native import nibbles
from ds4trio.engine.native.grid import levels_of
from ds4trio.engine.native.products import (
    ADD,
    BYTES,
    FLOATS,
    GATE,
    NIBBLES,
    STORE,
    multiply,
    multiply_panels,
    pack,
    read_rows,
)
from ds4trio.engine.native.vector import PANEL
from ds4trio.engine.native.workers import workers
from ds4trio.engine.norm import RMSNorm

__all__ = ["NativeGated", "NativeLinear"]

WEIGHT_LEVELS = 127
"""int8 weights run from -127 to 127: symmetric, so that no zero point enters the sums."""

FEW = 1 << 18
"""Multiplications that one thread does sooner than it could share them."""

WIDE = 8192
"""Outputs from which on rows of a result are kept apart."""

_none = np.empty(0, np.float32)


class _Packed:
    """A weight in panels: float32; or rounded, that is in four bits where that loses nothing, and
    else in eight with a scale for each output.

    Args:
        weight: [out, in], any floating dtype.
        bias: [out] or None.
        rounded: whether it may be.
        readable: its rows will be read, which four bits do not allow.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        *,
        rounded: bool,
        readable: bool = False,
    ) -> None:
        self.outputs, self.inputs = weight.shape
        self._bias = _none if bias is None else _padded(bias)
        self._scales = _none
        weight = weight.float()
        parts = levels_of(weight) if rounded and not readable and nibbles.supported() else None
        if parts is not None:
            self._kind = NIBBLES
            self._weight = nibbles.pack_nibbles(*(part.numpy() for part in parts))
            return
        self._kind = BYTES if rounded else FLOATS
        if rounded:
            weight, self._scales = _rounded(weight)
        panels = pack(weight.numpy())
        self._weight = panels.reshape(len(panels), -1).view(np.int8)

    def multiply(
        self, rows: torch.Tensor, norm: RMSNorm | None, out: torch.Tensor, ending: int
    ) -> None:
        arguments = (
            rows.numpy(),
            _none if norm is None else norm.weight.numpy(),
            np.float32(0.0 if norm is None else norm.epsilon),
            self._weight,
            self._kind,
            self._scales,
            self._bias,
            out.numpy(),
            ending,
        )
        if len(rows) * self.outputs * self.inputs < FEW or workers() == 1:
            multiply_panels(*arguments, 0, len(self._weight))
        else:
            multiply(*arguments, workers())


def _rounded(weight: torch.Tensor) -> tuple[torch.Tensor, npt.NDArray[np.float32]]:
    """Weights as int8, and the scale of each output (padded to whole panels)."""
    scales = weight.abs().amax(1).clamp_min_(torch.finfo(torch.float32).tiny) / WEIGHT_LEVELS
    levels = (weight / scales.unsqueeze(1)).round_().to(torch.int8)
    return levels, _padded(scales)


def _padded(numbers: torch.Tensor) -> npt.NDArray[np.float32]:
    padded = np.zeros(-(-len(numbers) // PANEL) * PANEL, np.float32)
    padded[: len(numbers)] = numbers.float().numpy()
    return padded


class NativeLinear(_Packed):
    """``Linear`` on a CPU. A row has the same bits in any company."""

    def __call__(self, rows: torch.Tensor, norm: RMSNorm | None = None) -> torch.Tensor:
        # A panel more between rows, or every row of a large product begins on the same cache set.
        apart = PANEL if self.outputs >= WIDE else 0
        out = rows.new_empty((len(rows), self.outputs + apart))[:, : self.outputs]
        self.multiply(rows, norm, out, STORE)
        return out

    def add_to(self, hidden: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        self.multiply(rows, None, hidden, ADD)
        return hidden

    def rows(self, numbers: torch.Tensor) -> torch.Tensor:
        """Rows of the weight itself, float32 [count, inputs]: an embedding tied to the head.

        Args:
            numbers: int64 [count].
        """
        out = torch.empty(len(numbers), self.inputs)
        read_rows(numbers.numpy(), self._weight, self._kind, self._scales, out.numpy())
        return out


class NativeGated(_Packed):
    """``Gated`` on a CPU: gates and ups in halves of the same panels."""

    def __init__(
        self,
        gate: torch.Tensor,
        up: torch.Tensor,
        biases: tuple[torch.Tensor, torch.Tensor] | None,
        *,
        rounded: bool,
    ) -> None:
        bias = None if biases is None else _interleaved(*biases)
        super().__init__(_interleaved(gate, up), bias, rounded=rounded)
        self._width = len(gate)

    def __call__(self, rows: torch.Tensor, norm: RMSNorm | None = None) -> torch.Tensor:
        out = rows.new_empty((len(rows), self._width))
        self.multiply(rows, norm, out, GATE)
        return out


def _interleaved(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
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
