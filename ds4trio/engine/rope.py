"""Rotary position embedding (RoFormer, arXiv:2104.09864) and its stretched variants.

Frequencies and angles are computed in float32, as the transformers library (release 5) does, since
that is what the models were trained and are compared with.
"""

from __future__ import annotations

import math

import torch

from ds4trio.models.config import Rope, RopeScaling

__all__ = ["Rotary", "interleaved_rows", "inverse_frequencies", "rotations"]


class Rotary:
    """The rotations of every position up to a context length.

    Pairs of dimensions that turn together lie next to each other (as complex numbers do), before
    those that are not turned. Weights in Hugging Face order, where the partner of dimension i is
    i + dims / 2, are brought into this order once, by ``interleaved_rows``.

    Args:
        rope: one of the model's.
        context_length: positions ``0 .. context_length - 1`` can be turned.
        device: where the table lives.
        complex_numbers: turn by products of complex numbers; None where the device has them.
    """

    def __init__(
        self,
        rope: Rope,
        context_length: int,
        device: torch.device,
        *,
        complex_numbers: bool | None = None,
    ) -> None:
        self._dims = rope.dims
        self._table = rotations(rope, context_length).to(device)
        able = device.type in ("cpu", "cuda")
        self._complex = able if complex_numbers is None else complex_numbers

    def at(self, positions: torch.Tensor) -> torch.Tensor:
        """The rotations of positions (int32 or int64 [rows]), for any number of ``turn`` calls."""
        return self._table.index_select(0, positions).unsqueeze(1)

    def turn(self, heads: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        """Turn [rows, heads, head_dim] by ``at``'s rotations of the rows; the dtype is kept."""
        if self._dims < heads.shape[-1]:
            plain = heads[..., self._dims :]
            return torch.cat((self._turn(heads[..., : self._dims], turns), plain), -1)
        return self._turn(heads, turns)

    def _turn(self, heads: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        pairs = heads.reshape(*heads.shape[:-1], -1, 2).float()
        if self._complex:
            product = torch.view_as_complex(pairs) * torch.view_as_complex(turns)
            return torch.view_as_real(product).flatten(-2).to(heads.dtype)
        (even, odd), (cosine, sine) = pairs.unbind(-1), turns.unbind(-1)
        turned = torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), -1)
        return turned.flatten(-2).to(heads.dtype)


def rotations(rope: Rope, context_length: int) -> torch.Tensor:
    """Cosines and sines by position and pair, float32 [context_length, dims / 2, 2]."""
    frequencies, scale = inverse_frequencies(rope, context_length)
    angles = torch.outer(torch.arange(context_length, dtype=torch.float32), frequencies)
    return torch.stack((angles.cos(), angles.sin()), -1).mul_(scale)


def interleaved_rows(projection: torch.Tensor, head_dim: int, dims: int) -> torch.Tensor:
    """Reorder the rows of a q or k projection ([heads * head_dim, ...]) so that pairs adjoin, among
    the first ``dims`` of each head."""
    heads = projection.reshape(-1, head_dim, *projection.shape[1:])
    halves = heads[:, :dims].reshape(len(heads), 2, dims // 2, *projection.shape[1:])
    turned = halves.transpose(1, 2).reshape(len(heads), dims, *projection.shape[1:])
    return torch.cat((turned, heads[:, dims:]), 1).reshape(projection.shape)


def inverse_frequencies(rope: Rope, context_length: int) -> tuple[torch.Tensor, float]:
    """The angle per position of each pair of dimensions, float32 [dims / 2], and the factor by
    which cosines and sines are multiplied.

    ``dynamic`` and ``longrope`` depend on how long a sequence may become (``context_length``), not
    on how long one is: keys that are cached were turned once, and neighbours in a batch must not
    matter.
    """
    plain = _plain(rope.theta, rope.dims)
    if rope.factors is not None:
        return plain / torch.tensor(rope.factors, dtype=torch.float32), 1.0
    scaling = rope.scaling
    if scaling is None:
        return plain, 1.0
    match scaling.kind:
        case "linear":
            return plain / scaling.factor, 1.0
        case "dynamic":
            return _plain(
                _grown_base(rope.theta, rope.dims, scaling, context_length), rope.dims
            ), 1.0
        case "llama3":
            return _by_wavelength(plain, scaling), 1.0
        case "yarn":
            return _by_turns(plain, rope.theta, rope.dims, scaling), _temperature(scaling)
        case "longrope":
            long = context_length > scaling.original_context_length
            divisors = scaling.long_factors if long else scaling.short_factors
            return plain / torch.tensor(divisors, dtype=torch.float32), _long_temperature(scaling)


def _plain(theta: float, dims: int) -> torch.Tensor:
    steps = torch.arange(0, dims, 2, dtype=torch.float32)
    return 1.0 / (theta ** (steps / dims))


def _grown_base(theta: float, dims: int, scaling: RopeScaling, context_length: int) -> float:
    """NTK-aware scaling: the base at which the longest wave is stretched just enough."""
    original = scaling.original_context_length
    stretch = scaling.factor * max(context_length, original) / original - (scaling.factor - 1)
    return theta * stretch ** (dims / (dims - 2)) if dims > 2 else theta


def _by_wavelength(plain: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Llama 3.1 (arXiv:2407.21783): long waves are stretched, short ones stay, a ramp between."""
    turns = scaling.original_context_length * plain / (2 * math.pi)
    ramp = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = ramp.clamp(0.0, 1.0)
    return plain * (kept + (1.0 - kept) / scaling.factor)


def _by_turns(
    plain: torch.Tensor, theta: float, head_dim: int, scaling: RopeScaling
) -> torch.Tensor:
    """YaRN (arXiv:2309.00071), section 3.2: the ramp runs over dimensions, between the one that
    turns ``beta_fast`` times in the original context and the one that turns ``beta_slow`` times."""

    def dimension(turns: float) -> float:
        span = scaling.original_context_length / (turns * 2 * math.pi)
        return head_dim * math.log(span) / (2 * math.log(theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    order = torch.arange(head_dim // 2, dtype=torch.float32)
    stretched = ((order - low) / (high - low)).clamp(0.0, 1.0)
    return plain * (1.0 - stretched) + plain / scaling.factor * stretched


def _long_temperature(scaling: RopeScaling) -> float:
    """LongRoPE's multiplier of cosines and sines (arXiv:2402.13753)."""
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.factor <= 1:
        return 1.0
    return math.sqrt(1 + math.log(scaling.factor) / math.log(scaling.original_context_length))


def _temperature(scaling: RopeScaling) -> float:
    """YaRN's multiplier of cosines and sines (section 3.3), which sharpens attention."""
    if scaling.attention_factor is not None:
        return scaling.attention_factor

    def weighted(weight: float) -> float:
        return 1.0 if scaling.factor <= 1 else 0.1 * weight * math.log(scaling.factor) + 1.0

    if scaling.mscale and scaling.mscale_all_dim:
        return weighted(scaling.mscale) / weighted(scaling.mscale_all_dim)
    return weighted(1.0)
