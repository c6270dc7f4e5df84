"""The innermost loops, stated as vector instructions with llvmlite and called from Numba functions.

Numba turns scalar loops into vector code where it can prove that nothing changes. It never reorders
a sum of floating point numbers, and it keeps no block of sums in registers; products need both. The
functions here say outright what is to be done, for any processor that LLVM knows.

Every sum runs in an order that depends on its own length alone: along the input for a product, by
lanes for a row. So no result depends on how many rows are evaluated together.

Arguments are int64: addresses and strides in bytes, or counts. The caller answers for them.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = [
    "FEW_ROWS",
    "HALVES",
    "PANEL",
    "ROWS",
    "call",
    "cap",
    "claim",
    "exponential",
    "half_at",
    "half_bits",
    "likeliest",
    "softmax",
    "sum_of_squares",
]

_features = llvmlite.binding.get_host_cpu_features()

LANES = 16 if _features.get("avx512f") else 8
"""float32 numbers in a vector: a register of AVX-512, or of AVX2; elsewhere LLVM splits it."""

PANEL = 16
"""Outputs that are computed together. Weights, keys and values lie in panels of so many columns."""

VECTORS = PANEL // LANES

ROWS = 6 if VECTORS == 2 else 12
"""Most rows of a tile: its sums, a row of weights and an activation fill the registers."""

FEW_ROWS = ROWS // 2
"""The same of a tile across two panels."""

HALVES = bool(_features.get("f16c")) or platform.machine().lower() in ("arm64", "aarch64")
"""The processor has instructions that make float32 of float16 and the reverse."""

_float = ir.FloatType()
_int32 = ir.IntType(32)
_int64 = ir.IntType(64)
_floats = ir.VectorType(_float, LANES)
_ints = ir.VectorType(_int32, LANES)
_bytes = ir.VectorType(ir.IntType(8), LANES)
_half = ir.HalfType()
_halves = ir.VectorType(_half, LANES)
_zeros = ir.Constant(_floats, [0.0] * LANES)


def at(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type, offset: int) -> ir.Value:
    return builder.inttoptr(builder.add(address, _int64(offset)), kind.as_pointer())


def load(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type, offset: int = 0) -> ir.Value:
    value = builder.load(at(builder, address, kind, offset))
    value.align = 1
    return value


def store(builder: ir.IRBuilder, value: ir.Value, address: ir.Value, offset: int = 0) -> None:
    builder.store(value, at(builder, address, value.type, offset)).align = 1


def everywhere(builder: ir.IRBuilder, number: ir.Value, lanes: int = LANES) -> ir.Value:
    """A vector of one number."""
    empty = ir.Constant(ir.VectorType(number.type, lanes), ir.Undefined)
    first = builder.insert_element(empty, number, _int32(0))
    zeros = ir.Constant(ir.VectorType(_int32, lanes), [0] * lanes)
    return builder.shuffle_vector(first, empty, zeros)


def call(builder: ir.IRBuilder, name: str, *values: ir.Value) -> ir.Value:
    """LLVM's own function of this name, for vectors of any length."""
    kind = values[0].type
    signature = ir.FunctionType(kind, [kind] * len(values))
    full = f"llvm.{name}.v{kind.count}f32"
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, full), values)


def exponential(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """e to the x, to about 1e-7, with the polynomial of the Cephes library (expf).

    0 below -87.3, where a result would not be a normal number any more; NaN of NaN.
    """
    kind = x.type
    ints = ir.VectorType(_int32, kind.count)

    def every(number: float) -> ir.Constant:
        return ir.Constant(kind, [number] * kind.count)

    kept = builder.select(builder.fcmp_ordered(">", x, every(88.37)), every(88.37), x)
    tiny = builder.fcmp_ordered("<", x, every(-87.33654))
    kept = builder.select(tiny, every(-87.33654), kept)
    power = call(builder, "floor", call(builder, "fma", kept, every(1.44269504), every(0.5)))
    rest = call(builder, "fma", power, every(-0.693359375), kept)
    rest = call(builder, "fma", power, every(2.12194440e-4), rest)
    series = every(1.9875691500e-4)
    for term in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5):
        series = call(builder, "fma", series, rest, every(term))
    square = builder.fmul(rest, rest)
    mantissa = call(builder, "fma", series, square, builder.fadd(rest, every(1.0)))
    exponent = builder.add(builder.fptosi(power, ints), ir.Constant(ints, [127] * kind.count))
    scale = builder.bitcast(builder.shl(exponent, ir.Constant(ints, [23] * kind.count)), kind)
    result = builder.select(tiny, every(0.0), builder.fmul(mantissa, scale))
    return builder.select(builder.fcmp_unordered("uno", x, x), x, result)


