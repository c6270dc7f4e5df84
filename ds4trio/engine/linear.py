"""Matrix products, each kept in the form that its device multiplies fastest.

Everything else sees the two small interfaces here, so that a kernel can be replaced without
touching the network. On a CPU they are our own kernels (``native``), elsewhere torch's, or where
rows must have the same bits in any company ``tiled`` and ``blocks``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch
from torch.nn import functional

from ds4trio.engine.activation import Activation, gated
from ds4trio.engine.blocks import BlockGated, BlockLinear
from ds4trio.engine.norm import RMSNorm
from ds4trio.engine.paged import has_kernels
from ds4trio.engine.tiled import TiledGated, TiledLinear
from ds4trio.errors import ModelUnavailable

if TYPE_CHECKING:
    from ds4trio.engine.native.packed import Packed, PackedFile

__all__ = [
    "ROUNDED",
    "Gated",
    "Linear",
    "Pair",
    "activation_dtype",
    "is_native",
    "make_gated",
    "make_linear",
    "side_by_side",
]


class Linear(Protocol):
    """``y = norm(x) W^T + b`` for rows: [rows, in] -> [rows, out], in the dtype of the rows."""

    def __call__(self, rows: torch.Tensor, norm: RMSNorm | None = None) -> torch.Tensor: ...

    def add_to(self, hidden: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """``hidden += rows W^T + b``, in place."""
        ...

    def rows(self, numbers: torch.Tensor) -> torch.Tensor:
        """Rows of W itself (numbers: int64 [count]): an embedding that is tied to the head."""
        ...


class Gated(Protocol):
    """An MLP's first two products (arXiv:2002.05202): ``f(norm(x) G^T) * (norm(x) U^T)``."""

    def __call__(self, rows: torch.Tensor, norm: RMSNorm | None = None) -> torch.Tensor: ...

    def apart(self, rows: torch.Tensor, norm: RMSNorm | None = None) -> torch.Tensor:
        """Both products, not combined yet, in the order of ``side_by_side``."""
        ...

    def combined(self, both: torch.Tensor) -> torch.Tensor:
        """What ``apart`` gave, combined: the same bits as those of a call."""
        ...


def activation_dtype(dtype: str) -> torch.dtype:
    """The dtype in which hidden states travel between products: float32 with rounded weights."""
    kinds = {
        "float32": torch.float32,
        "bfloat16": torch.bfloat16,
        "float16": torch.float16,
        "w8a16": torch.float32,
        "int8": torch.float32,
    }
    try:
        return kinds[dtype]
    except KeyError:
        raise ModelUnavailable(f"unknown dtype {dtype!r}; use one of {', '.join(kinds)}") from None


def is_native(dtype: str, device: torch.device) -> bool:
    """Whether our own kernels do the work."""
    return device.type == "cpu" and activation_dtype(dtype) == torch.float32


ROUNDED = ("w8a16", "int8")
"""Weights of eight bits, or of four where that loses nothing, and activations of 16 bits or 8."""


def make_linear(
    weights: Callable[[], tuple[torch.Tensor, torch.Tensor | None]],
    *,
    dtype: str,
    device: torch.device,
    batch_invariant: bool = False,
    readable: bool = False,
    name: str = "",
    kept: PackedFile | None = None,
) -> Linear:
    """Bring a weight into the form that is multiplied.

    Args:
        weights: gives the weight, [out, in] in any floating dtype on the CPU, and the bias, [out]
            or None. It is not called where the packed form is kept already.
        dtype: ``float32``, ``bfloat16``, ``float16``, ``w8a16`` or ``int8``.
        device: where the rows will be.
        batch_invariant: a row has the same bits in any company, also where that costs time.
        readable: ``rows`` will be called.
        name, kept: where the packed form is kept, and by what name; None keeps it nowhere.

    Raises:
        ModelUnavailable: the dtype is unknown, or is ``w8a16`` or ``int8`` on a device that has no
            such products.
    """
    if is_native(dtype, device):
        # Here, since a server on a GPU has no use for the compiler that comes with it.
        from ds4trio.engine.native.linear import NativeLinear
        from ds4trio.engine.native.packed import pack_weight

        def pack() -> Packed:
            return pack_weight(*weights(), rounded=dtype in ROUNDED, readable=readable)

        packed = pack() if kept is None else kept.get(name, pack)
        return NativeLinear(packed, fine=dtype == "w8a16")
    placed = _on(device, dtype, *weights())
    if not batch_invariant:
        return _Plain(*placed)
    return TiledLinear(*placed) if has_kernels(device) else BlockLinear(*placed)


Pair = tuple[torch.Tensor, torch.Tensor]


def make_gated(
    weights: Callable[[], tuple[Pair, Pair | None]],
    width: int,
    activation: Activation,
    *,
    dtype: str,
    device: torch.device,
    batch_invariant: bool = False,
    name: str = "",
    kept: PackedFile | None = None,
) -> Gated:
    """The same for gates and ups: weights gives both, [width, in] each, and both biases or None."""
    if is_native(dtype, device):
        from ds4trio.engine.native.linear import NativeGated, interleaved
        from ds4trio.engine.native.packed import pack_weight

        def pack() -> Packed:
            both, biases = weights()
            bias = None if biases is None else interleaved(*biases)
            return pack_weight(interleaved(*both), bias, rounded=dtype in ROUNDED)

        packed = pack() if kept is None else kept.get(name, pack)
        return NativeGated(packed, width, activation, fine=dtype == "w8a16")
    both, biases = weights()
    bias = None if biases is None else torch.cat(biases)
    placed = _on(device, dtype, torch.cat(both), bias)
    if not batch_invariant:
        return _PlainGated(*placed, activation)
    if has_kernels(device):
        return TiledGated(*placed, activation)
    return BlockGated(*placed, activation)


def side_by_side(
    gate: torch.Tensor, up: torch.Tensor, *, dtype: str, device: torch.device
) -> torch.Tensor:
    """Rows for gates and for ups ([width, ...] each) as ``Gated.apart`` has its columns."""
    if is_native(dtype, device):
        from ds4trio.engine.native.linear import interleaved

        return interleaved(gate, up)
    return torch.cat((gate, up))


def _on(
    device: torch.device, dtype: str, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    kind = activation_dtype(dtype)
    if dtype in ROUNDED:
        raise ModelUnavailable(f"{dtype} is not supported on {device}; use another --dtype")
    return weight.to(device, kind), None if bias is None else bias.to(device, kind)


class _Plain:
    """The framework's own product, in the dtype of the weight."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, rows: torch.Tensor, norm: RMSNorm | None = None) -> torch.Tensor:
        if norm is not None:
            rows = norm(rows)
        return functional.linear(rows, self._weight, self._bias)

    def add_to(self, hidden: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return hidden.add_(self(rows))

    def rows(self, numbers: torch.Tensor) -> torch.Tensor:
        return self._weight.index_select(0, numbers)


class _PlainGated:
    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, activation: Activation
    ) -> None:
        self._product = _Plain(weight, bias)
        self._activation = activation

    def __call__(self, rows: torch.Tensor, norm: RMSNorm | None = None) -> torch.Tensor:
        return self.combined(self._product(rows, norm))

    def apart(self, rows: torch.Tensor, norm: RMSNorm | None = None) -> torch.Tensor:
        return self._product(rows, norm)

    def combined(self, both: torch.Tensor) -> torch.Tensor:
        return gated(self._activation, *both.chunk(2, -1))
