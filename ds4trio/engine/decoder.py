"""The network: a stack of blocks built from a model's config.

The llama architecture (arXiv:2302.13971): RMSNorm (arXiv:1910.07467) before each half of a block,
rotary positions, grouped-query attention (arXiv:2305.13245), SwiGLU (arXiv:2002.05202), biases and
an untied head where the model has them. The rows of all sequences of a step lie one after the
other, so that every product runs once over all of them; only attention tells them apart.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import torch
from torch.nn import functional

from ds4trio.engine.attention import AttentionPlan, PagedAttention
from ds4trio.engine.linear import Linear, activation_dtype, make_linear
from ds4trio.engine.rope import Rotary, interleaved_rows
from ds4trio.errors import ModelUnavailable
from ds4trio.models.config import ModelConfig

__all__ = ["Decoder"]


class Decoder:
    """Weights, and the way from token ids to logits.

    Args:
        config: the shape of the network.
        weights: tensors by their Hugging Face names; each is read once.
        dtype: of the products, as ``make_linear`` has them.
        device: where everything is computed.
        context_length: positions that the rotary table covers.

    Raises:
        ModelUnavailable: a weight is missing or has another shape, or the config asks for
            something that is not built here.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, torch.Tensor],
        *,
        dtype: str,
        device: torch.device,
        context_length: int,
    ) -> None:
        if config.architecture != "llama":
            raise ModelUnavailable(f"the architecture {config.architecture!r} is not supported")
        source = _Source(weights, dtype, device)
        vocabulary = (config.vocab_size, config.hidden_size)
        embedding = source.take("model.embed_tokens", *vocabulary)
        head = embedding if config.tied_head else source.take("lm_head", *vocabulary)
        self.dtype = activation_dtype(dtype)
        self._embedding = embedding.to(device, self.dtype)
        self._rotary = Rotary(config, context_length, device)
        self._blocks = [_Block(config, source, layer) for layer in range(config.layers)]
        self._norm = _RMSNorm(config, source, "model.norm")
        # A tied head shares the embedding's memory wherever its form allows.
        shared = self._embedding if config.tied_head and dtype != "int8" else head
        self._head = make_linear(shared, None, dtype=dtype, device=device)

    def __call__(
        self,
        tokens: torch.Tensor,
        plan: AttentionPlan,
        attention: PagedAttention,
        wanted: torch.Tensor | None,
    ) -> torch.Tensor:
        """Evaluate the rows of a step and store their keys and values.

        Args:
            tokens: int64 [rows].
            plan: where each row stands, from ``attention``.
            attention: over this model's pages.
            wanted: int64, the rows whose logits are asked for; None for all.

        Returns:
            Logits, float32 [wanted rows, vocab_size].
        """
        hidden = self._embedding.index_select(0, tokens)
        rotations = self._rotary.at(plan.positions)
        for block in self._blocks:
            hidden = block(hidden, rotations, self._rotary, plan, attention)
        if wanted is not None:
            if not len(wanted):
                return hidden.new_empty((0, len(self._embedding)), dtype=torch.float32)
            hidden = hidden.index_select(0, wanted)
        return self._head(self._norm(hidden)).float()


