"""The shape of a decoder: what ``config_hf`` and ``config_gguf`` read out of their files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, NoReturn

import msgspec

from ds4trio.errors import ModelUnavailable

__all__ = [
    "ARCHITECTURES",
    "ROPE_KINDS",
    "FieldReader",
    "ModelConfig",
    "RopeScaling",
    "refuse",
    "token_ids",
]

ARCHITECTURES = ("llama",)
"""The families of decoder that the engine can build."""

ROPE_KINDS = ("default", "linear", "llama3", "yarn")
"""The kinds of rotary embedding that the engine can build."""


class RopeScaling(msgspec.Struct, frozen=True, kw_only=True):
    """How rotary frequencies are stretched beyond the context the model was first trained with.

    Attributes:
        kind: ``linear`` position interpolation (arXiv:2306.15595), ``llama3`` (by wavelength, as
            Llama 3.1 does) or ``yarn`` (arXiv:2309.00071).
        factor: how far the context is stretched, at least 1.
        original_context_length: positions before stretching.
        low_freq_factor, high_freq_factor: llama3's borders, in turns per original context.
        beta_fast, beta_slow: yarn's borders, in turns per original context.
        attention_factor: yarn's multiplier of cosines and sines; None derives it from the factor.
        mscale, mscale_all_dim: yarn, the two weights whose ratio replaces the derived multiplier.
        truncate: yarn, round the border dimensions outwards to whole ones.
    """

    kind: Literal["linear", "llama3", "yarn"]
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


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder's shape. Sizes are in elements.

    Attributes:
        architecture: one of ``ARCHITECTURES``.
        vocab_size: rows of the embedding; token ids are below it.
        hidden_size, intermediate_size: widths of the residual stream and of the MLP.
        layers, heads, kv_heads, head_dim: ``heads`` is a multiple of ``kv_heads``; ``heads *
            head_dim`` need not be ``hidden_size``.
        norm_eps: added to the mean square in RMSNorm.
        rope_theta: base of the rotary frequencies.
        rope_scaling: None for plain rotary embeddings.
        rope_factors: ``head_dim / 2`` divisors of the rotary frequencies, from a GGUF file's
            ``rope_freqs.weight`` (how llama.cpp stores llama3 scaling); used instead of
            ``rope_scaling``, never with it.
        context_length: the most positions the model was made for.
        tied_head: the output head is the embedding; there is no ``lm_head.weight``.
        attention_bias, mlp_bias: whether those projections have biases.
        bos_token_id: the token that begins a text, if there is one.
        eos_token_ids: every token that ends a generation.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float
    context_length: int
    rope_scaling: RopeScaling | None = None
    rope_factors: tuple[float, ...] | None = None
    tied_head: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        sizes = {
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "layers": self.layers,
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "context_length": self.context_length,
        }
        for name, size in sizes.items():
            if size < 1:
                refuse(f"{name} is {size}; it must be positive")
        if self.heads % self.kv_heads:
            refuse(f"{self.heads} query heads cannot share {self.kv_heads} key/value heads")
        if self.head_dim % 2:
            refuse(f"rotary embeddings need an even head size, not {self.head_dim}")
        if not (math.isfinite(self.rope_theta) and self.rope_theta > 0):
            refuse(f"rope_theta is {self.rope_theta}; it must be positive")
        if self.rope_factors is not None and len(self.rope_factors) != self.head_dim // 2:
            refuse(f"{len(self.rope_factors)} rotary factors do not fit a head of {self.head_dim}")


def token_ids(value: Any) -> tuple[int, ...]:
    """A token id field as ids: an integer, a list of them, or nothing."""
    values = value if isinstance(value, list | tuple) else [value]
    return tuple(v for v in values if isinstance(v, int) and not isinstance(v, bool) and v >= 0)


class FieldReader:
    """Typed access to a mapping that came from a file; a missing key and null are the same."""

    def __init__(self, values: Mapping[str, Any], *, prefix: str = "") -> None:
        self.values = values
        self.prefix = prefix

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            refuse(f"{self.prefix}{key} is {value!r}; it must be an integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            refuse(f"{self.prefix}{key} is {value!r}; it must be a number")
        return float(value)

    def optional(self, key: str) -> float | None:
        return None if self.values.get(self.prefix + key) is None else self.number(key)

    def _value(self, key: str, default: float | None) -> Any:
        value = self.values.get(self.prefix + key)
        if value is None:
            value = default
        if value is None:
            refuse(f"{self.prefix}{key} is missing")
        return value


def refuse(why: str) -> NoReturn:
    """Say that the model cannot be used, and why. Always raises ``ModelUnavailable``."""
    raise ModelUnavailable(f"This model cannot be used: {why}.")
