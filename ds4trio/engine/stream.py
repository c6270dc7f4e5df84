"""Random numbers without state: draw n of a seed is a pure function of both.

A sequence therefore draws the same numbers alone and in company, on every device, and after it was
evicted and evaluated anew.
"""

from __future__ import annotations

__all__ = ["philox4x32", "uniform"]

WORD = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10


def philox4x32(
    counter: tuple[int, int, int, int], key: tuple[int, int]
) -> tuple[int, int, int, int]:
    """Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).

    All words are unsigned and 32 bits wide.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        left, right = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (right >> 32) ^ c1 ^ k0,
            right & WORD,
            (left >> 32) ^ c3 ^ k1,
            left & WORD,
        )
        k0, k1 = (k0 + KEY_STEPS[0]) & WORD, (k1 + KEY_STEPS[1]) & WORD
    return c0, c1, c2, c3


def uniform(seed: int, number: int) -> float:
    """Draw ``number`` of the stream of ``seed``: 53 bits, at least 0 and below 1.

    Both may be any integers; they count modulo 2**64.
    """
    counter = (number & WORD, number >> 32 & WORD, 0, 0)
    high, low, _, _ = philox4x32(counter, (seed & WORD, seed >> 32 & WORD))
    return ((high << 21) | (low >> 11)) / (1 << 53)
