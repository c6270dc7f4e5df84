"""What the sampler does with rows of numbers, each by itself."""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = ["along_rows", "likeliest_of", "not_finite", "pick_rows", "require_finite"]


def along_rows(
    sums: Callable[[torch.Tensor], torch.Tensor], numbers: torch.Tensor, row_by_row: bool
) -> torch.Tensor:
    """Sums along rows. ``row_by_row`` runs them once for each, so that the device cannot choose
    their order by the number of rows."""
    if not row_by_row:
        return sums(numbers)
    # Each in memory of its own, since how a row lies there may decide the order too.
    return torch.cat([sums(row.clone()) for row in torch.split(numbers, 1)])


def require_finite(logits: torch.Tensor) -> None:
    """Raises FloatingPointError, which names the rows, if a number is NaN or infinite."""
    if not torch.stack(torch.aminmax(logits)).isfinite().all():
        bad = logits.isfinite().all(-1).logical_not().nonzero().flatten().tolist()
        raise not_finite(bad)


def not_finite(rows: list[int]) -> FloatingPointError:
    """For logits of these rows."""
    return FloatingPointError(f"logits of rows {rows} are not finite")


def pick_rows(scores: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """Some rows in memory of their own, or all as they are."""
    if len(rows) == len(scores):
        return scores
    return scores.index_select(0, torch.tensor(rows, device=scores.device))


def likeliest_of(probabilities: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The likeliest ``width`` places of each row, equal ones by id: values and ids."""
    if width == probabilities.shape[1]:
        return torch.sort(probabilities, dim=-1, descending=True, stable=True)
    ids = probabilities.topk(width, -1, sorted=False).indices.sort(-1).values
    values, order = torch.sort(probabilities.gather(1, ids), dim=-1, descending=True, stable=True)
    return values, ids.gather(1, order)
