"""Logits to tokens, for all sequences of a step at once.

What a row draws depends on that row alone. Rows are sorted into those that take the likeliest
token, those that draw from the whole vocabulary, and those that draw from its likeliest part, so
that nobody pays for what a neighbour asked.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import numpy as np
import torch

from ds4trio.engine.draw import Bias, Draw
from ds4trio.engine.logprobs import with_logprobs
from ds4trio.engine.rowwise import (
    along_rows,
    likeliest_of,
    not_finite,
    pick_rows,
    require_finite,
)
from ds4trio.engine.step import SampledToken, SamplingParams
from ds4trio.engine.stream import uniform

__all__ = ["Bias", "Draw", "load_kernels", "sample"]

CANDIDATES = 128
"""How many of the likeliest tokens are looked at before the whole vocabulary is sorted."""

ROWS_AT_ONCE = 8
"""On a CPU, so that what is made of the rows on the way stays in its caches."""


def load_kernels(device: torch.device) -> None:
    """Have what ``sample`` runs on a CPU compiled before somebody waits for it."""
    if device.type == "cpu":
        import ds4trio.engine.native.greedy  # noqa: F401


def sample(
    logits: torch.Tensor, draws: Sequence[Draw], *, row_by_row: bool = False
) -> list[SampledToken]:
    """Draw one token per row.

    Args:
        logits: float32 [rows, vocab_size], the model's own. It is not changed.
        draws: one per row.
        row_by_row: what sums along rows runs once for each, where the device would choose the order
            of those sums by the number of rows.

    Raises:
        FloatingPointError: a logit is NaN or infinite.
    """
    free = [i for i, draw in enumerate(draws) if draw.free]
    if len(free) == len(draws) or all(map(_is_plain, draws)):
        return _sample_alike(logits, draws, row_by_row)
    # By themselves, so that the free ones are drawn as fast as ever.
    bound = [i for i, draw in enumerate(draws) if not draw.free]
    drawn: dict[int, SampledToken] = {}
    for rows in filter(None, (free, bound)):
        wishes = [draws[i] for i in rows]
        tokens = _sample_alike(pick_rows(logits, rows), wishes, row_by_row)
        drawn.update(zip(rows, tokens, strict=True))
    return [drawn[i] for i in range(len(draws))]


def _sample_alike(
    logits: torch.Tensor, draws: Sequence[Draw], row_by_row: bool
) -> list[SampledToken]:
    if logits.device.type == "cpu" and all(map(_is_plain, draws)):
        return with_logprobs(logits, draws, _likeliest_allowed(logits, draws), row_by_row)
    most = ROWS_AT_ONCE if logits.device.type == "cpu" else len(draws)
    tokens: list[SampledToken] = []
    for start in range(0, len(draws), most):
        part = slice(start, start + most)
        tokens += _sample(logits[part], draws[part], row_by_row)
    return tokens


def _is_plain(draw: Draw) -> bool:
    """Takes the likeliest token of the logits as they are, or the likeliest that is allowed."""
    return draw.params.greedy and not _adjusts(draw.params)


def _likeliest_allowed(logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
    """Greedy rows, whose likeliest token their masks allow in most cases."""
    tokens = _likeliest_on_cpu(logits)
    again = [
        (i, draw.mask)
        for i, draw in enumerate(draws)
        if draw.mask is not None and not draw.mask[tokens[i]]
    ]
    if again:
        scores = logits[[i for i, _ in again]]
        for row, (_, mask) in zip(scores, again, strict=True):
            row.masked_fill_(mask.logical_not(), torch.finfo(row.dtype).min)
        for (i, _), token in zip(again, _likeliest_on_cpu(scores), strict=True):
            tokens[i] = token
    for i, draw in enumerate(draws):
        if (forced := draw.forced) is not None:
            tokens[i] = forced
    return tokens


def _likeliest_on_cpu(logits: torch.Tensor) -> list[int]:
    from ds4trio.engine.native.greedy import likeliest_of_rows

    tokens = likeliest_of_rows(logits)
    if -1 in tokens:
        raise not_finite([row for row, token in enumerate(tokens) if token < 0])
    return tokens


def _sample(logits: torch.Tensor, draws: Sequence[Draw], row_by_row: bool) -> list[SampledToken]:
    require_finite(logits)
    scores = _adjusted(logits, draws)
    greedy = [i for i, draw in enumerate(draws) if draw.params.greedy]
    if len(greedy) == len(draws):
        tokens: list[int] = scores.argmax(-1).tolist()
    else:
        tokens = [0] * len(draws)
        vocabulary = logits.shape[1]
        drawn = [i for i, draw in enumerate(draws) if not draw.params.greedy]
        narrow = [i for i in drawn if _narrows(draws[i].params, vocabulary)]
        wide = [i for i in drawn if not _narrows(draws[i].params, vocabulary)]
        for rows, method in ((greedy, _likeliest), (wide, _from_all), (narrow, _from_likeliest)):
            if rows:
                chosen = method(pick_rows(scores, rows), [draws[i] for i in rows], row_by_row)
                for i, token in zip(rows, chosen, strict=True):
                    tokens[i] = token
    for i, draw in enumerate(draws):
        if (forced := draw.forced) is not None:
            tokens[i] = forced
    return with_logprobs(logits, draws, tokens, row_by_row)


def _adjusted(logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """Penalties, biases and masks, in a copy; the logits themselves where no row has any."""
    changed = [i for i, draw in enumerate(draws) if _adjusts(draw.params)]
    masked = [(i, draw.mask) for i, draw in enumerate(draws) if draw.mask is not None]
    if not changed and not masked:
        return logits
    scores = logits.clone()
    for i in changed:
        _penalise(scores[i], draws[i])
    for i, mask in masked:
        scores[i].masked_fill_(mask.to(scores.device).logical_not(), -math.inf)
    return scores


def _adjusts(params: SamplingParams) -> bool:
    return (
        params.repetition_penalty != 1.0
        or params.frequency_penalty != 0.0
        or params.presence_penalty != 0.0
        or bool(params.logit_bias)
    )


def _penalise(row: torch.Tensor, draw: Draw) -> None:
    """Change one row of scores in place: penalties over what was said, then the biases."""
    params, device = draw.params, row.device
    said = _ids(draw.history).to(device)
    output = said[max(params.prompt_length, 0) :]
    if params.repetition_penalty != 1.0 and len(said):
        was = row[said]
        factor = params.repetition_penalty
        row[said] = torch.where(was > 0, was / factor, was * factor)
    if params.presence_penalty != 0.0 and len(output):
        row[output] = row[output] - params.presence_penalty
    if params.frequency_penalty != 0.0 and len(output):
        amount = torch.full((len(output),), -float(params.frequency_penalty), device=device)
        row.index_add_(0, output, amount)
    if draw.bias is not None:
        row.index_add_(0, draw.bias.ids.to(device), draw.bias.amounts.to(device))
    row.nan_to_num_()


def _ids(history: array[int]) -> torch.Tensor:
    if not history:
        return torch.empty(0, dtype=torch.int64)
    return torch.frombuffer(bytearray(history), dtype=torch.int64)


def _narrows(params: SamplingParams, vocabulary: int) -> bool:
    return 0 < params.top_k < vocabulary or params.top_p < 1.0 or params.min_p > 0.0


def _likeliest(scores: torch.Tensor, draws: Sequence[Draw], row_by_row: bool) -> list[int]:
    tokens: list[int] = scores.argmax(-1).tolist()
    return tokens


def _probabilities(scores: torch.Tensor, draws: Sequence[Draw], row_by_row: bool) -> torch.Tensor:
    """Softmax at each row's temperature, safe for the smallest: the maximum goes to 0 first."""
    temperatures = torch.tensor([draw.params.temperature for draw in draws], device=scores.device)
    centred = scores - scores.amax(-1, keepdim=True)
    centred = centred.div_(temperatures.unsqueeze(1))
    return along_rows(lambda rows: rows.softmax(-1), centred, row_by_row)


