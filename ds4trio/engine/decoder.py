"""The network: a stack of blocks built from a model's config.

Every family is made of the same parts (``block.py``): RMSNorm (arXiv:1910.07467), rotary positions,
attention, gated MLPs or experts. The rows of all sequences of a step lie one after the other, so
that every product runs once over all of them; only attention tells them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ds4trio.engine.adapters import ActiveAdapters
from ds4trio.engine.attention import Cache, Plan
from ds4trio.engine.block import Block
from ds4trio.engine.hyper import HyperBlock, HyperHead
from ds4trio.engine.linear import activation_dtype, is_native
from ds4trio.engine.norm import RMSNorm
from ds4trio.engine.source import WeightSource
from ds4trio.models.config import ModelConfig
from ds4trio.models.lora import Adapter

if TYPE_CHECKING:
    from ds4trio.engine.native.packed import PackedFile

__all__ = ["Decoder"]


class Decoder:
    """Weights, and the way from token ids to logits.

    Args:
        config: the shape of the network.
        weights: tensors by their names in ``models/tensors.py``; each is read once.
        dtype: of the products, as ``make_linear`` has them.
        device: where everything is computed.
        batch_invariant: products are, as ``make_linear`` has it.
        keep_in: file for the packed form of the weights, where the device has one; None for none.
        adapters: that rows may have.
        active: says which rows of a step have which.

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
        adapters: Sequence[Adapter] = (),
        active: ActiveAdapters | None = None,
    ) -> None:
        self.dtype = activation_dtype(dtype)
        self._vocabulary = config.vocab_size
        self._embedding_scale = config.embedding_scale
        self._soft_cap = config.logit_soft_cap
        with _packed_file(keep_in, dtype, device) as kept:
            self._build(
                WeightSource(
                    config,
                    weights,
                    dtype=dtype,
                    device=device,
                    batch_invariant=batch_invariant,
                    kept=kept,
                    adapters=adapters,
                    active=active,
                )
            )

    def _build(self, source: WeightSource) -> None:
        config = source.config
        size = (config.vocab_size, config.hidden_size)
        tied = config.tied_head
        name = "model.embed_tokens" if tied else "lm_head"
        self._head = source.linear(name, *size, readable=tied)
        self._embedding: Callable[[torch.Tensor], torch.Tensor]
        if tied:  # held once
            self._embedding = self._head.rows
        else:
            table = source.placed(source.take("model.embed_tokens.weight", *size))
            self._embedding = partial(table.index_select, 0)
        self._step = source.step
        self._blocks: list[Block | HyperBlock]
        self._hyper_head: HyperHead | None = None
        if config.streams is None:
            self._blocks = [Block(source, layer) for layer in range(config.layers)]
        else:
            self._blocks = [HyperBlock(source, layer) for layer in range(config.layers)]
            self._hyper_head = HyperHead(source, config.streams)
            self._streams = config.streams.count
        # The last norm carries the scale of logits, since a tied head cannot.
        norm = source.norm("model.norm", config.hidden_size)
        self._norm = RMSNorm(norm.weight * config.logit_scale, norm.epsilon)

    def __call__(
        self,
        tokens: torch.Tensor,
        plan: Plan,
        attention: Cache,
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
        hidden = self.hidden(tokens, plan, attention)
        if wanted is not None:
            hidden = hidden.index_select(0, wanted)
        return self.logits(hidden)

    def hidden(self, tokens: torch.Tensor, plan: Plan, attention: Cache) -> torch.Tensor:
        """Evaluate the rows of a step up to where ``logits`` goes on, [rows, what that takes]."""
        # The hidden state is this step's own, so that sums may stay in its memory.
        hidden = self._embedding(tokens)
        if self._embedding_scale != 1.0:
            hidden = hidden.mul_(self._embedding_scale)
        self._step.tokens = tokens
        if self._hyper_head is not None:
            hidden = hidden.repeat(1, self._streams)
        for block in self._blocks:
            hidden = block(hidden, plan, attention)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Of rows of ``hidden``, which may be spoilt: float32 [rows, vocab_size]."""
        if not len(hidden):
            return hidden.new_empty((0, self._vocabulary), dtype=torch.float32)
        if self._hyper_head is not None:
            hidden = self._hyper_head(hidden)
        logits = self._head(hidden, self._norm).float()
        if self._soft_cap:
            logits = logits.div_(self._soft_cap).tanh_().mul_(self._soft_cap)
        return logits


def _packed_file(
    path: Path | None, dtype: str, device: torch.device
) -> AbstractContextManager[PackedFile | None]:
    if path is None or not is_native(dtype, device):
        return nullcontext()
    from ds4trio.engine.native.packed import PackedFile

    return PackedFile(path)
