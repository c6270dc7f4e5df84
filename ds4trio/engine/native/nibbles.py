"""Products of four-bit weights with eight-bit activations, in sums of integers.

Weights are in groups of 32 along the input: ``w = scale * q + least`` with q from 0 to 15, as
GGUF's Q4_0, Q4_1 and Q4_K have them, so that nothing is rounded. Activations are rounded to 8 bits
of the largest in each group of 32, as llama.cpp's Q8_1 does. Then

    sum w a = scale * a_scale * sum(q b) + least * a_scale * sum(b),    b from -127 to 127,

with ``sum(q b)`` exact in 16 bits: a lane adds 8 pairs, and 8 * 2 * 15 * 127 is below 2^15.

A panel holds its groups one after the other, and a group two halves of 8 outputs, each of them
``HALF_BYTES`` long: scales and leasts as float16 [8], then 4 vectors of 32 bytes. Vector v has
inputs ``8 v + i`` of output o in the low half of byte ``4 o + i``, and ``8 v + 4 + i`` in the high
half.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import llvmlite.binding
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ds4trio.engine.native.vector import PANEL, call, everywhere, load, store

__all__ = ["GROUP", "NIBBLE_ROWS", "pack_nibbles", "quantise", "supported", "tile_of_nibbles"]

GROUP = 32
HALF = PANEL // 2
HALF_BYTES = 2 * 2 * HALF + GROUP * HALF // 2

NIBBLE_ROWS = 4
"""Most rows of a tile: sums of integers and of floats of each, weights, and the activation."""

ACTIVATION_LEVELS = 127.0

LEAST_ACTIVATION = 1e-35
"""Groups of which no activation is larger are zeros."""

_int8, _int16, _int32, _int64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_float, _half = ir.FloatType(), ir.HalfType()
_bytes = ir.VectorType(_int8, 32)
_shorts = ir.VectorType(_int16, 16)
_ints = ir.VectorType(_int32, 8)
_floats = ir.VectorType(_float, 8)
_halves = ir.VectorType(_half, 8)


def supported() -> bool:
    """Whether this processor has the instructions: AVX2, FMA and F16C, so x86 since 2013."""
    features = llvmlite.binding.get_host_cpu_features()
    return all(features.get(name) for name in ("avx2", "fma", "f16c"))


def pack_nibbles(
    levels: npt.NDArray[np.uint8], scales: npt.NDArray[np.float32], leasts: npt.NDArray[np.float32]
) -> npt.NDArray[np.int8]:
    """Bring a weight into panels.

    Args:
        levels: [outputs, inputs], 0 to 15; inputs are a multiple of ``GROUP``.
        scales, leasts: [outputs, inputs / GROUP].

    Returns:
        [panels, bytes of a panel]; missing outputs are zeros.
    """
    outputs, inputs = levels.shape
    panels, groups = -(-outputs // PANEL), inputs // GROUP
    packed = np.zeros((panels, groups, 2, HALF_BYTES), np.int8)
    for panel in range(panels):
        part = slice(panel * PANEL, min(outputs, (panel + 1) * PANEL))
        count = part.stop - part.start
        numbers = np.zeros((2, PANEL, groups), np.float16)
        numbers[0, :count], numbers[1, :count] = scales[part], leasts[part]
        # [scale or least, half, output, group] -> [group, half, scale or least, output]
        split = numbers.reshape(2, 2, HALF, groups).transpose(3, 1, 0, 2)
        packed[panel, :, :, : 4 * HALF] = (
            np.ascontiguousarray(split).reshape(groups, 2, -1).view(np.int8)
        )
        own = np.zeros((PANEL, inputs), np.uint8)
        own[:count] = levels[part]
        # [half, output, group, vector, low or high, i] -> [group, half, vector, output, i]
        quads = own.reshape(2, HALF, groups, 4, 2, 4).transpose(4, 2, 0, 3, 1, 5)
        both = quads[0] | quads[1] << 4
        packed[panel, :, :, 4 * HALF :] = both.reshape(groups, 2, -1).view(np.int8)
    return packed.reshape(panels, -1)


def _x86(builder: ir.IRBuilder, name: str, result: ir.Type, *values: ir.Value) -> ir.Value:
    signature = ir.FunctionType(result, [value.type for value in values])
    full = f"llvm.x86.avx2.{name}"
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, full), values)


def _quad(builder: ir.IRBuilder, address: ir.Value, offset: int) -> ir.Value:
    """Four bytes, eight times over."""
    four = load(builder, address, _int32, offset)
    return builder.bitcast(everywhere(builder, four, 8), _bytes)


def _sums_of_group(
    builder: ir.IRBuilder, halves: Sequence[ir.Value], lines: Sequence[ir.Value]
) -> list[list[ir.Value]]:
    """By row and half, sums of 16 bits over a group: two neighbouring lanes make an output."""
    mask = ir.Constant(_bytes, [15] * 32)
    totals: list[list[Any]] = [[None] * len(halves) for _ in lines]
    for vector in range(4):
        weights = []
        for half in halves:
            both = load(builder, half, _bytes, 4 * HALF + 32 * vector)
            shifted = builder.lshr(builder.bitcast(both, _shorts), ir.Constant(_shorts, [4] * 16))
            high = builder.and_(builder.bitcast(shifted, _bytes), mask)
            weights.append((builder.and_(both, mask), high))
        for line, row in zip(lines, totals, strict=True):
            for part in range(2):
                quad = _quad(builder, line, 8 * vector + 4 * part)
                for half, pair in enumerate(weights):
                    sums = _x86(builder, "pmadd.ub.sw", _shorts, pair[part], quad)
                    row[half] = sums if row[half] is None else builder.add(row[half], sums)
    return totals


def _emit_tile(builder: ir.IRBuilder, rows: int, args: Sequence[Any]) -> None:
    activations, scales, sums, panel, groups, out, out_stride = args
    ones = ir.Constant(_shorts, [1] * 16)
    zeros = ir.Constant(_floats, [0.0] * 8)
    totals = [[cgutils.alloca_once_value(builder, zeros) for _ in range(2)] for _ in range(rows)]
    inputs = builder.mul(groups, _int64(GROUP))
    with cgutils.for_range(builder, groups) as loop:
        group = builder.add(panel, builder.mul(loop.index, _int64(2 * HALF_BYTES)))
        halves = group, builder.add(group, _int64(HALF_BYTES))
        lines = [
            builder.add(
                builder.add(activations, builder.mul(inputs, _int64(row))),
                builder.mul(loop.index, _int64(GROUP)),
            )
            for row in range(rows)
        ]
        whole = _sums_of_group(builder, halves, lines)
        scale = [builder.fpext(load(builder, half, _halves), _floats) for half in halves]
        least = [builder.fpext(load(builder, half, _halves, 2 * HALF), _floats) for half in halves]
        for row in range(rows):
            place = builder.mul(
                builder.add(builder.mul(groups, _int64(row)), loop.index), _int64(4)
            )
            a_scale = everywhere(builder, load(builder, builder.add(scales, place), _float), 8)
            a_sum = everywhere(builder, load(builder, builder.add(sums, place), _float), 8)
            for half, total in enumerate(totals[row]):
                exact = _x86(builder, "pmadd.wd", _ints, whole[row][half], ones)
                product = builder.fmul(builder.sitofp(exact, _floats), scale[half])
                now = call(builder, "fma", product, a_scale, builder.load(total))
                builder.store(call(builder, "fma", least[half], a_sum, now), total)
    for row, pair in enumerate(totals):
        line = builder.add(out, builder.mul(out_stride, _int64(row)))
        for half, total in enumerate(pair):
            store(builder, builder.load(total), line, 4 * HALF * half)


@intrinsic
def tile_of_nibbles(
    _typing: Any,
    _rows: Any,
    _activations: Any,
    _scales: Any,
    _sums: Any,
    _panel: Any,
    _groups: Any,
    _out: Any,
    _out_stride: Any,
) -> Any:
    """A product of up to ``NIBBLE_ROWS`` rows with one half of a panel.

    All arguments are int64, as ``vector.py`` has them: the number of rows, addresses of what
    ``quantise`` made of the first row, of the half panel, how many groups there are, and where the
    results go ([rows, 8] float32, ``out_stride`` bytes apart). Rows follow each other without gaps.
    """

    def emit(context: Any, builder: ir.IRBuilder, _signature: Any, args: Sequence[Any]) -> Any:
        rows, *rest = args
        done = builder.append_basic_block("done")
        choice = builder.switch(rows, done)
        for number in range(1, NIBBLE_ROWS + 1):
            block = builder.append_basic_block(f"rows{number}")
            choice.add_case(_int64(number), block)
            builder.position_at_end(block)
            _emit_tile(builder, number, rest)
            builder.branch(done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 8), emit


@intrinsic
def quantise(_typing: Any, _row: Any, _groups: Any, _levels: Any, _scales: Any, _sums: Any) -> Any:
    """Round float32 numbers to 8 bits of the largest in each group of 32.

    All arguments are int64: the address of the numbers, how many groups there are, and where go
    levels (int8), scales and sums (float32, one a group; a sum is of the rounded numbers).
    """

    def emit(context: Any, builder: ir.IRBuilder, _signature: Any, args: Sequence[Any]) -> Any:
        row, groups, levels, scales, sums = args
        with cgutils.for_range(builder, groups) as loop:
            here = builder.add(row, builder.mul(loop.index, _int64(4 * GROUP)))
            parts = [load(builder, here, _floats, 4 * 8 * part) for part in range(4)]
            most = _fold(builder, [call(builder, "fabs", part) for part in parts], _larger)
            scale = builder.fdiv(most, _float(ACTIVATION_LEVELS))
            # Below, the factor would not be finite. NaN is let through.
            some = builder.fcmp_unordered(">", most, _float(LEAST_ACTIVATION))
            inverse = builder.select(
                some, builder.fdiv(_float(ACTIVATION_LEVELS), most), _float(0.0)
            )
            factor = everywhere(builder, inverse, 8)
            rounded = [call(builder, "nearbyint", builder.fmul(part, factor)) for part in parts]
            place = builder.mul(loop.index, _int64(4))
            total = builder.fmul(_fold(builder, rounded, _added), scale)
            store(builder, scale, builder.add(scales, place))
            store(builder, total, builder.add(sums, place))
            for part, numbers in enumerate(rounded):
                narrow = builder.trunc(builder.fptosi(numbers, _ints), ir.VectorType(_int8, 8))
                there = builder.add(levels, builder.mul(loop.index, _int64(GROUP)))
                store(builder, narrow, there, 8 * part)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), emit


def _larger(builder: ir.IRBuilder, one: ir.Value, other: ir.Value) -> ir.Value:
    """NaN of two may be lost here; the sum of the numbers themselves keeps it."""
    return builder.select(builder.fcmp_unordered(">", one, other), one, other)


def _added(builder: ir.IRBuilder, one: ir.Value, other: ir.Value) -> ir.Value:
    return builder.fadd(one, other)


def _fold(builder: ir.IRBuilder, parts: list[ir.Value], join: Any) -> ir.Value:
    """All lanes of all vectors joined into one number."""
    vector = parts[0]
    for part in parts[1:]:
        vector = join(builder, vector, part)
    for half in (4, 2, 1):
        order = ir.Constant(_ints, [(lane + half) % 8 for lane in range(8)])
        vector = join(builder, vector, builder.shuffle_vector(vector, vector, order))
    return builder.extract_element(vector, _int32(0))
