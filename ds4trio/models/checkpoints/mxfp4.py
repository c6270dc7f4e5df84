"""MXFP4 experts, as gpt-oss stores them.

``x_blocks`` is uint8 [experts, outputs, groups, 16]: 32 floats of four bits (E2M1), the first of
each pair in the low half. ``x_scales`` is uint8 [experts, outputs, groups]: exponents of two, plus
127 (E8M0; OCP Microscaling Formats, v1.0). ``x`` itself, without quantisation, is [experts, inputs,
outputs], so that is what is made: a transposed view of [experts, outputs, inputs].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ds4trio.models.checkpoints.assembly import Assembly
from ds4trio.models.checkpoints.packing import CHUNK, pairs_by_byte

if TYPE_CHECKING:
    import torch

__all__ = ["mxfp4"]

GROUP = 32

POSITIVE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1 = np.array([*POSITIVE, *(-value for value in POSITIVE)], np.float32)


def mxfp4(parts: Assembly, settings: Mapping[str, Any]) -> None:
    """Say how the experts of an MXFP4 checkpoint are made.

    Raises:
        ModelUnavailable: tensors that do not fit.
    """
    del settings  # what modules_to_not_convert says shows in the tensors
    for name in parts.ending("_blocks"):
        shape = parts.take(f"{name}_blocks", ["U8"], None, None, None, GROUP // 2)
        experts, outputs, groups, _ = shape
        parts.take(f"{name}_scales", ["U8", "F8_E8M0"], experts, outputs, groups)
        _stack(parts, name, experts, outputs, groups)


def _stack(parts: Assembly, name: str, experts: int, outputs: int, groups: int) -> None:
    inputs = groups * GROUP

    def fill(index: int, out: torch.Tensor) -> torch.Tensor:
        import torch

        blocks = parts.raw.part(f"{name}_blocks", index).numpy()
        exponents = parts.raw.part(f"{name}_scales", index).view(torch.uint8).numpy()
        _decode(blocks, exponents, out.numpy().reshape(outputs, groups, GROUP))
        return out

    def whole() -> torch.Tensor:
        import torch

        result = torch.empty((experts, outputs, inputs), dtype=torch.float32)
        for index in range(experts):
            fill(index, result[index])
        return result.transpose(1, 2)

    def one(index: int) -> torch.Tensor:
        import torch

        return fill(index, torch.empty((outputs, inputs), dtype=torch.float32)).T

    parts.make(name, (experts, inputs, outputs), whole, one)


def _powers() -> NDArray[np.float32]:
    """A byte -> the power of two it stands for; the last one is no number."""
    powers = np.ldexp(np.float32(1), np.arange(255) - 127).astype(np.float32)
    return np.append(powers, np.float32(np.nan))


PAIRS = pairs_by_byte(E2M1, low_first=True)
POWERS = _powers()


def _decode(
    blocks: NDArray[np.uint8], exponents: NDArray[np.uint8], out: NDArray[np.float32]
) -> None:
    """Bytes [outputs, groups, 16] and exponents [outputs, groups] -> [outputs, groups, 32]."""
    step = max(1, CHUNK // max(out[:1].size, 1))
    for begin in range(0, len(out), step):
        rows = slice(begin, begin + step)
        values = np.take(PAIRS, blocks[rows]).view(np.float32)
        with np.errstate(over="ignore"):  # the format goes a little beyond float32
            np.multiply(values, POWERS[exponents[rows]][:, :, None], out=out[rows])