def _for_lines(
    builder: ir.IRBuilder, address: Any, count: Any, each: Callable[[Any], None]
) -> None:
    """Call with the address of every vector of ``count`` (a multiple of ``PANEL``) numbers."""
    with cgutils.for_range(builder, builder.sdiv(count, _int64(LANES))) as loop:
        each(builder.add(address, builder.mul(loop.index, _int64(4 * LANES))))


def _folded(builder: ir.IRBuilder, vector: ir.Value, join: Callable[[Any, Any], Any]) -> ir.Value:
    """All lanes joined into one number, in halves."""
    half = LANES // 2
    while half:
        order = [(lane + half) % LANES for lane in range(LANES)]
        other = builder.shuffle_vector(vector, vector, ir.Constant(_ints, order))
        vector = join(vector, other)
        half //= 2
    return builder.extract_element(vector, _int32(0))


@intrinsic
def sum_of_squares(_typing: Any, _address: Any, _count: Any) -> Any:
    """Of float32 numbers; lane by lane, so many that they fill panels."""

    def emit(_context: Any, builder: ir.IRBuilder, _signature: Any, args: Sequence[Any]) -> Any:
        address, count = args
        total = cgutils.alloca_once_value(builder, _zeros)

        def add(here: Any) -> None:
            values = load(builder, here, _floats)
            builder.store(call(builder, "fma", values, values, builder.load(total)), total)

        _for_lines(builder, address, count, add)
        return _folded(builder, builder.load(total), builder.fadd)

    return types.float32(types.int64, types.int64), emit


@intrinsic
def softmax(_typing: Any, _address: Any, _count: Any, _sink: Any) -> Any:
    """Softmax of float32 numbers, in place, so many that they fill panels, and of one more whose
    result is not kept (minus infinity changes nothing).

    NaN is never the largest; the sum, and so every result, is NaN then.
    """

    def emit(context: Any, builder: ir.IRBuilder, _signature: Any, args: Sequence[Any]) -> Any:
        address, count, sink = args
        lowest = ir.Constant(_floats, [float("-inf")] * LANES)
        most = cgutils.alloca_once_value(builder, lowest)
        total = cgutils.alloca_once_value(builder, _zeros)

        def larger(one: Any, other: Any) -> Any:
            return builder.select(builder.fcmp_ordered(">", one, other), one, other)

        def compare(here: Any) -> None:
            builder.store(larger(load(builder, here, _floats), builder.load(most)), most)

        _for_lines(builder, address, count, compare)
        largest = larger(sink, _folded(builder, builder.load(most), larger))
        top = everywhere(builder, largest)

        def raise_e(here: Any) -> None:
            value = exponential(builder, builder.fsub(load(builder, here, _floats), top))
            store(builder, value, here, 0)
            builder.store(builder.fadd(builder.load(total), value), total)

        _for_lines(builder, address, count, raise_e)
        sum_of_all = _folded(builder, builder.load(total), builder.fadd)
        drained = exponential(builder, everywhere(builder, builder.fsub(sink, largest)))
        drained = builder.extract_element(drained, _int32(0))
        part = everywhere(builder, builder.fdiv(_float(1.0), builder.fadd(sum_of_all, drained)))

        def scale(here: Any) -> None:
            store(builder, builder.fmul(load(builder, here, _floats), part), here, 0)

        _for_lines(builder, address, count, scale)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32), emit


