"""ggml's formats with blocks of 256 weights, whose groups have small scales of their own.

As in ``ggml_blocks``: blocks are uint8 [blocks, bytes of a block], ``out`` is float32
[blocks, 256], layouts are those of ``ggml-common.h``, and everything is rounded in the gguf
library's order.

Weights are taken apart as bytes in a scratch array and become floats all at once, because that is
one long loop for numpy.
"""

from __future__ import annotations

import numpy as np

from ds4trio.models.gguf.blocks import IQ4_VALUES, Bytes, Decoder, Floats, half, levels_by_nibble

__all__ = ["SUPERBLOCK", "SUPERBLOCKS"]

SUPERBLOCK = 256

PAIRS_OF_BITS = np.array([0, 2, 4, 6], np.uint8)[:, None]
BITS = np.arange(8, dtype=np.uint8)[:, None]


def _nibbles(packed: Bytes, width: int) -> Bytes:
    """[blocks, 128] -> [blocks, 8, 32]: of every ``width`` bytes the low halves, then the high."""
    runs = packed.reshape(len(packed), -1, width)
    out = np.empty((len(packed), runs.shape[1], 2, width), np.uint8)
    np.bitwise_and(runs, 15, out=out[:, :, 0])
    np.right_shift(runs, 4, out=out[:, :, 1])
    return out.reshape(-1, 8, 32)


def _pairs(packed: Bytes) -> Bytes:
    """[blocks, 64] -> [blocks, 8, 32]: of every 32 bytes the lowest two bits, then the next two."""
    out = packed.reshape(-1, 2, 1, 32) >> PAIRS_OF_BITS
    out &= 3
    return out.reshape(-1, 8, 32)


def _bits(packed: Bytes, place: int) -> Bytes:
    """[blocks, 32] -> [blocks, 8, 32]: the lowest bits, then the next, each moved to ``place``."""
    out = packed[:, None, :] >> BITS
    out &= 1
    out <<= place
    return out


def _scale(out: Floats, scales: Floats, leasts: Floats | None = None) -> None:
    """Multiply each group of ``out``, and subtract; one scale (and least) a group, [blocks, n]."""
    groups = out.reshape(*scales.shape, -1)
    groups *= scales[:, :, None]
    if leasts is not None:
        groups -= leasts[:, :, None]


def _six_bit_pairs(packed: Bytes) -> tuple[Bytes, Bytes]:
    """The scales and leasts of Q4_K and Q5_K: twelve bytes -> two of [blocks, 8], from 0 to 63.

    The first four scales are the low bits of bytes 0 to 3, the first four leasts those of bytes 4
    to 7. Of the last four, bytes 8 to 11 have the low halves and those first bytes' top bits the
    rest.
    """
    first, second, low = packed[:, :4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, (low & 15) | ((first >> 6) << 4)], axis=1)
    leasts = np.concatenate([second & 63, (low >> 4) | ((second >> 6) << 4)], axis=1)
    return scales, leasts


def _q2_k(blocks: Bytes, out: Floats) -> None:
    out.reshape(-1, 8, 32)[:] = _pairs(blocks[:, 16:80])
    factors = blocks[:, :16]
    _scale(out, half(blocks[:, 80:82]) * (factors & 15), half(blocks[:, 82:84]) * (factors >> 4))


def _q3_k(blocks: Bytes, out: Floats) -> None:
    levels = _pairs(blocks[:, 32:96])
    levels |= _bits(blocks[:, :32], 2)
    out.reshape(-1, 8, 32)[:] = levels
    out -= 4.0
    # Sixteen factors of six bits: low halves in eight bytes, the top two bits in four more.
    low, high = blocks[:, 96:104], blocks[:, 104:108]
    factors = np.concatenate([low & 15, low >> 4], axis=1)
    factors |= ((high[:, None, :] >> PAIRS_OF_BITS) & 3).reshape(-1, 16) << 4
    _scale(out, half(blocks[:, 108:110]) * (factors.view(np.int8) - np.int8(32)))


def _q4_k(blocks: Bytes, out: Floats) -> None:
    out.reshape(-1, 8, 32)[:] = _nibbles(blocks[:, 16:], 32)
    factors, leasts = _six_bit_pairs(blocks[:, 4:16])
    _scale(out, half(blocks[:, :2]) * factors, half(blocks[:, 2:4]) * leasts)


def _q5_k(blocks: Bytes, out: Floats) -> None:
    levels = _nibbles(blocks[:, 48:], 32)
    levels |= _bits(blocks[:, 16:48], 4)
    out.reshape(-1, 8, 32)[:] = levels
    factors, leasts = _six_bit_pairs(blocks[:, 4:16])
    _scale(out, half(blocks[:, :2]) * factors, half(blocks[:, 2:4]) * leasts)


def _q6_k(blocks: Bytes, out: Floats) -> None:
    levels = _nibbles(blocks[:, :128], 64)
    levels |= _pairs(blocks[:, 128:192]) << 4
    levels -= 32
    out.reshape(-1, 8, 32)[:] = levels.view(np.int8)
    _scale(out, half(blocks[:, 208:210]) * blocks[:, 192:208].view(np.int8))


IQ4_TABLES = levels_by_nibble(IQ4_VALUES)


def _iq4_xs(blocks: Bytes, out: Floats) -> None:
    packed = blocks[:, 8:].tobytes()
    halves = out.reshape(-1, 8, 2, 16)
    for member, table in enumerate(IQ4_TABLES):
        levels = np.frombuffer(packed.translate(table), np.int8)
        halves[:, :, member] = levels.reshape(-1, 8, 16)
    # Eight factors of six bits: low halves in four bytes, the top two bits in a number of sixteen.
    low = blocks[:, 4:8]
    factors = np.stack([low & 15, low >> 4], axis=2).reshape(-1, 8)
    high = np.ascontiguousarray(blocks[:, 2:4]).view("<u2") >> (2 * np.arange(8, dtype=np.uint16))
    factors |= ((high & 3) << 4).astype(np.uint8)
    _scale(out, half(blocks[:, :2]) * (factors.view(np.int8) - np.int8(32)))


SUPERBLOCKS: dict[str, tuple[int, Decoder]] = {
    "Q2_K": (84, _q2_k),
    "Q3_K": (110, _q3_k),
    "Q4_K": (144, _q4_k),
    "Q5_K": (176, _q5_k),
    "Q6_K": (210, _q6_k),
    "IQ4_XS": (136, _iq4_xs),
}
"""Bytes of a block, and how it is decoded."""
