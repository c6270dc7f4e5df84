"""Attention in which groups of query heads share a head of keys and values (arXiv:2305.13245)."""

from __future__ import annotations

import torch

from ds4trio.engine.attention import Attention, Plan
from ds4trio.engine.linear import Linear
from ds4trio.engine.norm import RMSNorm
from ds4trio.engine.rope import interleaved_rows
from ds4trio.engine.source import WeightSource

__all__ = ["GroupedAttention"]


class GroupedAttention:
    """What is attended to, before the product that follows.

    Args:
        source: of the weights.
        layer: of the decoder.
        name: of the layer's attention.
    """

    def __init__(self, source: WeightSource, layer: int, name: str) -> None:
        config = source.config
        rope = config.kind(layer).rope
        dims = 0 if rope is None else config.ropes[rope].dims
        self._layer = layer
        self._inputs = _inputs(source, name, dims)
        self._head_norm = source.head_norm(name, dims)
        self._sinks = None
        if config.sinks:
            sinks = source.take(f"{name}.sinks", config.heads)
            self._sinks = sinks.to(source.device, torch.float32)

    def __call__(
        self, hidden: torch.Tensor, norm: RMSNorm | None, plan: Plan, attention: Attention
    ) -> torch.Tensor:
        """[rows, hidden_size], normalised first by ``norm`` -> [rows, heads * head_dim]."""
        inputs = self._inputs(hidden, norm)
        if self._head_norm is not None:
            self._head_norm(inputs)
        return attention.attend(self._layer, plan, inputs, self._sinks)


def _inputs(source: WeightSource, name: str, dims: int) -> Linear:
    """Queries, keys and values in one product.

    Rotary pairs are brought next to each other, and queries carry attention's scale, unless a norm
    follows that would take it away.
    """
    config = source.config
    width, hidden = config.head_dim, config.hidden_size
    heads = {"q_proj": config.heads, "k_proj": config.kv_heads, "v_proj": config.kv_heads}
    sizes = {f"{name}.{part}": count * width for part, count in heads.items()}
    query, key, value = sizes
    scale = config.scale if config.head_norm == "none" else 1.0

    def joined(parts: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.cat(
            [
                interleaved_rows(parts[query].float() * scale, width, dims),
                interleaved_rows(parts[key], width, dims),
                parts[value],
            ]
        )

    def weights() -> tuple[torch.Tensor, torch.Tensor | None]:
        whole = joined({n: source.take(f"{n}.weight", size, hidden) for n, size in sizes.items()})
        if not config.attention_bias:
            return whole, None
        return whole, joined({n: source.take(f"{n}.bias", size) for n, size in sizes.items()})

    return source.product(name, weights, sizes, joined)
