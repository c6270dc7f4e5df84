"""Log-probabilities of the model's own distribution: of drawn tokens, and of a prompt's."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ds4trio.engine.draw import Draw
from ds4trio.engine.rowwise import along_rows, likeliest_of, pick_rows, require_finite
from ds4trio.engine.step import Row, SampledToken, SamplingParams

__all__ = ["Scored", "score", "with_logprobs"]

SLICE_BYTES = 32 << 20
"""Logits of a prompt that are there at a time. A step of thousands of rows over a large vocabulary
would take gigabytes."""


@dataclass(frozen=True, slots=True)
class Scored:
    """Rows of a step whose logits tell of a prompt, and what follows them there.

    Attributes:
        place: of the sequence in the step.
        first: of the rows, among all of the step.
        targets: the token that follows each of them.
        top: how many of the likeliest tokens are wanted besides.
    """

    place: int
    first: int
    targets: Sequence[int]
    top: int

    @classmethod
    def of(
        cls, place: int, first: int, row: Row, sampling: SamplingParams, start: int
    ) -> Scored | None:
        """Of a row whose tokens begin at position ``start``; None where nothing is wanted."""
        if sampling.prompt_logprobs is None:
            return None
        targets = array("q", row.tokens[1:])
        if row.follows is not None:
            targets.append(row.follows)
        targets = targets[: max(sampling.prompt_length - start - 1, 0)]
        return cls(place, first, targets, sampling.prompt_logprobs) if targets else None


def score(
    hidden: torch.Tensor,
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    wanted: Sequence[Scored],
    *,
    vocabulary: int,
    row_by_row: bool = False,
) -> dict[int, tuple[SampledToken, ...]]:
    """What prompts are worth to the model, in slices of ``SLICE_BYTES`` of logits.

    Args:
        hidden: [rows of the step, any]. It is not changed.
        logits_of: float32 [rows, vocab_size] of rows of it, whose memory it may use.
        wanted: which.
        vocabulary: size of it.
        row_by_row: as for ``sample``.

    Returns:
        By the places of their sequences, the tokens with their log-probabilities.

    Raises:
        FloatingPointError: a logit is NaN or infinite.
    """
    found: dict[int, tuple[SampledToken, ...]] = {}
    most = max(SLICE_BYTES // (vocabulary * 4), 1)
    for one in wanted:
        told: list[SampledToken] = []
        while len(told) < len(one.targets):
            targets = one.targets[len(told) : len(told) + most]
            start = one.first + len(told)
            logits = logits_of(hidden[start : start + len(targets)].clone())
            told += _scored(logits, targets, one.top, row_by_row)
        found[one.place] = tuple(told)
    return found


def _scored(
    logits: torch.Tensor, targets: Sequence[int], top: int, row_by_row: bool
) -> list[SampledToken]:
    require_finite(logits)
    own = along_rows(lambda rows: rows.log_softmax(-1), logits, row_by_row)
    ids = torch.tensor(targets, dtype=torch.int64, device=logits.device).unsqueeze(1)
    chosen: list[float] = own.gather(1, ids).flatten().tolist()
    return [
        SampledToken(token, logprob, _top(row, top))
        for token, logprob, row in zip(targets, chosen, own, strict=True)
    ]


def with_logprobs(
    logits: torch.Tensor, draws: Sequence[Draw], tokens: list[int], row_by_row: bool
) -> list[SampledToken]:
    """Drawn tokens with the log-probabilities that were asked for.

    Args:
        logits: float32 [rows, vocab_size], finite.
        draws, tokens: one per row.
        row_by_row: as for ``sample``.
    """
    sampled = [SampledToken(token) for token in tokens]
    asked = [i for i, draw in enumerate(draws) if draw.params.logprobs]
    if not asked:
        return sampled
    own = along_rows(lambda rows: rows.log_softmax(-1), pick_rows(logits, asked), row_by_row)
    ids = torch.tensor([tokens[i] for i in asked], device=logits.device).unsqueeze(1)
    chosen: list[float] = own.gather(1, ids).flatten().tolist()
    for i, logprob, row in zip(asked, chosen, own, strict=True):
        top = _top(row, draws[i].params.top_logprobs)
        sampled[i] = SampledToken(tokens[i], logprob, top)
    return sampled


def _top(row: torch.Tensor, count: int) -> tuple[tuple[int, float], ...]:
    """The likeliest of one row; alone, since which of two equals is found depends on the count."""
    if count <= 0:
        return ()
    values, ids = likeliest_of(row.unsqueeze(0), min(count, len(row)))
    return tuple(zip(ids[0].tolist(), values[0].tolist(), strict=True))
