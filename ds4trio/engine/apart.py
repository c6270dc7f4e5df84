"""RMSNorm where no product takes it along: of queries and keys, and of what a block adds."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ds4trio.engine.blocks import in_blocks
from ds4trio.engine.linear import is_native
from ds4trio.engine.norm import RMSNorm
from ds4trio.engine.paged import has_kernels
from ds4trio.engine.tiled import normalise as normalise_tiled

__all__ = ["HeadNorm", "Normalise", "OutputNorm", "make_normalise"]

Normalise = Callable[[torch.Tensor, RMSNorm], torch.Tensor]
"""Of parts of rows, [rows, parts, width], rows and parts lying as they like; the result has that
shape too, and may be in their memory."""


def make_normalise(dtype: str, device: torch.device, *, batch_invariant: bool) -> Normalise:
    """The way that suits the device, and gives a row the same bits in any company where products
    do; arguments as for ``make_linear``."""
    if is_native(dtype, device):
        from ds4trio.engine.native.norm import normalise

        def in_place(rows: torch.Tensor, norm: RMSNorm) -> torch.Tensor:
            normalise(rows, norm.weight, norm.epsilon)
            return rows

        return in_place
    if not batch_invariant:
        return lambda rows, norm: norm(rows)
    if has_kernels(device):
        return lambda rows, norm: normalise_tiled(rows.flatten(0, 1), norm).view(rows.shape)

    def by_blocks(rows: torch.Tensor, norm: RMSNorm) -> torch.Tensor:
        flat = rows.flatten(0, 1)
        return torch.cat(list(in_blocks(flat, norm)))[: len(flat)].view(rows.shape)

    return by_blocks


class HeadNorm:
    """Queries and keys, normalised before they are turned: each head by itself, or all as one.

    Args:
        query, key: the norms; their weights are as wide as a head, or as all heads.
        heads, kv_heads, head_dim: of the model.
        normalise: from ``make_normalise``.
    """

    def __init__(
        self,
        query: RMSNorm,
        key: RMSNorm,
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        normalise: Normalise,
    ) -> None:
        self._parts = (
            (slice(0, heads * head_dim), query),
            (slice(heads * head_dim, (heads + kv_heads) * head_dim), key),
        )
        self._normalise = normalise

    def __call__(self, inputs: torch.Tensor) -> None:
        """Change rows of queries, keys and values ([rows, width]) in place."""
        for columns, norm in self._parts:
            part = inputs[:, columns]
            heads = part.view(len(part), -1, len(norm.weight))
            done = self._normalise(heads, norm)
            if done is not heads:
                heads.copy_(done)


class OutputNorm:
    """What a half of a block gives is normalised, then added."""

    def __init__(self, norm: RMSNorm, normalise: Normalise) -> None:
        self._norm = norm
        self._normalise = normalise

    def add_to(self, hidden: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """``hidden += norm(rows)``, in place; rows may be changed too."""
        return hidden.add_(self._normalise(rows.unsqueeze(1), self._norm).squeeze(1))
