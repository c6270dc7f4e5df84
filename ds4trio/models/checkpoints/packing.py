"""Small whole numbers in 32-bit words and in bytes, and what they are multiplied by."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["CHUNK", "packed_size", "pairs_by_byte", "scale_groups", "unpack"]

CHUNK = 1 << 19
"""Weights decoded at a time, so that little is needed beside the result."""


def packed_size(count: int, bits: int) -> int:
    """Words that hold so many numbers; the last one may have room to spare."""
    return -(-count * bits // 32)


def unpack(words: NDArray[Any], bits: int, axis: int) -> NDArray[np.uint8]:
    """Take words apart, lowest bits first; numbers go on from one word into the next.

    Args:
        words: of 32 bits, little-endian, any shape.
        bits: of each number, at most 8.
        axis: along which they are packed. Its size must be a multiple of ``bits / gcd(bits, 32)``.

    Returns:
        The numbers, with that axis as the last one.
    """
    moved = np.ascontiguousarray(np.moveaxis(words, axis, -1))
    if bits not in (2, 4, 8):
        return _across_words(moved.view("<u4"), bits)
    packed = moved.view(np.uint8)
    if bits == 8:
        return packed
    # The bits of each byte are drawn apart until each number has a byte of its own.
    if bits == 4:
        pairs = packed.astype("<u2")
        pairs |= pairs << 4
        pairs &= 0x0F0F
        return pairs.view(np.uint8)
    fours = packed.astype("<u4")
    fours |= fours << 6
    fours |= fours << 12
    fours &= 0x03030303
    return fours.view(np.uint8)


def _across_words(words: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    common = math.gcd(bits, 32)
    run, count = bits // common, 32 // common
    runs = words.reshape(*words.shape[:-1], -1, run)
    out = np.empty((*runs.shape[:-1], count), np.uint8)
    for place in range(count):
        word, offset = divmod(place * bits, 32)
        number = runs[..., word] >> offset
        if offset + bits > 32:
            number |= runs[..., word + 1] << (32 - offset)
        out[..., place] = number & ((1 << bits) - 1)
    return out.reshape(*words.shape[:-1], -1)


def pairs_by_byte(values: NDArray[np.float32], *, low_first: bool) -> NDArray[np.uint64]:
    """A table from a byte to the two float32 that its halves stand for, as one number of 64 bits.

    ``np.take(table, packed).view(np.float32)`` is then what packed bytes stand for, in half as many
    look-ups as there are numbers.
    """
    every = np.arange(256)
    halves = (every & 15, every >> 4) if low_first else (every >> 4, every & 15)
    pairs = np.stack([values[half] for half in halves], axis=1)
    return np.ascontiguousarray(pairs, np.float32).view(np.uint64).reshape(256)


def scale_groups(
    out: NDArray[np.float32],
    zeros: NDArray[np.float32],
    scales: NDArray[np.float32],
    group: NDArray[Any] | None,
) -> None:
    """``(level - zero) * scale``, in place.

    Args:
        out: levels [rows, inputs].
        zeros, scales: [rows, groups].
        group: of each input; None where groups are of one size and follow each other.
    """
    if group is None:
        by_group = out.reshape(*scales.shape, -1)
        by_group -= zeros[:, :, None]
        by_group *= scales[:, :, None]
    else:
        out -= zeros[:, group]
        out *= scales[:, group]