class _Source:
    """Weights on their way from a file into the network, with their shapes checked."""

    def __init__(
        self,
        weights: Mapping[str, torch.Tensor],
        dtype: str,
        device: torch.device,
    ) -> None:
        self._weights = weights
        self.dtype = dtype
        self.device = device

    def take(self, name: str, *shape: int, part: str = "weight") -> torch.Tensor:
        full = f"{name}.{part}"
        try:
            tensor = self._weights[full]
        except KeyError:
            raise ModelUnavailable(f"the model has no tensor {full}") from None
        if tuple(tensor.shape) != shape:
            raise ModelUnavailable(f"{full} has shape {tuple(tensor.shape)}, not {shape}")
        return tensor

    def fused(self, inputs: int, **outputs: int) -> Linear:
        """One product over several projections of the same input, by name and output size."""
        weights = torch.cat([self.take(n, o, inputs) for n, o in outputs.items()])
        return make_linear(weights, self.biases(outputs), dtype=self.dtype, device=self.device)

    def biases(self, outputs: Mapping[str, int]) -> torch.Tensor | None:
        """Their biases in turn, zeros where one has none; None where none has."""
        if not any(f"{name}.bias" in self._weights for name in outputs):
            return None
        return torch.cat(
            [
                self.take(name, size, part="bias")
                if f"{name}.bias" in self._weights
                else torch.zeros(size)
                for name, size in outputs.items()
            ]
        )

    def attention_inputs(self, config: ModelConfig, name: str) -> Linear:
        """Queries, keys and values in one product.

        Rotary pairs are brought next to each other, and queries carry attention's scale.
        """
        heads = {"q_proj": config.heads, "k_proj": config.kv_heads, "v_proj": config.kv_heads}
        sizes = {f"{name}.{part}": n * config.head_dim for part, n in heads.items()}
        query, key, value = sizes
        scale = config.head_dim**-0.5

        def prepared(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
            return torch.cat(
                [
                    interleaved_rows(tensors[query].float() * scale, config.head_dim),
                    interleaved_rows(tensors[key], config.head_dim),
                    tensors[value],
                ]
            )

        weight = prepared({n: self.take(n, o, config.hidden_size) for n, o in sizes.items()})
        bias = self.biases(sizes)
        if bias is not None:
            ends = list(itertools.accumulate(sizes.values()))
            parts = [bias[end - size : end] for end, size in zip(ends, sizes.values(), strict=True)]
            bias = prepared(dict(zip(sizes, parts, strict=True)))
        return make_linear(weight, bias, dtype=self.dtype, device=self.device)


class _RMSNorm:
    def __init__(self, config: ModelConfig, source: _Source, name: str) -> None:
        weight = source.take(name, config.hidden_size)
        self._weight = weight.to(source.device, activation_dtype(source.dtype))
        self._shape = (config.hidden_size,)
        self._epsilon = config.norm_eps

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(hidden, self._shape, self._weight, self._epsilon)


class _Block:
    """Attention, then the MLP, each on a normalised copy and added to what came in."""

    def __init__(self, config: ModelConfig, source: _Source, layer: int) -> None:
        name = f"model.layers.{layer}"
        self._layer = layer
        self._heads = config.heads
        self._kv_heads = config.kv_heads
        self._head_dim = config.head_dim
        self._attention_norm = _RMSNorm(config, source, f"{name}.input_layernorm")
        self._inputs = source.attention_inputs(config, f"{name}.self_attn")
        mixed = config.heads * config.head_dim
        self._output = source.fused(mixed, **{f"{name}.self_attn.o_proj": config.hidden_size})
        self._mlp_norm = _RMSNorm(config, source, f"{name}.post_attention_layernorm")
        self._mlp = _SwiGLU(config, source, f"{name}.mlp")

    def __call__(
        self,
        hidden: torch.Tensor,
        rotations: torch.Tensor,
        rotary: Rotary,
        plan: AttentionPlan,
        attention: PagedAttention,
    ) -> torch.Tensor:
        turning = self._heads + self._kv_heads
        inputs = self._inputs(self._attention_norm(hidden)).view(len(hidden), -1, self._head_dim)
        turned = rotary.turn(inputs[:, :turning], rotations)
        queries, keys = turned[:, : self._heads], turned[:, self._heads :]
        mixed = attention.attend(self._layer, plan, queries, keys, inputs[:, turning:])
        # The caller's hidden state is this step's own, so sums may stay in its memory.
        hidden = hidden.add_(self._output(mixed))
        return hidden.add_(self._mlp(self._mlp_norm(hidden)))


class _SwiGLU:
    """``down(silu(gate(x)) * up(x))``, gate and up in one product."""

    def __init__(self, config: ModelConfig, source: _Source, name: str) -> None:
        width = config.intermediate_size
        gate_up = {f"{name}.gate_proj": width, f"{name}.up_proj": width}
        self._gate_up = source.fused(config.hidden_size, **gate_up)
        self._down = source.fused(width, **{f"{name}.down_proj": config.hidden_size})

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        gate, up = self._gate_up(rows).chunk(2, -1)
        return self._down(functional.silu(gate).mul_(up))