def _tangent(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """The hyperbolic tangent, to about 1e-7 of itself: near 0 by the polynomial of the Cephes
    library (tanhf), elsewhere by e to the 2x. NaN of NaN."""

    def every(number: float) -> ir.Constant:
        return ir.Constant(x.type, [number] * x.type.count)

    size = call(builder, "fabs", x)
    power = exponential(builder, builder.fadd(size, size))
    rest = builder.fdiv(every(2.0), builder.fadd(power, every(1.0)))
    far = call(builder, "copysign", builder.fsub(every(1.0), rest), x)
    square = builder.fmul(x, x)
    series = every(-5.70498872745e-3)
    for term in (2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1):
        series = call(builder, "fma", series, square, every(term))
    near = call(builder, "fma", builder.fmul(series, square), x, x)
    return builder.select(builder.fcmp_ordered("<", size, every(0.625)), near, far)


@intrinsic
def cap(_typing: Any, _address: Any, _count: Any, _most: Any) -> Any:
    """Make ``most * tanh(number / most)`` of float32 numbers, in place, so many that they fill
    panels."""

    def emit(context: Any, builder: ir.IRBuilder, _signature: Any, args: Sequence[Any]) -> Any:
        address, count, most = args
        most = everywhere(builder, most)

        def bend(here: Any) -> None:
            value = _tangent(builder, builder.fdiv(load(builder, here, _floats), most))
            store(builder, builder.fmul(value, most), here, 0)

        _for_lines(builder, address, count, bend)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32), emit


@intrinsic
def likeliest(_typing: Any, _address: Any, _count: Any) -> Any:
    """The place of the largest of float32 numbers, so many that they fill panels; the first of
    equal ones, or -1 where any number is not finite."""

    def emit(_context: Any, builder: ir.IRBuilder, _signature: Any, args: Sequence[Any]) -> Any:
        address, count = args
        lowest = ir.Constant(_floats, [float("-inf")] * LANES)
        first = ir.Constant(_ints, list(range(LANES)))
        most = cgutils.alloca_once_value(builder, lowest)
        where = cgutils.alloca_once_value(builder, first)
        here = cgutils.alloca_once_value(builder, first)
        zero = cgutils.alloca_once_value(builder, _zeros)  # until something is not finite

        def compare(line: Any) -> None:
            values, places = load(builder, line, _floats), builder.load(here)
            best = builder.load(most)
            larger = builder.fcmp_ordered(">", values, best)
            builder.store(builder.select(larger, values, best), most)
            builder.store(builder.select(larger, places, builder.load(where)), where)
            builder.store(builder.add(places, ir.Constant(_ints, [LANES] * LANES)), here)
            builder.store(call(builder, "fma", values, _zeros, builder.load(zero)), zero)

        _for_lines(builder, address, count, compare)
        best, place = builder.load(most), builder.load(where)
        half = LANES // 2
        while half:
            order = ir.Constant(_ints, [(lane + half) % LANES for lane in range(LANES)])
            other = builder.shuffle_vector(best, best, order)
            its_place = builder.shuffle_vector(place, place, order)
            equal = builder.fcmp_ordered("==", other, best)
            before = builder.and_(equal, builder.icmp_signed("<", its_place, place))
            better = builder.or_(builder.fcmp_ordered(">", other, best), before)
            best = builder.select(better, other, best)
            place = builder.select(better, its_place, place)
            half //= 2
        found = builder.sext(builder.extract_element(place, _int32(0)), _int64)
        rest = _folded(builder, builder.load(zero), builder.fadd)
        finite = builder.fcmp_ordered("==", rest, _float(0.0))
        return builder.select(finite, found, _int64(-1))

    return types.int64(types.int64, types.int64), emit


@intrinsic
def claim(_typing: Any, _counter: Any) -> Any:
    """Count up the int64 at an address, whoever else does so, and say what it was.

    Workers share work by it: one that the system holds up takes less of it.
    """

    def emit(_context: Any, builder: ir.IRBuilder, _signature: Any, args: Sequence[Any]) -> Any:
        place = builder.inttoptr(args[0], _int64.as_pointer())
        return builder.atomic_rmw("add", place, _int64(1), "monotonic")

    return types.int64(types.int64), emit


@intrinsic
def half_at(_typing: Any, _address: Any) -> Any:
    """The float16 at an address, as float32."""

    def emit(_context: Any, builder: ir.IRBuilder, _signature: Any, args: Sequence[Any]) -> Any:
        return builder.fpext(load(builder, args[0], _half), _float)

    return types.float32(types.int64), emit


@intrinsic
def half_bits(_typing: Any, _number: Any) -> Any:
    """A float32 rounded to float16, whose bits are returned as uint16."""

    def emit(_context: Any, builder: ir.IRBuilder, _signature: Any, args: Sequence[Any]) -> Any:
        return builder.bitcast(builder.fptrunc(args[0], _half), ir.IntType(16))

    return types.uint16(types.float32), emit