def _running_sums(probabilities: torch.Tensor, row_by_row: bool) -> torch.Tensor:
    """Cumulative sums in float64 where the device has it: beside a sum near 1, float32 would lose
    every token below 6e-8, and a vocabulary holds many of those."""
    precise = torch.float32 if probabilities.device.type == "mps" else torch.float64
    return along_rows(lambda rows: rows.cumsum(-1, dtype=precise), probabilities, row_by_row)


def _invert(sums: torch.Tensor, totals: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """The first place in each row whose running sum exceeds a uniform part of the row's total.

    Args:
        sums: [rows, places], rising.
        totals: [rows, 1], the sum at each row's last place that may be drawn.

    Returns:
        int64 [rows, 1]. A place without probability is never the result: sums rise only at others,
        and a product rounded up to the total means the place where the total is reached.
    """
    parts = [uniform(draw.params.seed, draw.number) for draw in draws]
    targets = torch.tensor(parts, dtype=sums.dtype, device=sums.device).unsqueeze(1) * totals
    places = torch.searchsorted(sums, targets, right=True)
    return torch.minimum(places, torch.searchsorted(sums, totals))


def _from_all(scores: torch.Tensor, draws: Sequence[Draw], row_by_row: bool) -> list[int]:
    sums = _running_sums(_probabilities(scores, draws, row_by_row), row_by_row)
    tokens: list[int] = _invert(sums, sums[:, -1:].contiguous(), draws).flatten().tolist()
    return tokens


def _from_likeliest(scores: torch.Tensor, draws: Sequence[Draw], row_by_row: bool) -> list[int]:
    """top_k, then top_p over what it left, then min_p: each keeps a beginning of the row's order by
    probability (equal ones by id), so together they keep the shortest."""
    probabilities = _probabilities(scores, draws, row_by_row)
    vocabulary = probabilities.shape[1]
    tokens = [-1] * len(draws)
    if vocabulary > CANDIDATES:
        values, ids = likeliest_of(probabilities, CANDIDATES)
        places, last, kept = _places(values, draws, vocabulary, row_by_row)
        chosen = ids.gather(1, places).flatten().tolist()
        # The kept part is known once it ends before a smaller value, or once the candidates hold
        # every token that has any probability.
        least = values[:, -1:]
        known = ((kept <= CANDIDATES) & (values.gather(1, last) > least)) | (least == 0)
        for i, settled in enumerate(known.flatten().tolist()):
            if settled:
                tokens[i] = chosen[i]
    waiting = [i for i, token in enumerate(tokens) if token < 0]
    if waiting:
        rest = pick_rows(probabilities, waiting)
        values = _descending(rest)
        asked = [draws[i] for i in waiting]
        places, _, _ = _places(values, asked, vocabulary, row_by_row)
        for i, row, falling, place in zip(waiting, rest, values, places, strict=True):
            tokens[i] = _of_rank(row, falling, int(place))
    return tokens


def _places(
    values: torch.Tensor, draws: Sequence[Draw], vocabulary: int, row_by_row: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draw from the likeliest: places in each row of values that fall, and of the last that is
    kept, and how many are, int64 [rows, 1] each."""
    sums = _running_sums(values, row_by_row)
    kept = _kept(values, sums, [draw.params for draw in draws], vocabulary)
    last = kept.clamp(1, values.shape[1]) - 1
    return _invert(sums, sums.gather(1, last), draws), last, kept


def _descending(probabilities: torch.Tensor) -> torch.Tensor:
    """Each row sorted. On a CPU by NumPy, which is 40 times as fast at it as torch."""
    if probabilities.device.type == "cpu":
        return torch.from_numpy(np.sort(probabilities.numpy(), -1)).flip(-1)
    return probabilities.sort(-1, descending=True).values


def _of_rank(row: torch.Tensor, falling: torch.Tensor, rank: int) -> int:
    """The id at a place of the row's order by probability, equal ones by id."""
    value = falling[rank]
    before = int((falling > value).sum())
    return int((row == value).nonzero()[rank - before])


def _kept(
    values: torch.Tensor, sums: torch.Tensor, params: Sequence[SamplingParams], vocabulary: int
) -> torch.Tensor:
    """How many of the likeliest each row keeps, int64 [rows, 1]; more than there are columns where
    the columns do not tell."""
    width, device = values.shape[1], values.device
    limits = [p.top_k if 0 < p.top_k < vocabulary else vocabulary for p in params]
    kept = torch.tensor(limits, device=device).unsqueeze(1)
    unknown = torch.zeros_like(kept, dtype=torch.bool)
    if any(p.top_p < 1.0 for p in params):
        all_there = values[:, -1:] == 0  # what the columns leave out has no probability
        whole = torch.where(all_there & (kept < vocabulary), sums[:, -1:], 1.0)
        within = torch.where(kept <= width, sums.gather(1, kept.clamp(max=width) - 1), whole)
        shares = torch.tensor([p.top_p for p in params], dtype=sums.dtype, device=device)
        before = (sums < shares.unsqueeze(1) * within).sum(-1, keepdim=True)
        nucleus = torch.where(shares.unsqueeze(1) < 1.0, before + 1, vocabulary)
        # Where top_k reaches beyond the columns, the total of what it leaves is not known yet.
        unknown = (kept > width) & (kept < vocabulary) & (shares.unsqueeze(1) < 1.0) & ~all_there
        kept = torch.minimum(kept, nucleus)
    if any(p.min_p > 0.0 for p in params):
        least = torch.tensor([p.min_p for p in params], device=device).unsqueeze(1)
        above = (values >= least * values[:, :1]).sum(-1, keepdim=True)
        kept = torch.minimum(kept, torch.where(above == width, vocabulary, above))
    return torch.where(unknown, vocabulary, kept)
