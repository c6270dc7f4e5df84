"""How much a number format changes what a model says: one decoder measured against another.

The divergence is that of Kullback and Leibler (1951), from the reference's distribution of the next
token to the candidate's, in nats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from ds4trio.engine.attention import Span, make_attention
from ds4trio.engine.decoder import Decoder
from ds4trio.models.config import ModelConfig

__all__ = ["Logits", "Quality", "compare", "logits_of", "windows"]

PAGE_SIZE = 16
ROWS_AT_ONCE = 64
"""Positions whose distributions are held at a time: in double precision and three times over, they
are large where the vocabulary is."""

Logits = Callable[[Sequence[int]], torch.Tensor]
"""From a text's token ids to the logits after each of them, float [tokens, vocab_size]."""


@dataclass(frozen=True, slots=True)
class Quality:
    """A candidate beside its reference, over every position that has a next token.

    Attributes:
        positions: how many those are.
        perplexity, reference_perplexity: of the text, under each.
        divergence: mean KL(reference || candidate), nats; 0 where they agree.
        agreement: part of the positions where both hold the same token the likeliest, 0 to 1.
    """

    positions: int
    perplexity: float
    reference_perplexity: float
    divergence: float
    agreement: float


def windows(
    tokens: Sequence[int], *, size: int, limit: int, first: int | None = None
) -> Iterator[list[int]]:
    """Cut a text into pieces that are evaluated each by itself.

    Args:
        size: tokens in a piece, at least 2. The last may be shorter.
        limit: tokens of the text to use.
        first: id that every piece begins with besides, for models that want one.
    """
    if size < 2:
        raise ValueError(f"a window of {size} tokens has nothing to predict")
    head = [] if first is None else [first]
    own = size - len(head)
    for begin in range(0, min(limit, len(tokens)), own):
        piece = [*head, *tokens[begin : min(begin + own, limit)]]
        if len(piece) > 1:
            yield piece


def logits_of(
    config: ModelConfig,
    weights: Mapping[str, torch.Tensor],
    *,
    dtype: str,
    device: torch.device,
    longest: int,
    batch_invariant: bool = False,
) -> Logits:
    """A decoder with pages for one sequence, as ``compare`` wants it.

    Args:
        config, weights: as for ``Engine``.
        dtype: ``float32``, ``int8``... as for ``Engine``, but not ``auto``.
        longest: tokens in the longest sequence.
        batch_invariant: as for ``Engine``.

    Raises:
        ModelUnavailable: the weights do not fit the config, or the dtype is not supported there.
    """
    pages = list(range(-(-longest // PAGE_SIZE)))
    with torch.inference_mode():
        decoder = Decoder(
            config, weights, dtype=dtype, device=device, batch_invariant=batch_invariant
        )
        attention = make_attention(
            config,
            context_length=longest,
            pages=len(pages),
            page_size=PAGE_SIZE,
            dtype=dtype,
            device=device,
            batch_invariant=batch_invariant,
        )

    @torch.inference_mode()
    def logits(tokens: Sequence[int]) -> torch.Tensor:
        plan = attention.plan([Span(pages, 0, len(tokens))])
        ids = torch.tensor(list(tokens), dtype=torch.int64, device=device)
        return decoder(ids, plan, attention, None)

    return logits


@torch.inference_mode()
def compare(reference: Logits, candidate: Logits, texts: Iterable[Sequence[int]]) -> Quality:
    """Evaluate texts under both.

    Args:
        texts: token ids; each text is evaluated by itself. Those of a single token say nothing.

    Raises:
        ValueError: no text has two tokens.
    """
    positions = agreed = 0
    divergence = reference_loss = loss = 0.0
    for text in texts:
        if len(text) < 2:
            continue
        expected, found = reference(text)[:-1], candidate(text)[:-1]
        following = torch.tensor(list(text[1:]), dtype=torch.int64).unsqueeze(1)
        for begin in range(0, len(following), ROWS_AT_ONCE):
            part = slice(begin, begin + ROWS_AT_ONCE)
            theirs, ours = _log_probabilities(expected[part]), _log_probabilities(found[part])
            divergence += float((theirs.exp() * (theirs - ours)).sum())
            agreed += int((theirs.argmax(-1) == ours.argmax(-1)).sum())
            reference_loss -= float(theirs.gather(1, following[part]).sum())
            loss -= float(ours.gather(1, following[part]).sum())
        positions += len(following)
    if not positions:
        raise ValueError("the text is too short: it needs two tokens")
    return Quality(
        positions=positions,
        perplexity=_exp(loss / positions),
        reference_perplexity=_exp(reference_loss / positions),
        divergence=divergence / positions,
        agreement=agreed / positions,
    )


def _log_probabilities(logits: torch.Tensor) -> torch.Tensor:
    """In double precision, on the CPU: not every device has it."""
    return torch.log_softmax(logits.cpu().double(), -1)


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf
