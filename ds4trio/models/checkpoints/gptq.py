"""GPTQ (arXiv:2210.17323), as AutoGPTQ and GPTQModel store it.

Of a product with ``in`` inputs and ``out`` outputs, in groups of inputs:

- ``qweight`` int32 [in * bits / 32, out]: levels, packed along the inputs;
- ``qzeros`` int32 [groups, out * bits / 32]: the level that is zero, packed along the outputs;
- ``scales`` float [groups, out];
- ``g_idx`` int32 [in]: the group of each input. Activation order (``desc_act``) shows in nothing
  else. Without it groups follow each other.

A weight is ``scale * (level - zero)``. The first format, still the usual one, stores zeros less
one, modulo the number of levels; ``gptq_v2`` stores them as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ds4trio.models.checkpoints.assembly import Assembly, integer, refuse_format
from ds4trio.models.checkpoints.packing import CHUNK, scale_groups, unpack

if TYPE_CHECKING:
    import torch

__all__ = ["gptq"]

BITS = (2, 3, 4, 8)
FORMATS = ("gptq", "gptq_v2")


def gptq(parts: Assembly, settings: Mapping[str, Any]) -> None:
    """Say how the weights of a GPTQ checkpoint are made.

    Raises:
        ModelUnavailable: a format or number of bits that is not known, or tensors that do not fit.
    """
    form = settings.get("checkpoint_format") or settings.get("format") or FORMATS[0]
    if settings.get("is_marlin_format"):
        form = "marlin"
    if form not in FORMATS:
        refuse_format(f"GPTQ format {form!r} is not known; known: {', '.join(FORMATS)}")
    add = 1 if form == FORMATS[0] else 0
    for base in parts.ending(".qweight"):
        _product(parts, base, integer(settings, "bits"), integer(settings, "group_size", -1), add)


def _product(parts: Assembly, base: str, bits: int, group_size: int, add: int) -> None:
    rows, outputs = parts.take(f"{base}.qweight", ["I32"], None, None)
    if f"{base}.g_idx" in parts.shapes:
        (inputs,) = parts.take(f"{base}.g_idx", ["I32", "I64"], None)
        if inputs:  # single products may have other bits than the rest
            bits = rows * 32 // inputs
    else:
        inputs = rows * 32 // max(bits, 1)
    if not inputs or bits not in BITS or rows * 32 != inputs * bits or outputs * bits % 32:
        parts.refuse(f"{base}.qweight", f"[{rows}, {outputs}] is no matrix of {bits} bits")
    groups, _ = parts.take(f"{base}.scales", ["F16", "BF16", "F32"], None, outputs)
    parts.take(f"{base}.qzeros", ["I32"], groups, outputs * bits // 32)
    size = inputs if group_size <= 0 else group_size
    if f"{base}.g_idx" not in parts.shapes and groups != -(-inputs // size):
        parts.refuse(f"{base}.scales", f"it has {groups} groups for {inputs} inputs")
    parts.make(
        f"{base}.weight",
        (outputs, inputs),
        lambda: _decode(parts, base, (outputs, inputs), bits, size, add),
    )


def _decode(
    parts: Assembly, base: str, shape: tuple[int, int], bits: int, group_size: int, add: int
) -> torch.Tensor:
    import torch

    outputs, inputs = shape
    words = parts.raw.integers(f"{base}.qweight")
    stored = unpack(parts.raw.integers(f"{base}.qzeros"), bits, 1)
    zeros = np.ascontiguousarray(((stored + add) & ((1 << bits) - 1)).T, np.float32)
    scales = np.ascontiguousarray(parts.raw[f"{base}.scales"].float().numpy().T)
    regular = np.arange(inputs) // group_size
    group = regular
    if f"{base}.g_idx" in parts.shapes:
        group = parts.raw.integers(f"{base}.g_idx")
        if group.min() < 0 or group.max() >= scales.shape[1]:
            parts.refuse(f"{base}.g_idx", f"it names groups that are not among {scales.shape[1]}")
    in_order = inputs == group_size * scales.shape[1] and np.array_equal(group, regular)
    result = np.empty(shape, np.float32)
    step = max(1, CHUNK // inputs)
    for begin in range(0, outputs, step):
        rows = slice(begin, begin + step)
        result[rows] = unpack(words[:, rows], bits, 0)
        scale_groups(result[rows], zeros[rows], scales[rows], None if in_order else group)
    return torch.from_numpy(result)
