"""Products of some rows with panels that are kept in float32 or in float16.

Arguments are those of ``make_tile``, after one that says which. It is a constant where these are
called, so that the compiler leaves one of the two.
"""

from __future__ import annotations

from ds4trio.engine.native.compiled import compiled
from ds4trio.engine.native.tiles import make_tile

__all__ = ["add", "add_two", "multiply", "multiply_two"]

_tile, _tile_of_halves = make_tile(), make_tile(of="float16")
_two, _two_of_halves = make_tile(ahead=True), make_tile(of="float16", ahead=True)
_onto, _halves_onto = make_tile(onto=True), make_tile(of="float16", onto=True)
_two_onto = make_tile(onto=True, ahead=True)
_two_of_halves_onto = make_tile(of="float16", onto=True, ahead=True)


@compiled()
def multiply(halves, rows, activations, row_stride, count, out_stride, panel, out):
    if halves:
        _tile_of_halves(rows, activations, row_stride, count, out_stride, panel, out)
    else:
        _tile(rows, activations, row_stride, count, out_stride, panel, out)


@compiled()
def multiply_two(halves, rows, activations, row_stride, count, out_stride, *places):
    if halves:
        _two_of_halves(rows, activations, row_stride, count, out_stride, *places)
    else:
        _two(rows, activations, row_stride, count, out_stride, *places)


@compiled()
def add(halves, rows, activations, row_stride, count, out_stride, panel, out):
    if halves:
        _halves_onto(rows, activations, row_stride, count, out_stride, panel, out)
    else:
        _onto(rows, activations, row_stride, count, out_stride, panel, out)


@compiled()
def add_two(halves, rows, activations, row_stride, count, out_stride, *places):
    if halves:
        _two_of_halves_onto(rows, activations, row_stride, count, out_stride, *places)
    else:
        _two_onto(rows, activations, row_stride, count, out_stride, *places)
