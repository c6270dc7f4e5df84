"""The likeliest token of each row of logits, in one pass that also sees whether all are finite."""

from __future__ import annotations

import numpy as np
import torch
from numba import prange
from numba.types import float32, int64, void

from ds4trio.engine.native.compiled import compiled
from ds4trio.engine.native.vector import PANEL, likeliest
from ds4trio.engine.native.workers import workers

__all__ = ["likeliest_of_rows"]


@compiled(void(float32[:, :], int64[::1], int64), parallel=True)
def _find(logits, found, parts):
    rows, count = logits.shape
    whole = count // PANEL * PANEL
    for part in prange(parts):
        for row in range(rows * part // parts, rows * (part + 1) // parts):
            place = likeliest(logits[row].ctypes.data, whole)
            for rest in range(whole, count):
                number = logits[row, rest]
                if not np.isfinite(number):
                    place = -1
                elif place >= 0 and number > logits[row, place]:
                    place = rest
            found[row] = place


def likeliest_of_rows(logits: torch.Tensor) -> list[int]:
    """As ``argmax(-1)``: the first of equal ones.

    Args:
        logits: float32 [rows, vocab_size], the numbers of a row without gaps.

    Returns:
        Token ids; -1 for a row with a logit that is not finite.
    """
    found = np.empty(len(logits), np.int64)
    _find(logits.numpy(), found, workers())
    tokens: list[int] = found.tolist()
    return tokens
