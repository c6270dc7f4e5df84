"""Triton kernels for products and norms in which a row has the same bits in any company.

A library splits a sum among programs, or cuts it into other tiles, when there are few rows. Here
tiles have one size, and a program adds up its whole sum in the order of the input. What else is in
the launch changes neither. The idea is that of Horace He and Thinking Machines Lab ("Defeating
Nondeterminism in LLM Inference", 2025).

Matrices are contiguous. The number of rows must not change what is compiled.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["norm_kernel", "product_kernel"]


@triton.jit(do_not_specialize=["count"])
def product_kernel(
    rows,
    weight,
    bias,
    result,
    count,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """One tile of ``rows [count, INPUTS] @ weight [OUTPUTS, INPUTS]^T + bias``.

    The grid is (tiles of rows, tiles of columns): programs that run together share their weights.
    """
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)).to(tl.int64)
    present = (row < count)[:, None]
    wanted = (column < OUTPUTS)[:, None]
    depth = tl.arange(0, DEPTH)
    sums = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    for begin in range(0, INPUTS, DEPTH):
        place = (begin + depth)[None, :]
        within = place < INPUTS
        left = tl.load(rows + row[:, None] * INPUTS + place, mask=present & within, other=0.0)
        right = tl.load(weight + column[:, None] * INPUTS + place, mask=wanted & within, other=0.0)
        sums = tl.dot(left, tl.trans(right), sums, input_precision="ieee")
    if HAS_BIAS:
        sums += tl.load(bias + column, mask=column < OUTPUTS, other=0.0).to(tl.float32)[None, :]
    tl.store(
        result + row[:, None] * OUTPUTS + column[None, :],
        sums.to(result.dtype.element_ty),
        mask=present & (column < OUTPUTS)[None, :],
    )


@triton.jit
def norm_kernel(rows, weight, result, epsilon, INPUTS: tl.constexpr, PADDED: tl.constexpr):
    """RMSNorm of one row of [rows, INPUTS] a program; PADDED is the next power of two."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, PADDED)
    within = place < INPUTS
    values = tl.load(rows + row * INPUTS + place, mask=within, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(values * values, 0) / INPUTS + epsilon)
    factors = tl.load(weight + place, mask=within, other=0.0).to(tl.float32)
    normed = (values * scale * factors).to(result.dtype.element_ty)
    tl.store(result + row * INPUTS + place, normed, mask=within)
