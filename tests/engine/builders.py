"""Random models in transformers and in this engine, and ways to drive both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from ds4trio.engine.attention import PagedAttention, Span, cache_dtype, make_attention
from ds4trio.engine.decoder import Decoder
from ds4trio.engine.engine import Engine
from ds4trio.engine.kv_cache import KVCache
from ds4trio.engine.linear import activation_dtype
from ds4trio.engine.native.paged import NativeAttention
from ds4trio.engine.step import Evaluated, SampledToken, SamplingParams, StepItem
from ds4trio.models.config import ModelConfig, config_from_hf
from tests.tiny import tiny_config

GREEDY = SamplingParams(temperature=0.0)
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Pair:
    """One set of weights, twice."""

    reference: PreTrainedModel
    config: ModelConfig
    weights: Mapping[str, torch.Tensor]

    def expected(self, tokens: Sequence[int]) -> torch.Tensor:
        """The reference's logits at every position, [tokens, vocab]."""
        with torch.inference_mode():
            logits: torch.Tensor = self.reference(torch.tensor([list(tokens)])).logits[0]
            return logits


def make_pair(seed: int = 0, **overrides: Any) -> Pair:
    shape = tiny_config(**overrides)
    reference = LlamaForCausalLM(LlamaConfig(**shape))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.15, generator=generator)
    config = config_from_hf(shape)
    weights = {name: tensor.detach() for name, tensor in reference.state_dict().items()}
    if config.tied_head:
        weights.pop("lm_head.weight", None)
    return Pair(reference, config, weights)


def make_engine(pair: Pair, *, pages: int = 64, page_size: int = 16, **settings: Any) -> Engine:
    config = pair.config
    settings = {"device": "cpu", "dtype": "float32", **settings}
    dtype = cache_dtype(
        settings["dtype"],
        CPU if settings["device"] in ("cpu", "auto") else torch.device("cuda"),
        batch_invariant=settings.get("batch_invariant", False),
    )
    position = config.position_size * dtype.itemsize
    return Engine(
        config,
        pair.weights,
        kv_memory=pages * page_size * position,
        page_size=page_size,
        **settings,
    )


class Bench:
    """A decoder over pages of its own, to look at logits of any position.

    Args:
        pair: of a reference and weights.
        dtype: of the products.
        pages, page_size: of the cache.
        plain: attention in torch's operations, also where a CPU has kernels of our own.
        device: of everything.
        batch_invariant: as for ``Runner``.
    """

    def __init__(
        self,
        pair: Pair,
        *,
        dtype: str = "float32",
        pages: int = 64,
        page_size: int = 16,
        plain: bool = False,
        device: torch.device = CPU,
        batch_invariant: bool = False,
    ) -> None:
        config, kind = pair.config, activation_dtype(dtype)
        self._device = device
        with torch.inference_mode():
            self.attention = make_attention(
                config,
                context_length=config.context_length,
                pages=pages,
                page_size=page_size,
                dtype=dtype,
                device=device,
                batch_invariant=batch_invariant,
            )
            if plain:
                cache = KVCache(config, pages=pages, page_size=page_size, dtype=kind, device=device)
                self.attention = PagedAttention(
                    config, cache, config.context_length, batch_invariant=batch_invariant
                )
            self.decoder = Decoder(
                config, pair.weights, dtype=dtype, device=device, batch_invariant=batch_invariant
            )

    def spoil(self) -> None:
        """Leave NaN everywhere in the cache."""
        attention = self.attention
        with torch.inference_mode():
            if isinstance(attention, NativeAttention):
                attention._keys.fill(torch.nan)
                attention._values.fill(torch.nan)
            elif isinstance(attention, PagedAttention):
                attention.cache.keys.fill_(torch.nan)
                attention.cache.values.fill_(torch.nan)

    def logits(self, step: Sequence[tuple[Span, Sequence[int]]]) -> list[torch.Tensor]:
        """Evaluate spans with their tokens in one step; logits of each, [count, vocab]."""
        order = self.attention.order([span for span, _ in step])
        tokens = torch.tensor([t for i in order for t in step[i][1]])
        with torch.inference_mode():
            plan = self.attention.plan([step[i][0] for i in order])
            logits = self.decoder(tokens.to(self._device), plan, self.attention, None).cpu()
        parts: dict[int, torch.Tensor] = {}
        for i in order:
            count = step[i][0].count
            parts[i], logits = logits[:count], logits[count:]
        return [parts[i] for i in range(len(step))]


def sampled(engine: Engine, *items: StepItem) -> list[SampledToken]:
    """Evaluate a step in which every item is accepted and draws."""
    tokens: list[SampledToken] = []
    for outcome in engine.eval_batch(items).outcomes:
        assert isinstance(outcome, Evaluated), outcome
        tokens.extend(outcome.sampled)
    assert len(tokens) == len(items)
    return tokens


def generate(
    engine: Engine, prompt: Sequence[int], count: int, params: SamplingParams = GREEDY
) -> list[int]:
    """One sequence by itself: its first ``count`` tokens."""
    sequence = 1_000_000
    engine.open(sequence, params)
    tokens = [sampled(engine, StepItem(sequence, tuple(prompt)))[0].token]
    while len(tokens) < count:
        tokens.append(sampled(engine, StepItem(sequence))[0].token)
    engine.close(sequence)
    return tokens


def prompts(count: int, vocabulary: int, *, seed: int = 1, longest: int = 40) -> list[list[int]]:
    """Random prompts of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    return [
        torch.randint(0, vocabulary, (length,), generator=generator).tolist() for length in lengths
    ]
