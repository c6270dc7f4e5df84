"""Weights as the compressed-tensors library stores them, in its simpler formats.

- ``float-quantized``, ``int-quantized`` and ``naive-quantized``: ``x.weight`` is F8_E4M3 or int8
  [outputs, inputs], ``x.weight_scale`` one number, one for each output, for each group of inputs or
  for each block, and ``x.weight_zero_point`` int8 lies like the scales, if it is there.
- ``pack-quantized``: ``x.weight_packed`` int32 [outputs, inputs * bits / 32], levels packed along
  the inputs; ``x.weight_scale`` [outputs, groups]; ``x.weight_zero_point`` int32 [outputs * bits /
  32, groups], packed along the outputs, or absent for half the number of levels;
  ``x.weight_shape``; ``x.weight_g_idx`` int32 [inputs], the group of each input, absent where they
  follow each other.

A weight is ``scale * (level - zero)``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ds4trio.models.checkpoints.assembly import Assembly, integer, refuse_format
from ds4trio.models.checkpoints.fp8 import ACTIVATION_SCALES, FLOAT8, multiply
from ds4trio.models.checkpoints.packing import CHUNK, packed_size, scale_groups, unpack

if TYPE_CHECKING:
    import torch

__all__ = ["compressed_tensors"]

FORMATS = ("dense", "float-quantized", "int-quantized", "naive-quantized", "pack-quantized")
BITS = (2, 4, 8)
"""Those that fill words without a rest; the library has packed others in two ways."""

LEFT_OUT = (*ACTIVATION_SCALES, ".input_zero_point", ".output_zero_point", ".q_scale")


def compressed_tensors(parts: Assembly, settings: Mapping[str, Any]) -> None:
    """Say how the weights of a checkpoint of compressed-tensors are made.

    Raises:
        ModelUnavailable: a format that is not known, or tensors that do not fit.
    """
    groups = list(_groups(settings))
    sparse = settings.get("sparsity_config") or {}
    forms = [settings.get("format"), *(group.get("format") for group in groups)]
    forms.append(sparse.get("format") if isinstance(sparse, dict) else sparse)
    for form in forms:
        if form not in (*FORMATS, "mixed-precision", None):
            refuse_format(
                f"compressed-tensors' format {form!r} is not known; known: {', '.join(FORMATS)}"
            )
    weights = [group["weights"] for group in groups if isinstance(group.get("weights"), dict)]
    block = next(filter(None, map(_block_of, weights)), None)
    bits = {integer(args, "num_bits", 8) for args in weights} & set(BITS)
    for base in parts.ending(".weight_packed"):
        _packed(parts, base, bits)
    for base in parts.ending(".weight"):
        if f"{base}.weight_scale" in parts.shapes:
            multiply(parts, f"{base}.weight", (*FLOAT8, "I8"), block)
    parts.drop(*(name for name in parts.shapes if name.endswith(LEFT_OUT)))


def _groups(settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    groups = settings.get("config_groups") or {}
    if not isinstance(groups, dict) or not all(isinstance(one, dict) for one in groups.values()):
        refuse_format("config_groups are not objects")
    yield from groups.values()


def _block_of(args: Mapping[str, Any]) -> list[int] | None:
    match args.get("block_structure"):
        case [int(height), int(width)]:
            return [height, width]
    return None


def _packed(parts: Assembly, base: str, known: set[int]) -> None:
    outputs, words = parts.take(f"{base}.weight_packed", ["I32"], None, None)
    parts.take(f"{base}.weight_shape", ["I64", "I32"], 2)
    rows, inputs = (int(size) for size in parts.raw.integers(f"{base}.weight_shape"))
    fitting = [bits for bits in sorted(known) if inputs and packed_size(inputs, bits) == words]
    if rows != outputs or len(fitting) != 1:
        parts.refuse(f"{base}.weight_packed", f"its {words} words do not fit {inputs} inputs")
    bits = fitting[0]
    _, groups = parts.take(f"{base}.weight_scale", ["F32", "F16", "BF16"], outputs, None)
    if f"{base}.weight_zero_point" in parts.shapes:
        packed = packed_size(outputs, bits)
        parts.take(f"{base}.weight_zero_point", ["I32"], packed, groups)
    if f"{base}.weight_g_idx" in parts.shapes:
        parts.take(f"{base}.weight_g_idx", ["I32", "I64"], inputs)
    if not groups or inputs % groups:
        parts.refuse(f"{base}.weight_scale", f"it has {groups} groups for {inputs} inputs")
    shape = (outputs, inputs)
    parts.make(f"{base}.weight", shape, lambda: _decode(parts, base, shape, bits, groups))


def _decode(
    parts: Assembly, base: str, shape: tuple[int, int], bits: int, groups: int
) -> torch.Tensor:
    import torch

    outputs, inputs = shape
    words = parts.raw.integers(f"{base}.weight_packed")
    scales = parts.raw[f"{base}.weight_scale"].float().numpy()
    zeros = np.full((outputs, groups), 1 << (bits - 1), np.float32)
    if f"{base}.weight_zero_point" in parts.shapes:
        zeros[:] = unpack(parts.raw.integers(f"{base}.weight_zero_point"), bits, 0).T[:outputs]
    group = None
    if f"{base}.weight_g_idx" in parts.shapes:
        named = parts.raw.integers(f"{base}.weight_g_idx")
        if named.max() >= groups:
            parts.refuse(f"{base}.weight_g_idx", f"it names groups that are not among {groups}")
        if (named >= 0).all():  # one that was never filled in is all -1
            group = named
    result = np.empty(shape, np.float32)
    step = max(1, CHUNK // inputs)
    for begin in range(0, outputs, step):
        rows = slice(begin, begin + step)
        result[rows] = unpack(words[rows], bits, 1)[:, :inputs]
        scale_groups(result[rows], zeros[rows], scales[rows], group)
    return torch.from_numpy(result)
