"""ggml's formats with blocks of 32 weights that share a scale: how their blocks are decoded.

Layouts: ``ggml-common.h`` of ggml; the numbers of a block are little-endian. Every function here
takes blocks, uint8 [blocks, bytes of a block], and fills ``out``, float32 [blocks, 32]. Products
and sums are rounded in the order in which the gguf library makes them, so that the bits are the
same.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BLOCK",
    "BLOCKS",
    "IQ4_VALUES",
    "Bytes",
    "Decoder",
    "Floats",
    "half",
    "levels_by_nibble",
]

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Decoder = Callable[[Bytes, Floats], None]

BLOCK = 32

IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The levels of IQ4_NL and IQ4_XS, which lie closer together near zero."""

FP4_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice the values of the four-bit float E2M1 (OCP Microscaling Formats, v1.0)."""


def half(columns: Bytes) -> Floats:
    """A float16 of each block, in two bytes -> [blocks, 1]."""
    return np.ascontiguousarray(columns).view("<f2").astype(np.float32)


def levels_by_nibble(values: tuple[int, ...]) -> tuple[bytes, bytes]:
    """Tables for ``bytes.translate``: a byte -> the int8 for its low half, and for its high half.

    That method is several times faster than an array of indices.
    """
    table = np.asarray(values, np.int8)
    every = np.arange(256)
    return table[every & 15].tobytes(), table[every >> 4].tobytes()


def _nibbles(packed: Bytes, out: Floats) -> None:
    """[blocks, 16] -> [blocks, 32]: the low halves, then the high halves."""
    out[:, : BLOCK // 2] = packed & 15
    out[:, BLOCK // 2 :] = packed >> 4


def _fifth_bits(packed: Bytes, out: Floats) -> None:
    """[blocks, 4]: add 16 to the weights whose bit is set."""
    bits = np.unpackbits(np.ascontiguousarray(packed), axis=1, bitorder="little")
    out += bits << 4


def _levels(packed: Bytes, tables: tuple[bytes, bytes], out: Floats) -> None:
    """[blocks, 16] -> [blocks, 32]: what the low halves stand for, then the high halves."""
    content = packed.tobytes()
    for table, begin in zip(tables, (0, BLOCK // 2), strict=True):
        levels = np.frombuffer(content.translate(table), np.int8).reshape(packed.shape)
        out[:, begin : begin + BLOCK // 2] = levels


def _q4_0(blocks: Bytes, out: Floats) -> None:
    _nibbles(blocks[:, 2:], out)
    out -= 8.0
    out *= half(blocks[:, :2])


def _q4_1(blocks: Bytes, out: Floats) -> None:
    _nibbles(blocks[:, 4:], out)
    out *= half(blocks[:, :2])
    out += half(blocks[:, 2:4])


def _q5_0(blocks: Bytes, out: Floats) -> None:
    _nibbles(blocks[:, 6:], out)
    _fifth_bits(blocks[:, 2:6], out)
    out -= 16.0
    out *= half(blocks[:, :2])


def _q5_1(blocks: Bytes, out: Floats) -> None:
    _nibbles(blocks[:, 8:], out)
    _fifth_bits(blocks[:, 4:8], out)
    out *= half(blocks[:, :2])
    out += half(blocks[:, 2:4])


def _q8_0(blocks: Bytes, out: Floats) -> None:
    out[:] = blocks.view(np.int8)[:, 2:]
    out *= half(blocks[:, :2])


IQ4_TABLES = levels_by_nibble(IQ4_VALUES)


def _iq4_nl(blocks: Bytes, out: Floats) -> None:
    _levels(blocks[:, 2:], IQ4_TABLES, out)
    out *= half(blocks[:, :2])


FP4_TABLES = levels_by_nibble(FP4_DOUBLED)


def _half_powers() -> Floats:
    """A byte -> half the power of two whose biased exponent it is; the two least are denormal."""
    exponents = np.arange(256, dtype=np.uint32)
    bits = (np.maximum(exponents, 1) - 1) << 23
    bits[:2] = (1 << 21, 1 << 22)
    return bits.view(np.float32)


HALF_POWERS = _half_powers()


def _mxfp4(blocks: Bytes, out: Floats) -> None:
    _levels(blocks[:, 1:], FP4_TABLES, out)
    out *= HALF_POWERS[blocks[:, :1]]


BLOCKS: dict[str, tuple[int, Decoder]] = {
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q5_0": (22, _q5_0),
    "Q5_1": (24, _q5_1),
    "Q8_0": (34, _q8_0),
    "IQ4_NL": (18, _iq4_nl),
    "MXFP4": (17, _mxfp4),
}
"""Bytes of a block, and how it is decoded."""
