"""Blocks of quantised weights -> float32, bit for bit as the gguf library computes them.

The formats that most files hold are done in ``ggml_blocks`` and ``ggml_superblocks``, two to four
times faster than there and without importing that library; it does the rest. All are decoded a
chunk at a time: nothing beside the result gets large, and what is written is still in the
processor's cache when it is scaled.

This is numpy and not torch on purpose: torch would split each of these small operations over its
threads, and on a busy machine waiting for one another costs them seconds.
"""

from __future__ import annotations

import numpy as np

from ds4trio.errors import ModelUnavailable
from ds4trio.models.gguf.blocks import BLOCK, BLOCKS, Bytes, Decoder, Floats
from ds4trio.models.gguf.superblocks import SUPERBLOCK, SUPERBLOCKS

__all__ = ["dequantize"]

CHUNK = 1 << 18
"""Weights decoded at a time: one megabyte of them, and up to three beside them."""

DENSE = {"F32": "<f4", "F16": "<f2", "F64": "<f8"}


def dequantize(raw: Bytes, kind: str) -> Floats:
    """Decode one tensor.

    Args:
        raw: one-dimensional: the tensor's bytes as they lie in the file.
        kind: ggml's name of the element type.

    Returns:
        One-dimensional, new memory.

    Raises:
        ModelUnavailable: an element type that neither this package nor the gguf library decodes.
    """
    if kind in DENSE:
        return raw.view(DENSE[kind]).astype(np.float32)
    if kind == "BF16":
        bits = raw.view("<u2")
        wide = np.empty(bits.shape, np.uint32)
        np.left_shift(bits, 16, out=wide, dtype=np.uint32)
        return wide.view(np.float32)
    block, size, decode = _decoder(kind)
    blocks = raw.reshape(-1, size)
    values = np.empty((len(blocks), block), np.float32)
    step = max(1, CHUNK // block)
    for begin in range(0, len(blocks), step):
        decode(blocks[begin : begin + step], values[begin : begin + step])
    return values.reshape(-1)


def _decoder(kind: str) -> tuple[int, int, Decoder]:
    """Weights in a block, its bytes, and how it is decoded."""
    if kind in BLOCKS:
        return BLOCK, *BLOCKS[kind]
    if kind in SUPERBLOCKS:
        return SUPERBLOCK, *SUPERBLOCKS[kind]
    return _library_decoder(kind)


def _library_decoder(kind: str) -> tuple[int, int, Decoder]:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

    def decode(blocks: Bytes, out: Floats) -> None:
        # A copy, since some of its formats view the bytes as wider numbers; as one row, since it
        # goes through short rows slowly.
        out[:] = quants.dequantize(blocks.copy().reshape(1, -1), number).reshape(out.shape)

    try:
        number = GGMLQuantizationType[kind]
        block, size = GGML_QUANT_SIZES[number]
        decode(np.zeros((1, size), np.uint8), np.empty((1, block), np.float32))
    except (KeyError, NotImplementedError, ValueError) as error:
        raise ModelUnavailable(f"Weights of type {kind} cannot be decoded.") from error
    return block, size, decode
