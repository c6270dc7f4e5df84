"""Products of every head with a matrix of its own.

They follow the same rule as those in ``linear.py``: a row has the same bits in any company wherever
products have. A batched product of the library does not promise that, so it is used only where
nobody asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch

from ds4trio.engine.linear import ROUNDED, Linear, activation_dtype, is_native, make_linear

if TYPE_CHECKING:
    from ds4trio.engine.native.packed import Packed, PackedFile

__all__ = ["Headwise", "make_headwise"]


class Headwise(Protocol):
    """``out[:, head] = rows[:, head] W_head^T``.

    Rows are [rows, heads, inputs] and the result [rows, heads, outputs], both lying in memory as
    they like, so that they may be parts of wider rows.
    """

    def __call__(self, rows: torch.Tensor, out: torch.Tensor) -> None: ...


def make_headwise(
    weights: Callable[[], torch.Tensor],
    heads: int,
    *,
    dtype: str,
    device: torch.device,
    batch_invariant: bool = False,
    name: str = "",
    kept: PackedFile | None = None,
) -> Headwise:
    """Bring the matrices into the form that is multiplied.

    Args:
        weights: gives [heads, outputs, inputs] in any floating dtype. It is not called where the
            packed form is kept already.
        heads: how many.
        dtype, device, batch_invariant, name, kept: as for ``make_linear``, which also says what is
            raised.
    """
    if is_native(dtype, device):
        from ds4trio.engine.native.heads import NativeHeads, pack_heads

        def pack() -> Packed:
            return pack_heads(weights(), rounded=dtype in ROUNDED)

        packed = pack() if kept is None else kept.get(name, pack)
        return NativeHeads(packed, heads, fine=dtype == "w8a16")
    every = weights()
    if not batch_invariant and dtype not in ROUNDED:
        return _Batched(every.to(device, activation_dtype(dtype)))

    def apart(head: int) -> Linear:
        return make_linear(
            lambda: (every[head], None),
            dtype=dtype,
            device=device,
            batch_invariant=batch_invariant,
        )

    return _Apart([apart(head) for head in range(heads)])


class _Batched:
    """The framework's own product of many matrices."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight.transpose(1, 2)

    def __call__(self, rows: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(torch.bmm(rows.transpose(0, 1), self._weight).transpose(0, 1))


class _Apart:
    """One product after the other."""

    def __init__(self, products: list[Linear]) -> None:
        self._products = products

    def __call__(self, rows: torch.Tensor, out: torch.Tensor) -> None:
        for head, product in enumerate(self._products):
            out[:, head] = product(rows[:, head])
