"""Rotary position embedding (RoFormer, arXiv:2104.09864) and its stretched variants.

Frequencies and angles are computed in float32, as the transformers library (release 5) does, since
that is what the models were trained and are compared with.
"""

from __future__ import annotations

import math

import torch

from ds4trio.errors import ModelUnavailable
from ds4trio.models.config import ModelConfig, RopeScaling

__all__ = ["Rotary", "interleaved_rows", "inverse_frequencies", "rotations"]


class Rotary:
    """The rotations of every position up to a context length.

    Pairs of dimensions that turn together lie next to each other (as complex numbers do). Weights
    in Hugging Face order, where the partner of dimension i is i + head_dim / 2, are brought into
    this order once, by ``interleaved_rows``.

    Args:
        config: of the model.
        context_length: positions ``0 .. context_length - 1`` can be turned.
        device: where the table lives.
        complex_numbers: turn by products of complex numbers; None where the device has them.
    """

    def __init__(
        self,
        config: ModelConfig,
        context_length: int,
        device: torch.device,
        *,
        complex_numbers: bool | None = None,
    ) -> None:
        self._table = rotations(config, context_length).to(device)
        able = device.type in ("cpu", "cuda")
        self._complex = able if complex_numbers is None else complex_numbers

    def at(self, positions: torch.Tensor) -> torch.Tensor:
        """The rotations of positions (int32 or int64 [rows]), for any number of ``turn`` calls."""
        return self._table.index_select(0, positions).unsqueeze(1)

    def turn(self, heads: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        """Turn [rows, heads, head_dim] by ``at``'s rotations of the rows; the dtype is kept."""
        pairs = heads.reshape(*heads.shape[:-1], -1, 2).float()
        if self._complex:
            product = torch.view_as_complex(pairs) * torch.view_as_complex(turns)
            return torch.view_as_real(product).flatten(-2).to(heads.dtype)
        (even, odd), (cosine, sine) = pairs.unbind(-1), turns.unbind(-1)
        turned = torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), -1)
        return turned.flatten(-2).to(heads.dtype)


def rotations(config: ModelConfig, context_length: int) -> torch.Tensor:
    """Cosines and sines by position and pair, float32 [context_length, head_dim / 2, 2]."""
    frequencies, scale = inverse_frequencies(config)
    angles = torch.outer(torch.arange(context_length, dtype=torch.float32), frequencies)
    return torch.stack((angles.cos(), angles.sin()), -1).mul_(scale)


def interleaved_rows(projection: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Reorder the rows of a q or k projection ([heads * head_dim, ...]) so that pairs adjoin."""
    halves = projection.view(-1, 2, head_dim // 2, *projection.shape[1:])
    return halves.transpose(1, 2).reshape(projection.shape)


def inverse_frequencies(config: ModelConfig) -> tuple[torch.Tensor, float]:
    """The angle per position of each pair of dimensions, float32 [head_dim / 2], and the factor
    by which cosines and sines are multiplied.

    Raises ModelUnavailable for a kind of scaling that is not known here.
    """
    steps = torch.arange(0, config.head_dim, 2, dtype=torch.float32)
    plain = 1.0 / (config.rope_theta ** (steps / config.head_dim))
    if config.rope_factors is not None:
        return plain / torch.tensor(config.rope_factors, dtype=torch.float32), 1.0
    scaling = config.rope_scaling
    if scaling is None:
        return plain, 1.0
    kind: str = scaling.kind
    if kind == "linear":
        return plain / scaling.factor, 1.0
    if kind == "llama3":
        return _by_wavelength(plain, scaling), 1.0
    if kind == "yarn":
        return _by_turns(plain, config.rope_theta, config.head_dim, scaling), _temperature(scaling)
    raise ModelUnavailable(f"the model's rotary scaling {kind!r} is not supported")


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


def _temperature(scaling: RopeScaling) -> float:
    """YaRN's multiplier of cosines and sines (section 3.3), which sharpens attention."""
    if scaling.attention_factor is not None:
        return scaling.attention_factor

    def weighted(weight: float) -> float:
        return 1.0 if scaling.factor <= 1 else 0.1 * weight * math.log(scaling.factor) + 1.0

    if scaling.mscale and scaling.mscale_all_dim:
        return weighted(scaling.mscale) / weighted(scaling.mscale_all_dim)
    return weighted(1.0)
