"""Blocks of quantised weights -> float32, bit for bit as the gguf library computes them.

The formats that most files hold are done here, several times faster than there and without
importing that library; it does the rest. Layouts: ggml's ``ggml-common.h``.

This is numpy and not torch on purpose: torch would split each of these small operations over its
threads, and on a busy machine waiting for one another costs them seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ds4trio.errors import ModelUnavailable

__all__ = ["dequantize"]

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

BLOCK = 32
"""Weights in one block of the formats done here."""

CHUNK = 8192
"""Blocks decoded at a time, so that what is written is still in the cache when it is scaled."""


def dequantize(raw: Bytes, kind: str) -> Floats:
    """Decode one tensor.

    Args:
        raw: one-dimensional: the tensor's bytes as they lie in the file.
        kind: ggml's name of the element type.

    Returns:
        One-dimensional, new memory.

    Raises:
        ModelUnavailable: an element type that neither this module nor the gguf library decodes.
    """
    if kind in DENSE:
        return raw.view(DENSE[kind]).astype(np.float32)
    if kind == "BF16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    if kind not in BLOCKS:
        return _by_library(raw, kind)
    size, decode = BLOCKS[kind]
    blocks = raw.reshape(-1, size)
    values = np.empty((len(blocks), BLOCK), np.float32)
    for begin in range(0, len(blocks), CHUNK):
        decode(blocks[begin : begin + CHUNK], values[begin : begin + CHUNK])
    return values.reshape(-1)


def _half(columns: Bytes) -> Floats:
    """Two bytes of each block -> [blocks, 1]."""
    return np.ascontiguousarray(columns).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes, out: Floats) -> None:
    """[blocks, 16] -> [blocks, 32]: the low halves, then the high halves."""
    out[:, : BLOCK // 2] = packed & 15
    out[:, BLOCK // 2 :] = packed >> 4


def _fifth_bits(packed: Bytes, out: Floats) -> None:
    """[blocks, 4]: add 16 to the weights whose bit is set."""
    bits = np.unpackbits(np.ascontiguousarray(packed), axis=1, bitorder="little")
    out += bits << 4


def _q4_0(blocks: Bytes, out: Floats) -> None:
    _nibbles(blocks[:, 2:], out)
    out -= 8.0
    out *= _half(blocks[:, :2])


def _q4_1(blocks: Bytes, out: Floats) -> None:
    _nibbles(blocks[:, 4:], out)
    out *= _half(blocks[:, :2])
    out += _half(blocks[:, 2:4])


def _q5_0(blocks: Bytes, out: Floats) -> None:
    _nibbles(blocks[:, 6:], out)
    _fifth_bits(blocks[:, 2:6], out)
    out -= 16.0
    out *= _half(blocks[:, :2])


def _q5_1(blocks: Bytes, out: Floats) -> None:
    _nibbles(blocks[:, 8:], out)
    _fifth_bits(blocks[:, 4:8], out)
    out *= _half(blocks[:, :2])
    out += _half(blocks[:, 2:4])


def _q8_0(blocks: Bytes, out: Floats) -> None:
    out[:] = blocks.view(np.int8)[:, 2:]
    out *= _half(blocks[:, :2])


DENSE = {"F32": "<f4", "F16": "<f2", "F64": "<f8"}

BLOCKS: dict[str, tuple[int, Callable[[Bytes, Floats], None]]] = {
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q5_0": (22, _q5_0),
    "Q5_1": (24, _q5_1),
    "Q8_0": (34, _q8_0),
}
"""Bytes of a block, and how it is decoded."""


def _by_library(raw: Bytes, kind: str) -> Floats:
    from gguf import GGMLQuantizationType, quants

    try:
        # A copy, since some of its formats view the bytes as wider numbers.
        values: NDArray[Any] = quants.dequantize(raw.copy(), GGMLQuantizationType[kind])
    except (KeyError, NotImplementedError) as error:
        raise ModelUnavailable(f"Weights of type {kind} cannot be decoded.") from error
    return values.astype(np.float32, copy=False)
