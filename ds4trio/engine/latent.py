"""Multi-head latent attention (DeepSeek V2, arXiv:2405.04434).

Keys and values of all heads are made of one vector a position, the latent, and keys have a few
turned dimensions more that all heads share. Only these are cached. The matrices that would make
keys and values of them are applied to the other side instead ("absorbed", section 2.1.2 there):
a query becomes one of the latent before it attends, and what attention gives, a mixture of latents,
becomes one of values afterwards. So attention sees many query heads over a single key, the turned
dimensions and the latent, and a single value, the latent again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from ds4trio.engine.attention import Attention, Plan
from ds4trio.engine.linear import Linear
from ds4trio.engine.norm import RMSNorm
from ds4trio.engine.rope import interleaved_rows
from ds4trio.engine.source import WeightSource
from ds4trio.models.config import Latent

__all__ = ["LatentAttention"]


class LatentAttention:
    """What is attended to, before the product that follows.

    The products before a query and its absorption stay two. Made into one when the model is loaded
    they would be a matrix of heads x rank outputs in place of heads x plain_dim: three to four
    times the weights to hold and to read in every step, and rounded a second time where a file has
    them in few bits.

    Args:
        source: of the weights, of a model with ``latent``.
        layer: of the decoder.
        name: of the layer's attention.
        latent: of the config.
    """

    def __init__(self, source: WeightSource, layer: int, name: str, latent: Latent) -> None:
        config = source.config
        self._layer = layer
        self._heads = config.heads
        self._latent = latent
        self._compress: Linear | None = None
        self._query_norm: RMSNorm | None = None
        if latent.query_rank:
            self._compress = source.linear(
                f"{name}.q_a_proj",
                latent.query_rank,
                config.hidden_size,
                bias=config.attention_bias,
            )
            self._query_norm = _norm(source, f"{name}.q_a_layernorm", latent.query_rank)
        self._queries = _queries(source, name, latent)
        key_weight, value_weight = _products_of_heads(source, name, latent)
        self._absorb = source.headwise(f"{name}.k_b_proj", config.heads, key_weight)
        self._cached = _cached(source, name, latent)
        self._cached_norm = _norm(source, f"{name}.kv_a_layernorm", latent.rank)
        self._normalised = source.normalised
        self._values = source.headwise(f"{name}.v_b_proj", config.heads, value_weight)

    def __call__(
        self, hidden: torch.Tensor, norm: RMSNorm | None, plan: Plan, attention: Attention
    ) -> torch.Tensor:
        """[rows, hidden_size], normalised first by ``norm`` -> [rows, heads * value_dim]."""
        latent, heads, rows = self._latent, self._heads, len(hidden)
        turned, rank = latent.turned_dim, latent.rank
        if self._compress is None:
            queries = self._queries(hidden, norm)
        else:
            queries = self._queries(self._compress(hidden, norm), self._query_norm)
        queries = queries.view(rows, heads, turned + latent.plain_dim)
        cached = self._cached(hidden, norm)
        held = self._normalised(cached[:, turned:], self._cached_norm)

        key = heads * (turned + rank)
        value = key + turned + rank
        inputs = queries.new_empty((rows, value + rank))
        absorbed = inputs[:, :key].view(rows, heads, turned + rank)
        absorbed[..., :turned] = queries[..., :turned]
        self._absorb(queries[..., turned:], absorbed[..., turned:])
        inputs[:, key : key + turned] = cached[:, :turned]
        inputs[:, key + turned : value] = held
        inputs[:, value:] = held

        mixed = attention.attend(self._layer, plan, inputs)
        values = mixed.new_empty((rows, heads, latent.value_dim))
        self._values(mixed.view(rows, heads, rank), values)
        return values.flatten(1)


def _norm(source: WeightSource, name: str, width: int) -> RMSNorm:
    latent = source.config.latent
    assert latent is not None
    return RMSNorm(source.norm(name, width).weight, latent.norm_eps)


def _queries(source: WeightSource, name: str, latent: Latent) -> Linear:
    """The product of queries; they carry attention's scale, through absorption too."""
    config = source.config
    plain, turned = latent.plain_dim, latent.turned_dim
    outputs = config.heads * (plain + turned)
    part = "q_b_proj" if latent.query_rank else "q_proj"
    inputs = latent.query_rank or config.hidden_size

    def weights() -> tuple[torch.Tensor, None]:
        weight = source.take(f"{name}.{part}.weight", outputs, inputs).float()
        return _turned_first(weight * config.scale, plain, latent), None

    return source.product(f"{name}.{part}", weights)


def _cached(source: WeightSource, name: str, latent: Latent) -> Linear:
    """The product of what is cached: the turned dimensions, then the latent before its norm."""
    config, part = source.config, f"{name}.kv_a_proj_with_mqa"
    outputs = latent.rank + latent.turned_dim

    def weights() -> tuple[torch.Tensor, torch.Tensor | None]:
        weight = source.take(f"{part}.weight", outputs, config.hidden_size)
        bias = source.take(f"{part}.bias", outputs) if config.attention_bias else None
        return _turned_first(weight, latent.rank, latent), (
            None if bias is None else _turned_first(bias, latent.rank, latent)
        )

    return source.product(part, weights)


def _turned_first(rows: torch.Tensor, plain: int, latent: Latent) -> torch.Tensor:
    """Rows of heads that lie plain dimensions first ([heads * (plain + turned), ...]), in the order
    that attention wants: turned ones first, pairs next to each other."""
    turned = latent.turned_dim
    heads = rows.reshape(-1, plain + turned, *rows.shape[1:])
    pairs = heads[:, plain:]
    if not latent.neighbours:
        pairs = interleaved_rows(pairs.flatten(0, 1), turned, turned).view(pairs.shape)
    return torch.cat((pairs, heads[:, :plain]), 1).flatten(0, 1)


def _products_of_heads(
    source: WeightSource, name: str, latent: Latent
) -> tuple[Callable[[], torch.Tensor], Callable[[], torch.Tensor]]:
    """What gives the weights from a query's plain dimensions to the latent, [heads, rank,
    plain_dim], and from the latent to a value, [heads, value_dim, rank]."""
    heads, rank = source.config.heads, latent.rank
    plain, value = latent.plain_dim, latent.value_dim
    if latent.split:
        return (
            lambda: source.take(f"{name}.k_b_proj.weight", heads, rank, plain),
            lambda: source.take(f"{name}.v_b_proj.weight", heads, value, rank),
        )

    @functools.cache
    def both() -> torch.Tensor:
        whole = source.take(f"{name}.kv_b_proj.weight", heads * (plain + value), rank)
        return whole.reshape(heads, plain + value, rank)

    return lambda: both()[:, :plain].transpose(1, 2), lambda: both()[:, plain:]
