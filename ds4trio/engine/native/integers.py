"""Products of weights in groups (``groups.py``) with eight-bit activations, in sums of integers.

Activations are rounded to 8 bits of the largest in each group of 32, as llama.cpp's Q8_0 does. Then
with ``w = scale * q + least`` and ``a = a_scale * b``

    sum w a = scale * a_scale * sum(q b) + least * a_scale * sum(b),    b from -127 to 127,

where ``sum(q b)`` is exact: in 32 bits, or in 16 where a processor has no better (a lane adds 8
pairs, and 8 * 2 * 15 * 127 is below 2^15). So every way of computing it gives the same bits.

Fine activations have 16 bits: what rounding to 8 leaves is rounded again, to 254 steps of one step.
Both bytes are multiplied, and their sums are joined: ``254 * sum(q high) + sum(q low)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ds4trio.engine.native.groups import GROUP, QUADS, Form
from ds4trio.engine.native.tiles import switch_rows
from ds4trio.engine.native.vector import call, everywhere, load, store

__all__ = ["make_group_tile", "make_quantise"]

ACTIVATION_LEVELS = 127.0

FINE_STEPS = 254.0
"""From one level to the next, so that the lower byte runs from -127 to 127 too."""

LEAST_ACTIVATION = 1e-35
"""Groups of which no activation is larger are zeros."""

_int8, _int16, _int32, _int64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_float, _half = ir.FloatType(), ir.HalfType()
_ints = ir.VectorType(_int32, 8)
_floats = ir.VectorType(_float, 8)


def _x86(builder: ir.IRBuilder, name: str, result: ir.Type, *values: ir.Value) -> ir.Value:
    signature = ir.FunctionType(result, [value.type for value in values])
    full = f"llvm.x86.{name}"
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, full), values)


class _Group:
    """Emits the sums of one group: integers of 32 bits, by row and part.

    Args:
        form, bits: of the weights.
        parts: addresses of the parts of the group.
        activations: address of the bytes of this group, ``GROUP`` for each row and pass.
    """

    def __init__(
        self,
        builder: ir.IRBuilder,
        form: Form,
        bits: int,
        parts: Sequence[ir.Value],
        activations: ir.Value,
    ) -> None:
        self._builder = builder
        self._form = form
        self._bits = bits
        self._parts = parts
        self._activations = activations
        self._bytes = ir.VectorType(_int8, 4 * form.lanes)
        self._shorts = ir.VectorType(_int16, 2 * form.lanes)
        self._ints = ir.VectorType(_int32, form.lanes)

    def sums(self, rows: int) -> list[list[ir.Value]]:
        """Of so many rows; each of the passes counts as one."""
        totals: list[list[Any]] = [[None] * len(self._parts) for _ in range(rows)]
        for quad in range(0, QUADS, 2):
            pairs = [self._weights(part, quad) for part in self._parts]
            for row, own in enumerate(totals):
                for place in range(2):
                    four = self._activation(row, quad + place)
                    for number, pair in enumerate(pairs):
                        own[number] = self._dot(own[number], pair[place], four)
        if not self._form.dots:
            ones = ir.Constant(self._shorts, [1] * self._shorts.count)
            totals = [
                [_x86(self._builder, "avx2.pmadd.wd", self._ints, total, ones) for total in own]
                for own in totals
            ]
        return totals

    def _weights(self, part: ir.Value, quad: int) -> tuple[ir.Value, ir.Value]:
        """Bytes of this quad of inputs and the next, for every output."""
        builder, width = self._builder, 4 * self._form.lanes
        start = self._form.numbers_bytes
        if self._bits == 8:
            first = load(builder, part, self._bytes, start + width * quad)
            return first, load(builder, part, self._bytes, start + width * (quad + 1))
        both = load(builder, part, self._bytes, start + width * quad // 2)
        mask = ir.Constant(self._bytes, [15] * width)
        by = ir.Constant(self._shorts, [4] * self._shorts.count)
        high = builder.bitcast(builder.lshr(builder.bitcast(both, self._shorts), by), self._bytes)
        return builder.and_(both, mask), builder.and_(high, mask)

    def _activation(self, row: int, quad: int) -> ir.Value:
        """Four bytes, for every output."""
        four = load(self._builder, self._activations, _int32, GROUP * row + 4 * quad)
        return everywhere(self._builder, four, self._form.lanes)

    def _dot(self, total: ir.Value | None, weights: ir.Value, activations: ir.Value) -> ir.Value:
        builder, kind = self._builder, self._ints
        if self._form.dots:
            name = f"avx512.vpdpbusd.{32 * self._form.lanes}"
            start = ir.Constant(kind, [0] * kind.count) if total is None else total
            return _x86(builder, name, kind, start, builder.bitcast(weights, kind), activations)
        fours = builder.bitcast(activations, self._bytes)
        sums = _x86(builder, "avx2.pmadd.ub.sw", self._shorts, weights, fours)
        return sums if total is None else builder.add(total, sums)


def make_group_tile(form: Form, bits: int, *, fine: bool = False) -> Any:
    """A product of up to ``form.rows`` rows with a panel, or ``form.fine_rows``.

    The function that is made takes ``(rows, activations, numbers, panel, groups, out,
    out_stride)``, all int64: how many rows; addresses of the first two of which ``quantise`` has
    filled, of the panel; how many groups there are; and where the results go ([rows, PANEL]
    float32, ``out_stride`` bytes apart). Activations are int8 [groups, rows, passes, GROUP], and
    numbers are float32 [groups, rows, 2].

    Args:
        fine: activations have two bytes, and so there are two passes.
    """
    floats = ir.VectorType(_float, form.lanes)
    halves = ir.VectorType(_half, form.lanes)
    passes = 2 if fine else 1

    def whole(builder: ir.IRBuilder, sums: Sequence[Sequence[ir.Value]], part: int) -> ir.Value:
        """The sums of all passes of one row, as float32."""
        high, *low = (builder.sitofp(own[part], floats) for own in sums)
        if not low:
            return high
        steps = ir.Constant(floats, [FINE_STEPS] * form.lanes)
        return call(builder, "fma", high, steps, low[0])

    def emit_for(builder: ir.IRBuilder, rows: int, args: Sequence[Any]) -> None:
        activations, numbers, panel, groups, out, out_stride = args
        zeros = ir.Constant(floats, [0.0] * form.lanes)
        totals = [
            [cgutils.alloca_once_value(builder, zeros) for _ in range(form.parts)]
            for _ in range(rows)
        ]
        size = form.part_bytes(bits)
        with cgutils.for_range(builder, groups) as loop:

            def part_of(start: ir.Value, width: int) -> ir.Value:
                return builder.add(start, builder.mul(loop.index, _int64(width)))

            group = part_of(panel, form.parts * size)
            parts = [builder.add(group, _int64(size * part)) for part in range(form.parts)]
            own = part_of(activations, GROUP * rows * passes)
            exact = _Group(builder, form, bits, parts, own).sums(rows * passes)
            scale = [builder.fpext(load(builder, part, halves), floats) for part in parts]
            least = [
                builder.fpext(load(builder, part, halves, 2 * form.lanes), floats) for part in parts
            ]
            own_numbers = part_of(numbers, 8 * rows)
            for row in range(rows):
                a_scale, a_sum = (
                    everywhere(builder, load(builder, own_numbers, _float, place), form.lanes)
                    for place in (8 * row, 8 * row + 4)
                )
                for part, total in enumerate(totals[row]):
                    sums = exact[row * passes : (row + 1) * passes]
                    product = builder.fmul(whole(builder, sums, part), scale[part])
                    now = call(builder, "fma", product, a_scale, builder.load(total))
                    builder.store(call(builder, "fma", least[part], a_sum, now), total)
        for row, line in enumerate(totals):
            address = builder.add(out, builder.mul(out_stride, _int64(row)))
            for part, total in enumerate(line):
                store(builder, builder.load(total), address, 4 * form.lanes * part)

    most = form.fine_rows if fine else form.rows

    @intrinsic
    def tile(
        _typing: Any,
        rows: Any,
        activations: Any,
        numbers: Any,
        panel: Any,
        groups: Any,
        out: Any,
        out_stride: Any,
    ) -> Any:
        return types.void(*[types.int64] * 7), switch_rows(most, emit_for)

    return tile


def make_quantise(*, fine: bool = False) -> Any:
    """Round float32 numbers to 8 bits of the largest in each group of 32, or to 16.

    The function that is made takes ``(row, groups, levels, numbers, apart)``, all int64: the
    address of the numbers, how many groups there are, where go the levels (int8 [passes, GROUP])
    and the numbers (float32 [2]: scale of a level, or of a fine step, and sum of the rounded
    numbers) of the first group, and how many rows lie together, so that those of the next group are
    so many times as far away.
    """
    steps = FINE_STEPS if fine else 1.0
    passes = 2 if fine else 1

    def emit(context: Any, builder: ir.IRBuilder, _signature: Any, args: Sequence[Any]) -> Any:
        row, groups, levels, numbers, apart = args

        def every(number: float) -> ir.Constant:
            return ir.Constant(_floats, [number] * 8)

        with cgutils.for_range(builder, groups) as loop:
            here = builder.add(row, builder.mul(loop.index, _int64(4 * GROUP)))
            step = builder.mul(loop.index, apart)
            there = builder.add(levels, builder.mul(step, _int64(GROUP * passes)))
            parts = [load(builder, here, _floats, 4 * 8 * part) for part in range(4)]
            most = _fold(builder, [call(builder, "fabs", part) for part in parts], _larger)
            scale = builder.fdiv(most, _float(ACTIVATION_LEVELS * steps))
            # Below, the factor would not be finite. NaN is let through.
            some = builder.fcmp_unordered(">", most, _float(LEAST_ACTIVATION))
            inverse = builder.select(
                some, builder.fdiv(_float(ACTIVATION_LEVELS), most), _float(0.0)
            )
            factor = everywhere(builder, inverse, 8)
            exact = [builder.fmul(part, factor) for part in parts]
            rounded = [call(builder, "nearbyint", number) for number in exact]
            _store_bytes(builder, rounded, there)
            if fine:
                rest = [builder.fsub(x, y) for x, y in zip(exact, rounded, strict=True)]
                low = [
                    call(builder, "nearbyint", builder.fmul(number, every(steps)))
                    for number in rest
                ]
                _store_bytes(builder, low, builder.add(there, _int64(GROUP)))
                rounded = [
                    call(builder, "fma", high, every(steps), lower)
                    for high, lower in zip(rounded, low, strict=True)
                ]
            total = builder.fmul(_fold(builder, rounded, _added), scale)
            place = builder.add(numbers, builder.mul(step, _int64(8)))
            store(builder, scale, place)
            store(builder, total, place, 4)
        return context.get_dummy_value()

    @intrinsic
    def quantise(
        _typing: Any, _row: Any, _groups: Any, _levels: Any, _numbers: Any, _apart: Any
    ) -> Any:
        return types.void(*[types.int64] * 5), emit

    return quantise


def _store_bytes(builder: ir.IRBuilder, numbers: Sequence[ir.Value], address: ir.Value) -> None:
    """Whole numbers from -127 to 127, 8 in a vector, as int8."""
    for part, whole in enumerate(numbers):
        narrow = builder.trunc(builder.fptosi(whole, _ints), ir.VectorType(_int8, 8))
        store(builder, narrow, address, 8 * part)


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
