"""Weights as levels in every group of 32: 16 of them, as four-bit files have them, or 255.

Those on a grid of 16 are found by looking at the numbers, so it does not matter which format they
came from, nor that they were stored in another one since. Any weight can be rounded to 255.
"""

from __future__ import annotations

import torch

from ds4trio.engine.native.groups import GROUP

__all__ = ["bytes_of", "levels_of"]

STEPS = 15
"""Most steps between the least and the largest weight of a group."""

TOLERANCE = 0.02
"""How far from its level a weight may be, in steps: what float16 scales lose is below that."""

SAMPLE = 4096
"""Groups that are looked at first; most weights that are on no grid are told by these."""


def levels_of(
    weight: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """Take a weight apart into levels, scales and leasts: ``scale * level + least``.

    Args:
        weight: float32 [outputs, inputs].

    Returns:
        uint8 [outputs, inputs] from 0 to 15, and float32 [outputs, inputs / GROUP] twice, both
        exact in float16. None where the weight is on no such grid, or its inputs are not whole
        groups.
    """
    outputs, inputs = weight.shape
    if inputs % GROUP:
        return None
    groups = weight.reshape(-1, GROUP)
    if _fit(groups[:: max(1, len(groups) // SAMPLE)]) is None:
        return None
    found = _fit(groups)
    if found is None:
        return None
    levels, scales, leasts = found
    return levels.view(outputs, inputs), scales.view(outputs, -1), leasts.view(outputs, -1)


def _fit(groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    least, most = groups.aminmax(dim=1)
    leasts = least.half().float()
    scales = torch.zeros_like(leasts)
    levels = torch.zeros(groups.shape, dtype=torch.uint8)
    left = torch.arange(len(groups))
    for steps in range(STEPS, 0, -1):
        own = groups[left] if len(left) < len(groups) else groups
        scale = ((most[left] - least[left]) / steps).half().float()
        level = ((own - leasts[left, None]) / scale.clamp_min(1e-30)[:, None]).round_()
        level.clamp_(0, STEPS)
        off = (own - leasts[left, None] - level * scale[:, None]).abs_().amax(1)
        fits = off <= TOLERANCE * scale
        done = left[fits]
        scales[done] = scale[fits]
        levels[done] = level[fits].to(torch.uint8)
        left = left[~fits]
        if not len(left):
            return levels, scales, leasts
    return None


def bytes_of(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """Round a weight to ``scale * level + least`` with levels from 1 to 255, 128 being zero.

    What a Q8_0 file has stays as it is.

    Args:
        weight: float32 [outputs, inputs].

    Returns:
        As ``levels_of``. None where float16 does not hold a scale, or the inputs are not whole
        groups.
    """
    outputs, inputs = weight.shape
    if inputs % GROUP:
        return None
    groups = weight.reshape(-1, GROUP)
    scales = (groups.abs().amax(1) / 127).half().float()
    leasts = -128 * scales
    if not bool(leasts.half().isfinite().all()):
        return None
    levels = (groups / scales.clamp_min(1e-30)[:, None]).round_().clamp_(-127, 127).add_(128)
    return (
        levels.to(torch.uint8).view(outputs, inputs),
        scales.view(outputs, -1),
        leasts.view(outputs, -1),
    )
