"""What becomes of gates and ups that a product has put side by side, as vector instructions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ds4trio.engine.activation import CLAMP_SHARPNESS, CLAMP_TO, LIMIT
from ds4trio.engine.native.vector import PANEL, call, exponential, load, store

__all__ = ["clamped_gate", "gelu_gate", "limited_gate", "silu_gate"]

_half = ir.VectorType(ir.FloatType(), PANEL // 2)


def _every(number: float) -> ir.Constant:
    return ir.Constant(_half, [number] * _half.count)


def _sigmoid(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    ones = _every(1.0)
    return builder.fdiv(ones, builder.fadd(ones, exponential(builder, builder.fneg(x))))


def _smaller(builder: ir.IRBuilder, x: ir.Value, most: float) -> ir.Value:
    # NaN stays: a comparison with it is false.
    return builder.select(builder.fcmp_ordered(">", x, _every(most)), _every(most), x)


def _larger(builder: ir.IRBuilder, x: ir.Value, least: float) -> ir.Value:
    return builder.select(builder.fcmp_ordered("<", x, _every(least)), _every(least), x)


def _gate(combine: Callable[[ir.IRBuilder, Any, Any], Any]) -> Any:
    """Of a panel's line, its first half gates and its second half ups; the result has the width of
    half a line."""

    def gate(_typing: Any, _line: Any, _out: Any) -> Any:
        def emit(context: Any, builder: ir.IRBuilder, _signature: Any, args: Sequence[Any]) -> Any:
            line, out = args
            gates = load(builder, line, _half)
            ups = load(builder, line, _half, 4 * _half.count)
            store(builder, combine(builder, gates, ups), out, 0)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), emit

    return intrinsic(gate)


def _silu(builder: ir.IRBuilder, gates: ir.Value, ups: ir.Value) -> ir.Value:
    return builder.fmul(builder.fmul(gates, _sigmoid(builder, gates)), ups)


def _gelu(builder: ir.IRBuilder, gates: ir.Value, ups: ir.Value) -> ir.Value:
    # (1 + tanh(u)) / 2 is the sigmoid of 2u; here u = sqrt(2 / pi) (x + 0.044715 x^3).
    square = builder.fmul(gates, gates)
    inner = call(
        builder, "fma", square, _every(2 * 0.7978845608 * 0.044715), _every(2 * 0.7978845608)
    )
    return builder.fmul(builder.fmul(gates, _sigmoid(builder, builder.fmul(gates, inner))), ups)


def _clamped(builder: ir.IRBuilder, gates: ir.Value, ups: ir.Value) -> ir.Value:
    gates = _smaller(builder, gates, CLAMP_TO)
    ups = _larger(builder, _smaller(builder, ups, CLAMP_TO), -CLAMP_TO)
    sigmoid = _sigmoid(builder, builder.fmul(gates, _every(CLAMP_SHARPNESS)))
    return builder.fmul(builder.fmul(gates, sigmoid), builder.fadd(ups, _every(1.0)))


def _limited(builder: ir.IRBuilder, gates: ir.Value, ups: ir.Value) -> ir.Value:
    ups = _larger(builder, _smaller(builder, ups, LIMIT), -LIMIT)
    return _silu(builder, _smaller(builder, gates, LIMIT), ups)


silu_gate, gelu_gate, clamped_gate = _gate(_silu), _gate(_gelu), _gate(_clamped)
limited_gate = _gate(_limited)
