"""Products of some rows with a panel, all of whose sums stay in registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ds4trio.engine.native.vector import (
    FEW_ROWS,
    LANES,
    ROWS,
    VECTORS,
    call,
    everywhere,
    load,
    store,
)

__all__ = ["make_tile", "switch_rows"]

_float = ir.FloatType()
_int32 = ir.IntType(32)
_int64 = ir.IntType(64)
_floats = ir.VectorType(_float, LANES)
_halves = ir.VectorType(ir.HalfType(), LANES)
_ints = ir.VectorType(_int32, LANES)
_bytes = ir.VectorType(ir.IntType(8), LANES)
_zeros = ir.Constant(_floats, [0.0] * LANES)


def switch_rows(most: int, emit_for: Callable[[ir.IRBuilder, int, Sequence[Any]], None]) -> Any:
    """Code for an intrinsic whose first argument is a number of rows, from 1 to ``most``: code of
    its own for each number, as ``emit_for`` writes it, with the other arguments."""

    def emit(context: Any, builder: ir.IRBuilder, _signature: Any, args: Sequence[Any]) -> Any:
        rows, *rest = args
        done = builder.append_basic_block("done")
        choice = builder.switch(rows, done)
        for number in range(1, most + 1):
            block = builder.append_basic_block(f"rows{number}")
            choice.add_case(_int64(number), block)
            builder.position_at_end(block)
            emit_for(builder, number, rest)
            builder.branch(done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    return emit


def make_tile(*, of: str = "float32", onto: bool = False, ahead: bool = False) -> Any:
    """A product of up to ``ROWS`` rows with one panel, all of its sums in registers.

    The function that is made takes ``(rows, activations, row_stride, count, out_stride, panel,
    out)``, and computes ``out[r, :PANEL] = sum of activations[r, k] * panel[k, :PANEL]`` over
    ``k < count``, each sum a chain of fused multiply-adds in the order of k. Activations and out
    are float32.

    Args:
        of: type of the panel's numbers: float32, or int8 or float16, which are widened to float32
            (exactly) on their way.
        onto: sums go on from what ``out`` holds, in place of 0.
        ahead: for panels that lie anywhere in memory. The function takes two of them, and up to
            ``FEW_ROWS`` rows, since a chain of sums waits for itself: more arguments are the second
            panel and its out, and then the panels that will be wanted next, which are asked for on
            the way.
    """
    stored, width = {
        "float32": (_floats, 4 * LANES),
        "float16": (_halves, 2 * LANES),
        "int8": (_bytes, LANES),
    }[of]

    def emit_for(builder: ir.IRBuilder, rows: int, args: Sequence[Any]) -> None:
        activations, row_stride, count, out_stride, *places = args
        sources, results, next_ones = places[0:4:2], places[1:4:2], places[4:]
        vectors = [(panel, vector) for panel in range(len(sources)) for vector in range(VECTORS)]
        ends = [
            (builder.add(results[panel], builder.mul(out_stride, _int64(row))), 4 * LANES * vector)
            for row in range(rows)
            for panel, vector in vectors
        ]
        sums = [cgutils.alloca_once(builder, _floats) for _ in ends]
        for total, (address, offset) in zip(sums, ends, strict=True):
            builder.store(load(builder, address, _floats, offset) if onto else _zeros, total)
        with cgutils.for_range(builder, count) as loop:
            step = builder.mul(loop.index, _int64(VECTORS * width))
            lines = [builder.add(source, step) for source in sources]
            for panel in next_ones:
                _ask_for(builder, builder.add(panel, step))
            weights = [
                load(builder, lines[panel], stored, vector * width) for panel, vector in vectors
            ]
            if of == "float16":
                weights = [builder.fpext(w, _floats) for w in weights]
            if of == "int8":
                weights = [builder.sitofp(builder.sext(w, _ints), _floats) for w in weights]
            column = builder.add(activations, builder.mul(loop.index, _int64(4)))
            for row in range(rows):
                address = builder.add(column, builder.mul(row_stride, _int64(row)))
                activation = everywhere(builder, load(builder, address, _float))
                for weight, total in zip(weights, sums[row * len(vectors) :], strict=False):
                    sum_now = call(builder, "fma", activation, weight, builder.load(total))
                    builder.store(sum_now, total)
        for total, (address, offset) in zip(sums, ends, strict=True):
            store(builder, builder.load(total), address, offset)

    if ahead:

        @intrinsic
        def tile_of_two(
            _typing: Any,
            rows: Any,
            activations: Any,
            row_stride: Any,
            count: Any,
            out_stride: Any,
            panel: Any,
            out: Any,
            second_panel: Any,
            second_out: Any,
            next_panel: Any,
            next_second: Any,
        ) -> Any:
            return types.void(*[types.int64] * 11), switch_rows(FEW_ROWS, emit_for)

        return tile_of_two

    @intrinsic
    def tile(
        _typing: Any,
        rows: Any,
        activations: Any,
        row_stride: Any,
        count: Any,
        out_stride: Any,
        panel: Any,
        out: Any,
    ) -> Any:
        return types.void(*[types.int64] * 7), switch_rows(ROWS, emit_for)

    return tile


def _ask_for(builder: ir.IRBuilder, address: ir.Value) -> None:
    """Have memory send what is there, to be read soon. It may be any address."""
    byte = ir.IntType(8).as_pointer()
    signature = ir.FunctionType(ir.VoidType(), [byte, _int32, _int32, _int32])
    ask = cgutils.get_or_insert_function(builder.module, signature, "llvm.prefetch.p0")
    # To be read, kept in all caches, data.
    builder.call(ask, [builder.inttoptr(address, byte), _int32(0), _int32(3), _int32(1)])
