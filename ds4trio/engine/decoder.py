"""The network: a stack of blocks built from a model's config.

The llama architecture (arXiv:2302.13971): RMSNorm (arXiv:1910.07467) before each half of a block,
rotary positions, grouped-query attention (arXiv:2305.13245), SwiGLU (arXiv:2002.05202), biases and
an untied head where the model has them. The rows of all sequences of a step lie one after the
other, so that every product runs once over all of them; only attention tells them apart.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ds4trio.engine.attention import Attention, Plan
from ds4trio.engine.linear import (
    Gated,
    Linear,
    Pair,
    activation_dtype,
    is_native,
    make_gated,
    make_linear,
)
from ds4trio.engine.norm import RMSNorm
from ds4trio.engine.rope import interleaved_rows
from ds4trio.errors import ModelUnavailable
from ds4trio.models.config import ModelConfig

if TYPE_CHECKING:
    from ds4trio.engine.native.packed import PackedFile

__all__ = ["Decoder"]


class Decoder:
    """Weights, and the way from token ids to logits.

    Args:
        config: the shape of the network.
        weights: tensors by their Hugging Face names; each is read once.
        dtype: of the products, as ``make_linear`` has them.
        device: where everything is computed.
        batch_invariant: products are, as ``make_linear`` has it.
        keep_in: file for the packed form of the weights, where the device has one; None for none.

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
        batch_invariant: bool = False,
        keep_in: Path | None = None,
    ) -> None:
        if config.architecture != "llama":
            raise ModelUnavailable(f"the architecture {config.architecture!r} is not supported")
        self.dtype = activation_dtype(dtype)
        self._vocabulary = config.vocab_size
        with _packed_file(keep_in, dtype, device) as kept:
            self._build(config, _Source(weights, dtype, device, batch_invariant, kept))

    def _build(self, config: ModelConfig, source: _Source) -> None:
        size = (config.vocab_size, config.hidden_size)
        tied = config.tied_head
        name = "model.embed_tokens" if tied else "lm_head"
        self._head = source.linear(name, *size, readable=tied)
        self._embedding: Callable[[torch.Tensor], torch.Tensor]
        if tied:  # held once
            self._embedding = self._head.rows
        else:
            table = source.take("model.embed_tokens", *size).to(source.device, self.dtype)
            self._embedding = partial(table.index_select, 0)
        self._blocks = [_Block(config, source, layer) for layer in range(config.layers)]
        self._norm = source.norm(config, "model.norm")

    def __call__(
        self,
        tokens: torch.Tensor,
        plan: Plan,
        attention: Attention,
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
        hidden = self._embedding(tokens)
        for block in self._blocks:
            hidden = block(hidden, plan, attention)
        if wanted is not None:
            if not len(wanted):
                return hidden.new_empty((0, self._vocabulary), dtype=torch.float32)
            hidden = hidden.index_select(0, wanted)
        return self._head(hidden, self._norm).float()


def _packed_file(
    path: Path | None, dtype: str, device: torch.device
) -> AbstractContextManager[PackedFile | None]:
    if path is None or not is_native(dtype, device):
        return nullcontext()
    from ds4trio.engine.native.packed import PackedFile

    return PackedFile(path)


class _Source:
    """Weights on their way from a file into the network, with their shapes checked."""

    def __init__(
        self,
        weights: Mapping[str, torch.Tensor],
        dtype: str,
        device: torch.device,
        batch_invariant: bool,
        kept: PackedFile | None,
    ) -> None:
        self._weights = weights
        self.dtype = dtype
        self.device = device
        self._batch_invariant = batch_invariant
        self._kept = kept

    def take(self, name: str, *shape: int, part: str = "weight") -> torch.Tensor:
        full = f"{name}.{part}"
        try:
            tensor = self._weights[full]
        except KeyError:
            raise ModelUnavailable(f"the model has no tensor {full}") from None
        if tuple(tensor.shape) != shape:
            raise ModelUnavailable(f"{full} has shape {tuple(tensor.shape)}, not {shape}")
        return tensor

    def norm(self, config: ModelConfig, name: str) -> RMSNorm:
        weight = self.take(name, config.hidden_size)
        return RMSNorm(weight.to(self.device, activation_dtype(self.dtype)), config.norm_eps)

    def linear(self, name: str, outputs: int, inputs: int, *, readable: bool = False) -> Linear:
        def weights() -> tuple[torch.Tensor, torch.Tensor | None]:
            return self.take(name, outputs, inputs), self.biases({name: outputs})

        return self._product(name, weights, readable=readable)

    def _product(
        self,
        name: str,
        weights: Callable[[], tuple[torch.Tensor, torch.Tensor | None]],
        *,
        readable: bool = False,
    ) -> Linear:
        return make_linear(
            weights,
            dtype=self.dtype,
            device=self.device,
            batch_invariant=self._batch_invariant,
            readable=readable,
            name=name,
            kept=self._kept,
        )

    def gated(self, config: ModelConfig, name: str) -> Gated:
        names = (f"{name}.gate_proj", f"{name}.up_proj")
        width = config.intermediate_size

        def weights() -> tuple[Pair, Pair | None]:
            gate, up = (self.take(part, width, config.hidden_size) for part in names)
            both = self.biases(dict.fromkeys(names, width))
            return (gate, up), None if both is None else (both[:width], both[width:])

        return make_gated(
            weights,
            width,
            dtype=self.dtype,
            device=self.device,
            batch_invariant=self._batch_invariant,
            name=name,
            kept=self._kept,
        )

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

        def weights() -> tuple[torch.Tensor, torch.Tensor | None]:
            parts = {n: self.take(n, o, config.hidden_size) for n, o in sizes.items()}
            bias = self.biases(sizes)
            if bias is None:
                return prepared(parts), None
            ends = list(itertools.accumulate(sizes.values()))
            cut = [bias[end - size : end] for end, size in zip(ends, sizes.values(), strict=True)]
            return prepared(parts), prepared(dict(zip(sizes, cut, strict=True)))

        return self._product(name, weights)


class _Block:
    """Attention, then the MLP, each on a normalised copy and added to what came in."""

    def __init__(self, config: ModelConfig, source: _Source, layer: int) -> None:
        name = f"model.layers.{layer}"
        self._layer = layer
        self._head_dim = config.head_dim
        self._attention_norm = source.norm(config, f"{name}.input_layernorm")
        self._inputs = source.attention_inputs(config, f"{name}.self_attn")
        mixed = config.heads * config.head_dim
        self._output = source.linear(f"{name}.self_attn.o_proj", config.hidden_size, mixed)
        self._mlp_norm = source.norm(config, f"{name}.post_attention_layernorm")
        self._gated = source.gated(config, f"{name}.mlp")
        width = config.intermediate_size
        self._down = source.linear(f"{name}.mlp.down_proj", config.hidden_size, width)

    def __call__(self, hidden: torch.Tensor, plan: Plan, attention: Attention) -> torch.Tensor:
        # The caller's hidden state is this step's own, so sums may stay in its memory.
        inputs = self._inputs(hidden, self._attention_norm)
        mixed = attention.attend(self._layer, plan, inputs)
        hidden = self._output.add_to(hidden, mixed)
        return self._down.add_to(hidden, self._gated(hidden, self._mlp_norm))
