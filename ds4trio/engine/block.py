"""One layer of the network: attention, then an MLP, each added to what came in."""

from __future__ import annotations

import torch

from ds4trio.engine.attention import Cache, Plan
from ds4trio.engine.experts import Mixture
from ds4trio.engine.grouped import GroupedAttention
from ds4trio.engine.latent import LatentAttention
from ds4trio.engine.norm import RMSNorm
from ds4trio.engine.source import WeightSource
from ds4trio.engine.streams import PagedStreams

__all__ = ["Block"]


class Block:
    """Attention and MLP, with norms before them, after them, or both.

    Args:
        source: of the weights.
        layer: of the decoder.
    """

    def __init__(self, source: WeightSource, layer: int) -> None:
        config = source.config
        name = f"model.layers.{layer}"
        width = config.hidden_size
        before, after = config.norms != "after", config.norms != "before"
        # A norm after a product takes its scale away and has one itself.
        scale = 1.0 if after else config.residual_scale
        self._attention_norm = source.norm(f"{name}.input_layernorm", width) if before else None
        self._attention: GroupedAttention | LatentAttention
        mixed = config.heads * config.head_dim
        if config.latent is None:
            self._attention = GroupedAttention(source, layer, f"{name}.self_attn")
        else:
            mixed = config.heads * config.latent.value_dim
            self._attention = LatentAttention(source, layer, f"{name}.self_attn", config.latent)
        self._output = source.linear(
            f"{name}.self_attn.o_proj",
            width,
            mixed,
            bias=config.output_bias,
            scale=scale,
        )
        self._attended = source.output_norm(f"{name}.self_attn.output_norm") if after else None
        self._mlp_norm = None
        if before:
            self._mlp_norm = source.norm(f"{name}.post_attention_layernorm", width)
        self._mlp = _mlp(source, layer, f"{name}.mlp", scale)
        self._mlp_done = source.output_norm(f"{name}.mlp.output_norm") if after else None

    def __call__(self, hidden: torch.Tensor, plan: Plan, attention: Cache) -> torch.Tensor:
        """Rows of hidden states, [rows, hidden_size], in whose memory the results may be."""
        assert not isinstance(attention, PagedStreams)
        mixed = self._attention(hidden, self._attention_norm, plan, attention)
        if self._attended is None:
            hidden = self._output.add_to(hidden, mixed)
        else:
            hidden = self._attended.add_to(hidden, self._output(mixed))
        if self._mlp_done is None:
            return self._mlp.add_to(hidden, self._mlp_norm)
        return self._mlp_done.add_to(hidden, self._mlp(hidden, self._mlp_norm))


def _mlp(source: WeightSource, layer: int, name: str, scale: float) -> MLP | Mixture:
    config = source.config
    kind = config.kind(layer)
    if kind.experts and config.experts is not None:
        return Mixture(source, name, config.experts, scale=scale, hashed=kind.hashed)
    return MLP(source, name, config.intermediate_size, bias=config.mlp_bias, scale=scale)


class MLP:
    """Gated (arXiv:2002.05202): two products side by side, and one of what they make together.

    Args:
        source: of the weights.
        name: of the MLP.
        width: of what the two give.
        bias: all three have biases.
        scale: of the result.
    """

    def __init__(
        self, source: WeightSource, name: str, width: int, *, bias: bool, scale: float
    ) -> None:
        self._gated = source.gated(name, width, bias=bias)
        self._down = source.linear(
            f"{name}.down_proj", source.config.hidden_size, width, bias=bias, scale=scale
        )

    def __call__(self, hidden: torch.Tensor, norm: RMSNorm | None) -> torch.Tensor:
        """[rows, hidden_size], normalised first by ``norm``; the same shape in new memory."""
        return self._down(self._gated(hidden, norm))

    def add_to(self, hidden: torch.Tensor, norm: RMSNorm | None) -> torch.Tensor:
        """Add the result to hidden states themselves."""
        return self._down.add_to(hidden, self._gated(hidden, norm))
