"""Weights in floats of eight bits, with scales.

``x.weight`` is F8_E4M3 (or F8_E5M2) [outputs, inputs], and ``x.weight_scale_inv`` or
``x.weight_scale`` is what it is multiplied by (the longer name means the same; it was the inverse
of what the weight was once multiplied by):

- one number for each block of ``weight_block_size``, [outputs / 128, inputs / 128] rounded up, as
  DeepSeek-V3 has it (arXiv:2412.19437);
- one for each output, or a single one.

Stacks of experts, [n, outputs, inputs] with [n, ...] scales, have ``_scale_inv`` behind their own
name. Scales of activations are left out: activations are not rounded here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ds4trio.models.checkpoints.assembly import Assembly, refuse_format
from ds4trio.models.checkpoints.grid import SCALES, grid_of, scaled, scales_of

if TYPE_CHECKING:
    import torch

__all__ = ["ACTIVATION_SCALES", "FLOAT8", "fp8", "multiply"]

FLOAT8 = ("F8_E4M3", "F8_E5M2")
SUFFIXES = ("_scale_inv", "_scale")
ACTIVATION_SCALES = (
    ".input_scale",
    ".activation_scale",
    ".input_scale_ub",
    ".output_scale",
    ".k_scale",
    ".v_scale",
)


def fp8(parts: Assembly, settings: Mapping[str, Any]) -> None:
    """Say how the weights of a checkpoint in float8 are made.

    Raises:
        ModelUnavailable: a weight without scales, or with scales that do not fit.
    """
    match settings.get("weight_block_size"):
        case None:
            block = None
        case [int(height), int(width)]:
            block = (height, width)
        case other:
            refuse_format(f"weight_block_size is {other!r} and not two whole numbers")
    for name in list(parts.shapes):
        if parts.raw.kind(name) in FLOAT8:
            multiply(parts, name, FLOAT8, block)
        if name.endswith(ACTIVATION_SCALES):
            parts.drop(name)


def multiply(parts: Assembly, name: str, kinds: Sequence[str], block: Sequence[int] | None) -> None:
    """Say that a weight is made by multiplying it with the scales beside it.

    Args:
        parts: where it lies.
        name: its name, stored and plain.
        kinds: the types it may have.
        block: height and width of the blocks that have one scale each, if the settings say so.

    Raises:
        ModelUnavailable: there are no scales, or they do not fit.
    """
    suffix = next((end for end in SUFFIXES if name + end in parts.shapes), SUFFIXES[0])
    beside = name + suffix
    scales = parts.take(beside, SCALES)
    weight = parts.take(name, kinds)
    if len(weight) not in (2, 3):
        parts.refuse(name, f"its shape is {list(weight)}, and not that of a matrix or a stack")
    grid = grid_of(beside, weight, scales, block)
    zeros = f"{name}_zero_point"
    if zeros in parts.shapes:
        parts.take(zeros, ["I8"], *scales)

    def whole() -> torch.Tensor:
        offsets = parts.raw[zeros].float().view(grid.scales) if zeros in parts.shapes else None
        return scaled(parts.raw[name], scales_of(parts.raw[beside], grid), grid, offsets)

    def one(index: int) -> torch.Tensor:
        place = index if grid.scales[0] > 1 else 0
        offsets = None
        if zeros in parts.shapes:
            offsets = parts.raw[zeros].float().view(grid.scales)[place]
        factors = scales_of(parts.raw[beside], grid)[place]
        return scaled(parts.raw.part(name, index), factors, grid, offsets)

    parts.make(name, weight, whole, one if len(weight) == 3 else None)
