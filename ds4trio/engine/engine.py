"""An engine in this process: the ledger, and a runner that the calling threads carry along."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from llguidance import LLTokenizer

from ds4trio.engine.ledger import Ledger
from ds4trio.engine.runner import Runner
from ds4trio.engine.turns import InTurn
from ds4trio.models.config import ModelConfig
from ds4trio.models.lora import Adapter

__all__ = ["Engine"]


class Engine(Ledger):
    """Evaluates batches of sequences on one device, in the threads that ask for it.

    Args:
        config, weights, device, dtype, batch_invariant, context_length, kv_memory,
            page_size, threads, graphs, adapters, grammar_tokens: as for ``Runner``.
        prefix_cache: keep full pages for sequences that begin with the same tokens.

    Attributes:
        runner: what has the tensors.

    Raises:
        ModelUnavailable: as ``Runner`` does.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, torch.Tensor],
        *,
        device: str = "auto",
        dtype: str = "auto",
        batch_invariant: bool = False,
        context_length: int | None = None,
        kv_memory: int | None = None,
        page_size: int = 16,
        threads: int | None = None,
        prefix_cache: bool = True,
        graphs: bool = True,
        adapters: Sequence[Adapter] = (),
        grammar_tokens: Callable[[], LLTokenizer] | None = None,
    ) -> None:
        self.runner = Runner(
            config,
            weights,
            device=device,
            dtype=dtype,
            batch_invariant=batch_invariant,
            context_length=context_length,
            kv_memory=kv_memory,
            page_size=page_size,
            threads=threads,
            graphs=graphs,
            adapters=adapters,
            grammar_tokens=grammar_tokens,
        )
        super().__init__(InTurn(self.runner), prefix_cache=prefix_cache)
