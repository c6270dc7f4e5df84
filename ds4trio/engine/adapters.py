"""Low-rank adapters (LoRA, arXiv:2106.09685): rows of one step may have different ones, or none.

The products of the model run once over all rows, as without adapters; then the rows of each adapter
get what it adds. So a row without one has the same bits as on a server that has none, and a row
with one has the same bits in any company.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from ds4trio.engine.apart import Normalise
from ds4trio.engine.linear import Gated, Linear
from ds4trio.engine.norm import RMSNorm

__all__ = ["ActiveAdapters", "AdaptedGated", "AdaptedLinear", "LowRank"]

Groups = Sequence[tuple[str, torch.Tensor]]


@dataclass(slots=True)
class ActiveAdapters:
    """Which rows of the step that runs have which adapter. Set before a step by whoever runs it.

    Attributes:
        groups: names of adapters, and the rows of each, int64.
    """

    groups: Groups = field(default_factory=tuple)


class LowRank:
    """What an adapter adds to a product: ``up(down(x))``."""

    def __init__(self, down: Linear, up: Linear) -> None:
        self._down = down
        self._up = up

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """[rows, inputs], normalised already -> [rows, outputs]."""
        return self._up(self._down(rows))


class _Changes:
    """The adapters that change one product."""

    def __init__(
        self, changes: Mapping[str, LowRank], active: ActiveAdapters, normalise: Normalise
    ) -> None:
        self._changes = changes
        self._active = active
        self._normalise = normalise

    @property
    def wanted(self) -> bool:
        """Whether any row of this step is changed here."""
        return any(name in self._changes for name, _ in self._active.groups)

    def add(self, out: torch.Tensor, rows: torch.Tensor, norm: RMSNorm | None) -> None:
        """Add to the result of a product of ``rows`` what adapters add to theirs."""
        for name, places in self._active.groups:
            change = self._changes.get(name)
            if change is None:
                continue
            own = rows.index_select(0, places)
            if norm is not None:
                own = self._normalise(own.unsqueeze(1), norm).squeeze(1)
            out.index_add_(0, places, change(own))


class AdaptedLinear:
    """A ``Linear`` that adapters change.

    Args:
        product: of the model itself.
        changes: by the adapters' names.
        active: which rows have which.
        normalise: from ``make_normalise``.
    """

    def __init__(
        self,
        product: Linear,
        changes: Mapping[str, LowRank],
        active: ActiveAdapters,
        normalise: Normalise,
    ) -> None:
        self._product = product
        self._changes = _Changes(changes, active, normalise)
        self.rows: Callable[[torch.Tensor], torch.Tensor] = product.rows

    def __call__(self, rows: torch.Tensor, norm: RMSNorm | None = None) -> torch.Tensor:
        out = self._product(rows, norm)
        if self._changes.wanted:
            self._changes.add(out, rows, norm)
        return out

    def add_to(self, hidden: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        hidden = self._product.add_to(hidden, rows)
        if self._changes.wanted:
            self._changes.add(hidden, rows, None)
        return hidden


class AdaptedGated:
    """A ``Gated`` that adapters change; arguments as for ``AdaptedLinear``."""

    def __init__(
        self,
        product: Gated,
        changes: Mapping[str, LowRank],
        active: ActiveAdapters,
        normalise: Normalise,
    ) -> None:
        self._product = product
        self._changes = _Changes(changes, active, normalise)

    def __call__(self, rows: torch.Tensor, norm: RMSNorm | None = None) -> torch.Tensor:
        if not self._changes.wanted:
            return self._product(rows, norm)
        both = self._product.apart(rows, norm)
        self._changes.add(both, rows, norm)
        return self._product.combined(both)

    def apart(self, rows: torch.Tensor, norm: RMSNorm | None = None) -> torch.Tensor:
        both = self._product.apart(rows, norm)
        if self._changes.wanted:
            self._changes.add(both, rows, norm)
        return both

    def combined(self, both: torch.Tensor) -> torch.Tensor:
        return self._product.combined(both)
