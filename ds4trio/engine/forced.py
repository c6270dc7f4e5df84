"""Tokens that are given, not drawn: those that end reasoning when it was long enough."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from ds4trio.engine.step import SamplingParams

__all__ = ["forced_token"]


def forced_token(params: SamplingParams, history: array[int]) -> int | None:
    """The next token, where ``reasoning_limit`` says it; None where it is to be drawn.

    Args:
        params: of the sequence.
        history: int64 ids of prompt and answer so far.
    """
    limit, end = params.reasoning_limit, params.reasoning_end
    if limit is None or not end or len(history) - params.prompt_length < limit:
        return None
    output = history[params.prompt_length :]
    if _holds(output, end):
        return None
    for begun in range(len(end) - 1, 0, -1):
        if output[-begun:].tolist() == list(end[:begun]):
            return end[begun]
    return end[0]


def _holds(output: array[int], part: Sequence[int]) -> bool:
    """Whether these tokens are in there, one after the other."""
    data, wanted = output.tobytes(), array("q", part).tobytes()
    place = data.find(wanted)
    while place % output.itemsize and place >= 0:
        place = data.find(wanted, place + 1)
    return place >= 0
