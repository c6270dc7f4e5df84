"""Weights as bitsandbytes stores them.

Eight bits (LLM.int8, arXiv:2208.07339): ``x.weight`` int8 [outputs, inputs] and ``x.SCB`` float32
[outputs], the greatest magnitude of each output; a weight is ``level * SCB / 127``.

Four bits (NF4 and FP4, arXiv:2305.14314): ``x.weight`` is two levels to a byte, the first in the
high half, of the weights in a row. Beside it lie

- ``x.weight.quant_map`` float32 [16]: what the levels stand for;
- ``x.weight.absmax``: the factor of each block of ``blocksize`` weights. It is float32, or uint8
  where it is quantised too: then it is looked up in ``nested_quant_map`` float32 [256], multiplied
  by ``nested_absmax`` (one for ``nested_blocksize`` of them), and ``nested_offset`` is added;
- ``x.weight.quant_state.bitsandbytes__nf4`` (or ``fp4``): JSON in bytes, with shape and sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ds4trio.models.checkpoints.assembly import Assembly
from ds4trio.models.checkpoints.packing import CHUNK, pairs_by_byte
from ds4trio.models.damaged import BAD_JSON

if TYPE_CHECKING:
    import torch

__all__ = ["bitsandbytes"]

STATE = ".quant_state.bitsandbytes__"
STORED = ("U8", "I8", "F16", "BF16", "F32", "F64")
"""Types that the bytes of levels may be disguised as."""

MAX_BLOCK = 1 << 16
"""Weights in a block; the library's own limit is below that."""

PER_127 = np.float32(1 / 127)


class QuantState(msgspec.Struct):
    """What the JSON beside a weight of four bits says."""

    shape: Annotated[list[int], msgspec.Meta(min_length=1)]
    blocksize: int
    nested_blocksize: int = 0
    nested_offset: float = 0.0


def bitsandbytes(parts: Assembly, settings: Mapping[str, Any]) -> None:
    """Say how the weights of a bitsandbytes checkpoint are made.

    Raises:
        ModelUnavailable: tensors that do not fit.
    """
    del settings  # what is of eight bits, of four, or as it was shows in the tensors
    for base in parts.ending(".SCB"):
        _eight_bits(parts, base)
    for name in list(parts.shapes):
        weight, found, _ = name.partition(STATE)
        if found:
            _four_bits(parts, weight, name)


def _eight_bits(parts: Assembly, base: str) -> None:
    outputs, inputs = parts.take(f"{base}.weight", ["I8"], None, None)
    parts.take(f"{base}.SCB", ["F32", "F16", "BF16"], outputs)
    parts.drop(f"{base}.weight_format")

    def whole() -> torch.Tensor:
        import torch

        levels = parts.raw.integers(f"{base}.weight")
        result = np.empty((outputs, inputs), np.float32)
        np.multiply(levels, parts.raw[f"{base}.SCB"].float().numpy()[:, None], out=result)
        result *= PER_127
        return torch.from_numpy(result)

    parts.make(f"{base}.weight", (outputs, inputs), whole)


def _four_bits(parts: Assembly, name: str, state_name: str) -> None:
    parts.take(state_name, ["U8"], None)
    try:
        state = msgspec.json.decode(parts.raw.integers(state_name).tobytes(), type=QuantState)
    except BAD_JSON as error:
        parts.refuse(state_name, f"it cannot be read: {error}")
    sizes = (state.blocksize, state.nested_blocksize or 2)
    if any(size % 2 or not 2 <= size <= MAX_BLOCK for size in sizes) or min(state.shape) < 1:
        parts.refuse(state_name, "its sizes cannot be")
    count = math.prod(state.shape)
    blocks = -(-count // state.blocksize)
    parts.take(name, STORED)
    parts.take(f"{name}.quant_map", ["F32"], 16)
    parts.take(f"{name}.absmax", ["F32", "U8"], blocks)
    if parts.raw.kind(f"{name}.absmax") == "U8":
        parts.take(f"{name}.nested_quant_map", ["F32"], 256)
        if not state.nested_blocksize:
            parts.refuse(state_name, "it has no nested_blocksize")
        parts.take(f"{name}.nested_absmax", ["F32"], -(-blocks // state.nested_blocksize))
    parts.make(name, tuple(state.shape), lambda: _decode(parts, name, state))


def _decode(parts: Assembly, name: str, state: QuantState) -> torch.Tensor:
    import torch

    count = math.prod(state.shape)
    packed = parts.raw[name].reshape(-1).view(torch.uint8).numpy()
    if packed.size * 2 not in (count, count + 1):
        parts.refuse(name, f"it has {packed.size} bytes for {count} weights of four bits")
    pairs = pairs_by_byte(parts.raw[f"{name}.quant_map"].numpy(), low_first=False)
    factors = _factors(parts, name, state)
    result = np.empty(packed.size * 2, np.float32)
    step = max(1, CHUNK // state.blocksize)
    for block in range(0, len(factors), step):
        begin = block * state.blocksize
        out = result[begin : begin + step * state.blocksize]
        out[:] = np.take(pairs, packed[begin // 2 : (begin + len(out) + 1) // 2]).view(np.float32)
        out *= np.repeat(factors[block : block + step], state.blocksize)[: len(out)]
    return torch.from_numpy(result[:count]).view(state.shape)


def _factors(parts: Assembly, name: str, state: QuantState) -> NDArray[np.float32]:
    """The factor of each block, float32 [blocks]."""
    if parts.raw.kind(f"{name}.absmax") == "F32":
        plain: NDArray[np.float32] = parts.raw[f"{name}.absmax"].numpy()
        return plain
    table = parts.raw[f"{name}.nested_quant_map"].numpy()
    factors = table[parts.raw.integers(f"{name}.absmax")]
    outer = parts.raw[f"{name}.nested_absmax"].numpy()
    factors *= outer[np.arange(len(factors)) // state.nested_blocksize]
    factors += np.float32(state.nested_offset)
    result: NDArray[np.float32] = factors
    return result
