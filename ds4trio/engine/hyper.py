"""Several residual streams in place of one: manifold-constrained hyper-connections
(arXiv:2512.24880), as DeepSeek V4 has them.

What goes into attention or an MLP is a weighted sum of the streams; what comes out is added to each
with a weight of its own, and the streams themselves are mixed by a matrix whose rows and columns
sum to one. All weights are computed from the streams, in float32.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from ds4trio.engine.attention import Cache, Plan
from ds4trio.engine.compressed import CompressedAttention
from ds4trio.engine.experts import Mixture
from ds4trio.engine.norm import RMSNorm
from ds4trio.engine.source import WeightSource
from ds4trio.errors import ModelUnavailable
from ds4trio.models.config import Streams

__all__ = ["HyperBlock", "HyperHead", "exponential"]

EVEN = 16384
"""Numbers whose exponentials are taken together. Fewer are filled up: the framework computes the
last numbers of an odd count by other code, and a row's bits would depend on the count."""


def exponential(numbers: torch.Tensor) -> torch.Tensor:
    """e to the power of each, with the same bits wherever a number stands."""
    flat = numbers.flatten()
    missing = -len(flat) % (64 if len(flat) <= EVEN else EVEN)
    parts = torch.split(functional.pad(flat, (0, missing)), EVEN)
    return torch.cat([part.exp() for part in parts])[: len(flat)].view(numbers.shape)


def _sigmoid(numbers: torch.Tensor) -> torch.Tensor:
    return 1.0 / (1.0 + exponential(-numbers))


def _sum(numbers: torch.Tensor, dim: int) -> torch.Tensor:
    """One after the other, so that the order is always the same."""
    first, *rest = numbers.unbind(dim)
    for more in rest:
        first = first + more
    return first


class _Weights:
    """Numbers for each row that a product of its streams gives, before what is made of them."""

    def __init__(self, source: WeightSource, name: str, outputs: int, scales: int) -> None:
        config = source.config
        assert config.streams is not None
        width = config.streams.count * config.hidden_size
        self._product = source.product(
            name,
            lambda: (source.take(f"{name}.fn", outputs, width).float(), None),
            dtype="float32",
        )
        ones = torch.ones(width, device=source.device)
        self._norm = RMSNorm(ones, config.norm_eps)
        self.base = source.take(f"{name}.base", outputs).to(source.device, torch.float32)
        self.scale = source.take(f"{name}.scale", scales).to(source.device, torch.float32)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._product(hidden.float(), self._norm)


class HyperConnection:
    """How one half of a block is connected to the streams.

    Args:
        source: of the weights.
        name: of the connection.
        streams: of the model.
    """

    def __init__(self, source: WeightSource, name: str, streams: Streams) -> None:
        count = streams.count
        self._streams = streams
        self._weights = _Weights(source, name, (2 + count) * count, 3)

    def __call__(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Look at the streams of rows.

        Args:
            hidden: [rows, count * hidden_size].

        Returns:
            What goes in, [rows, hidden_size]; the weights of what comes out, [rows, count]; and the
            matrix that mixes the streams, [rows, count, count], from the first index to the second.
        """
        count, epsilon = self._streams.count, self._streams.epsilon
        mixes = self._weights(hidden)
        base, scale = self._weights.base, self._weights.scale
        into = _sigmoid(mixes[:, :count] * scale[0] + base[:count]) + epsilon
        out = 2 * _sigmoid(mixes[:, count : 2 * count] * scale[1] + base[count : 2 * count])
        matrix = mixes[:, 2 * count :] * scale[2] + base[2 * count :]
        matrix = matrix.view(-1, count, count)
        powers = exponential(matrix - matrix.amax(-1, keepdim=True))
        matrix = powers / _sum(powers, -1).unsqueeze(-1) + epsilon
        matrix = matrix / (_sum(matrix, -2).unsqueeze(-2) + epsilon)
        for _ in range(self._streams.iterations - 1):
            matrix = matrix / (_sum(matrix, -1).unsqueeze(-1) + epsilon)
            matrix = matrix / (_sum(matrix, -2).unsqueeze(-2) + epsilon)
        return _collapsed(hidden, into), out, matrix

    def add(
        self, hidden: torch.Tensor, done: torch.Tensor, out: torch.Tensor, matrix: torch.Tensor
    ) -> torch.Tensor:
        """The streams after what came out of a half, [rows, hidden_size], is added to them."""
        count = self._streams.count
        out, matrix = out.to(hidden.dtype), matrix.to(hidden.dtype)
        streams = hidden.view(len(hidden), count, -1)
        mixed = torch.stack(
            [
                done * out[:, to, None] + _sum(streams * matrix[:, :, to, None], 1)
                for to in range(count)
            ],
            1,
        )
        return mixed.flatten(1)


def _collapsed(hidden: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    streams = hidden.view(len(hidden), weights.shape[1], -1)
    return _sum(streams * weights.unsqueeze(-1), 1).to(hidden.dtype)


class HyperHead:
    """Puts the streams together after the last block."""

    def __init__(self, source: WeightSource, streams: Streams) -> None:
        self._epsilon = streams.epsilon
        self._weights = _Weights(source, "model.head_streams", streams.count, 1)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, count * hidden_size] -> [rows, hidden_size]."""
        mixes = self._weights(hidden) * self._weights.scale + self._weights.base
        return _collapsed(hidden, _sigmoid(mixes) + self._epsilon)


class HyperBlock:
    """One layer of a network with several streams; arguments as for ``Block``."""

    def __init__(self, source: WeightSource, layer: int) -> None:
        config = source.config
        if config.streams is None or config.compressed is None or config.experts is None:
            raise ModelUnavailable("streams go with compressed attention and experts here")
        name, kind = f"model.layers.{layer}", config.kind(layer)
        self._into_attention = HyperConnection(source, f"{name}.attn_streams", config.streams)
        self._attention_norm = source.norm(f"{name}.input_layernorm", config.hidden_size)
        self._attention = CompressedAttention(source, layer, f"{name}.self_attn")
        self._into_mlp = HyperConnection(source, f"{name}.mlp_streams", config.streams)
        self._mlp_norm = source.norm(f"{name}.post_attention_layernorm", config.hidden_size)
        self._mlp = Mixture(source, f"{name}.mlp", config.experts, scale=1.0, hashed=kind.hashed)

    def __call__(self, hidden: torch.Tensor, plan: Plan, attention: Cache) -> torch.Tensor:
        """Rows of streams, [rows, count * hidden_size]."""
        into, out, matrix = self._into_attention(hidden)
        done = self._attention(into, self._attention_norm, plan, attention)
        hidden = self._into_attention.add(hidden, done, out, matrix)
        into, out, matrix = self._into_mlp(hidden)
        done = self._mlp(into, self._mlp_norm)
        return self._into_mlp.add(hidden, done, out, matrix)
