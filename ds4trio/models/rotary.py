"""The rotary embeddings of a model: which dimensions turn, how fast, and how they are stretched."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from ds4trio.models.fields import refuse

__all__ = ["ROPE_KINDS", "Rope", "RopeScaling"]

ROPE_KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
"""The kinds of rotary embedding that the engine can build."""


class RopeScaling(msgspec.Struct, frozen=True, kw_only=True):
    """How rotary frequencies are stretched beyond the context the model was first trained with.

    Attributes:
        kind: ``linear`` position interpolation (arXiv:2306.15595), ``dynamic`` (a base that grows
            with the context, "NTK-aware"), ``llama3`` (by wavelength, as Llama 3.1 does), ``yarn``
            (arXiv:2309.00071) or ``longrope`` (a divisor for each frequency, arXiv:2402.13753).
        factor: how far the context is stretched, at least 1.
        original_context_length: positions before stretching.
        low_freq_factor, high_freq_factor: llama3's borders, in turns per original context.
        beta_fast, beta_slow: yarn's borders, in turns per original context.
        attention_factor: yarn's and longrope's multiplier of cosines and sines; None derives it
            from the factor.
        mscale, mscale_all_dim: yarn, the two weights whose ratio replaces the derived multiplier.
        truncate: yarn, round the border dimensions outwards to whole ones.
        short_factors, long_factors: longrope, divisors up to the original context and beyond.
    """

    kind: Literal["linear", "dynamic", "llama3", "yarn", "longrope"]
    factor: float
    original_context_length: int
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.factor > 0:
            refuse(f"the factor of a rotary scaling is {self.factor}; it must be positive")
        if self.original_context_length < 2:
            refuse(f"a context of {self.original_context_length} positions cannot be stretched")
        if self.beta_fast <= 0 or self.beta_slow <= 0:
            refuse("the borders of yarn's scaling must be positive")
        if self.kind == "llama3" and self.high_freq_factor <= self.low_freq_factor:
            refuse("high_freq_factor must be above low_freq_factor")


class Rope(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of rotary embedding of a model.

    Attributes:
        theta: base of the frequencies.
        dims: how many dimensions of a head are turned, an even number; the others stay.
        scaling: None for plain frequencies.
        factors: ``dims / 2`` divisors of the frequencies, from a GGUF file's ``rope_freqs.weight``
            (how llama.cpp stores llama3 scaling); used instead of ``scaling``, never with it.
    """

    theta: float
    dims: int
    scaling: RopeScaling | None = None
    factors: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.dims < 2 or self.dims % 2:
            refuse(f"rotary embeddings need an even number of dimensions, not {self.dims}")
        if not (math.isfinite(self.theta) and self.theta > 1):
            refuse(f"rope_theta is {self.theta}; it must be above 1")
        divisors = [self.factors] if self.factors is not None else []
        if self.scaling is not None and self.scaling.kind == "longrope":
            divisors += [self.scaling.short_factors, self.scaling.long_factors]
        for factors in divisors:
            if len(factors) != self.dims // 2:
                refuse(f"{len(factors)} rotary factors do not fit {self.dims} dimensions")
            if not all(0 < factor < math.inf for factor in factors):
                refuse("a rotary factor is not a positive number")
