"""From what was counted to the figures of the report."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from ds4trio.cli.load.tally import Request, Tally

__all__ = ["Figures", "Ratio", "Spread", "figures", "ratio", "ratios", "spread"]


class Spread(msgspec.Struct, frozen=True):
    """Of a set of times, in seconds. Percentiles lie on the line between neighbours."""

    p50: float
    p95: float
    p99: float
    max: float


class Figures(msgspec.Struct, frozen=True):
    """Of one measurement, or of several together. docs/bench.md says what each one means.

    Attributes:
        requests: answered to the end.
        errors: failed requests, by code.
        message: what the server said of the latest failure.
        complete: the measurement was not cut short.
        input_tokens, cached_tokens, output_tokens: of the answered requests together.
        short_answers: ended before the length that was asked for, as the server counts.
        estimated: requests whose server did not count; an event of text was taken for a token.
        tokens_per_second: of all users together.
        user_tokens_per_second, slowest_user_tokens_per_second: of single answers, from sending the
            request to the end; the median and the least.
        first_token_by_turn: as ``first_token_seconds``, for each turn of a conversation.
    """

    requests: int
    errors: dict[str, int]
    message: str | None
    complete: bool
    seconds: float
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    short_answers: int
    estimated: int
    tokens_per_second: float
    user_tokens_per_second: float | None
    slowest_user_tokens_per_second: float | None
    first_token_seconds: Spread | None
    first_token_by_turn: list[Spread | None]
    gap_seconds: Spread | None
    request_seconds: Spread | None


class Ratio(msgspec.Struct, frozen=True):
    """The first server's figure by the second's: the median of the rounds, and how they spread."""

    median: float
    min: float
    max: float
    rounds: list[float]


def spread(times: Sequence[float]) -> Spread | None:
    """None of no times at all."""
    if not times:
        return None
    if len(times) == 1:
        return Spread(times[0], times[0], times[0], times[0])
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    return Spread(cuts[49], cuts[94], cuts[98], max(times))


def figures(tally: Tally, asked: int = 0) -> Figures:
    """The figures of what was counted.

    Args:
        asked: tokens that every answer was to have.
    """
    requests = tally.requests
    answers = [request.answer for request in requests]
    output_tokens = tally.output_tokens
    speeds = [
        request.output_tokens / (request.ended - request.due)
        for request in requests
        if request.ended > request.due
    ]
    turns = range(1 + max((request.turn for request in requests), default=-1))
    return Figures(
        requests=len(requests),
        errors=dict(sorted(tally.errors.items())),
        message=tally.message,
        complete=tally.complete,
        seconds=tally.seconds,
        input_tokens=sum(answer.input_tokens or 0 for answer in answers),
        cached_tokens=sum(answer.cached_tokens or 0 for answer in answers),
        output_tokens=output_tokens,
        short_answers=sum(
            answer.output_tokens is not None and answer.output_tokens < asked for answer in answers
        ),
        estimated=sum(answer.output_tokens is None for answer in answers),
        tokens_per_second=output_tokens / tally.seconds if tally.seconds else 0.0,
        user_tokens_per_second=statistics.median(speeds) if speeds else None,
        slowest_user_tokens_per_second=min(speeds, default=None),
        first_token_seconds=spread(_first_tokens(requests)),
        first_token_by_turn=[
            spread(_first_tokens([request for request in requests if request.turn == turn]))
            for turn in turns
        ],
        gap_seconds=spread(
            [later - earlier for answer in answers for earlier, later in pairwise(answer.pieces)]
        ),
        request_seconds=spread([request.ended - request.due for request in requests]),
    )


def ratios(pairs: Sequence[tuple[Figures, Figures]]) -> dict[str, Ratio]:
    """What the first server's figures are of the second's, round by round.

    A round counts for a figure where both servers have it. One that no round has is left out.

    Args:
        pairs: for each round, the figures of the first and of the second server.
    """
    found: dict[str, list[float]] = {}
    for first, second in pairs:
        ours, theirs = _compared(first), _compared(second)
        for name in ours.keys() & theirs.keys():
            found.setdefault(name, []).append(ours[name] / theirs[name])
    made = {name: ratio(found.get(name, [])) for name in _NAMES}
    return {name: of_rounds for name, of_rounds in made.items() if of_rounds is not None}


def ratio(rounds: list[float]) -> Ratio | None:
    """From the ratio of each round; None where there is no round."""
    if not rounds:
        return None
    return Ratio(statistics.median(rounds), min(rounds), max(rounds), rounds)


_NAMES = (
    "tokens_per_second",
    "user_tokens_per_second",
    "first_token_p50",
    "first_token_p99",
    "gap_p50",
    "gap_p99",
)


def _compared(of: Figures) -> dict[str, float]:
    """The figures that a ratio can be made of: those that there are, and are not zero."""
    first, gap = of.first_token_seconds, of.gap_seconds
    values = (
        of.tokens_per_second,
        of.user_tokens_per_second,
        first.p50 if first else None,
        first.p99 if first else None,
        gap.p50 if gap else None,
        gap.p99 if gap else None,
    )
    return {name: value for name, value in zip(_NAMES, values, strict=True) if value}


def _first_tokens(requests: Sequence[Request]) -> list[float]:
    return [request.answer.pieces[0] - request.due for request in requests if request.answer.pieces]
