"""Matrix products, each kept in the form that its device multiplies fastest.

Everything else sees one small interface, so that a kernel can be replaced without touching the
network: the quantised tensors of torch, on which int8 stands today, are announced to go.
"""

from __future__ import annotations

import functools
import warnings
from typing import Protocol

import torch
from torch.nn import functional

from ds4trio.errors import ModelUnavailable

__all__ = ["Linear", "activation_dtype", "make_linear"]

WEIGHT_LEVELS = 127
"""int8 weights run from -127 to 127: symmetric, so that no zero point enters the sums."""

ACTIVATION_LEVELS = 63
"""Seven-bit activations: without VNNI, fbgemm adds two products of bytes in a saturating int16,
and 127 * 127 * 2 still fits there, while 255 * 127 * 2 does not."""

RESIDUAL_STEPS = 2 * ACTIVATION_LEVELS
"""Parts of one activation step that the second pass tells apart: half a step is 63 of them."""


class Linear(Protocol):
    """``y = x W^T + b`` for rows: [rows, in] -> [rows, out], in the dtype of the activations."""

    def __call__(self, rows: torch.Tensor, /) -> torch.Tensor: ...


def activation_dtype(dtype: str) -> torch.dtype:
    """The dtype in which hidden states travel between products: float32 under int8 weights."""
    kinds = {
        "float32": torch.float32,
        "bfloat16": torch.bfloat16,
        "float16": torch.float16,
        "int8": torch.float32,
    }
    try:
        return kinds[dtype]
    except KeyError:
        raise ModelUnavailable(f"unknown dtype {dtype!r}; use one of {', '.join(kinds)}") from None


def make_linear(
    weight: torch.Tensor, bias: torch.Tensor | None, *, dtype: str, device: torch.device
) -> Linear:
    """Bring a weight into the form that is multiplied.

    Args:
        weight: [out, in], any floating dtype, on the CPU. It is not kept where a packed form is.
        bias: [out] or None.
        dtype: ``float32``, ``bfloat16``, ``float16`` or ``int8``.
        device: where the rows will be.

    Raises:
        ModelUnavailable: the dtype is unknown, or is int8 on a device that has no such product.
    """
    kind = activation_dtype(dtype)
    bias = None if bias is None else bias.to(device, kind)
    if dtype == "int8":
        if device.type != "cpu" or "fbgemm" not in torch.backends.quantized.supported_engines:
            raise ModelUnavailable(f"int8 is not supported on {device}; use another --dtype")
        return _TwoPassInt8(weight.float(), bias)
    if device.type == "cpu" and kind == torch.float32 and _has_onednn():
        return _PrepackedFloat32(weight.float(), bias)
    return _Plain(weight.to(device, kind), bias)


def _has_onednn() -> bool:
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


class _Plain:
    """The framework's own product, in the dtype of the weight."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, rows: torch.Tensor, /) -> torch.Tensor:
        return functional.linear(rows, self._weight, self._bias)


class _PrepackedFloat32:
    """oneDNN's float32 product over a weight that was brought into its blocked layout once.

    A row's result has the same bits alone and among others. Where the kernel for a single row adds
    in another order than the kernel for several, a lone row is multiplied twice.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        out_features, in_features = weight.shape
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
        self._bias = bias
        self._pairs_up = _lone_row_differs(in_features, out_features)

    def __call__(self, rows: torch.Tensor, /) -> torch.Tensor:
        if self._pairs_up and len(rows) == 1:
            return _prepacked(rows.repeat(2, 1), self._packed, self._bias)[:1]
        return _prepacked(rows, self._packed, self._bias)


def _prepacked(rows: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, packed, bias, "none", [], "")
    return product


@functools.cache
def _lone_row_differs(in_features: int, out_features: int) -> bool:
    """Whether this machine's kernels for one row and for two disagree in their last bits.

    A few hundred columns tell as much as all of them: the order of additions is along the input.
    """
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(min(out_features, 4096), in_features, generator=generator)
    rows = torch.randn(2, in_features, generator=generator)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    alone, among = _prepacked(rows[:1], packed, None), _prepacked(rows, packed, None)
    return not torch.equal(alone, among[:1])


class _TwoPassInt8:
    """fbgemm's product of byte activations with byte weights, in integer sums.

    Weights have one scale per output. Activations are rounded to seven bits of their row's largest
    magnitude, and what the rounding left is rounded to seven bits again and multiplied as a second
    set of rows: about fourteen bits in all. Sums of integers do not depend on their order, so a
    row's result has the same bits alone and among others.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        scales = weight.abs().amax(1).clamp_min_(torch.finfo(torch.float32).tiny) / WEIGHT_LEVELS
        zeros = torch.zeros(len(scales), dtype=torch.int64)
        with warnings.catch_warnings():
            # The announcement that quantised tensors will go; the module's text says how we cope.
            warnings.filterwarnings("ignore", category=UserWarning, message=".*deprecated.*")
            quantised = torch.quantize_per_channel(weight, scales.double(), zeros, 0, torch.qint8)
            self._packed = torch.ops.quantized.linear_prepack(quantised, None)
        self._bias = bias

    def __call__(self, rows: torch.Tensor, /) -> torch.Tensor:
        count, width = rows.shape
        step = rows.abs().amax(1, keepdim=True).div_(ACTIVATION_LEVELS)
        step.clamp_min_(torch.finfo(torch.float32).tiny)
        passes = rows.new_empty(2 * count, width)
        exact, rounded, residual = rows / step, passes[:count], passes[count:]
        torch.round(exact, out=rounded)
        torch.sub(exact, rounded, out=residual).mul_(RESIDUAL_STEPS)
        sums = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            passes, 1.0, ACTIVATION_LEVELS + 1, self._packed
        )
        product: torch.Tensor = sums[:count]
        product.add_(sums[count:], alpha=1 / RESIDUAL_STEPS).mul_(step)
        return product if self._bias is None else product.add_(self._bias)
