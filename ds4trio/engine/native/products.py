"""Products of rows with packed weights, float32 throughout. The norm before a product and what is
done with it afterwards are part of it, so that rows are read once and written once.

Weights come in four kinds: float32; int8 with a scale for each output, which are widened exactly,
so that weights are rounded once, when they are packed, and activations never; and groups of four or
eight bits, with activations of eight or sixteen (``integers.py``).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, prange
from numba.types import float32, int64, void
from numba.types import int8 as _int8

from ds4trio.engine.native.compiled import compiled
from ds4trio.engine.native.gates import clamped_gate, gelu_gate, limited_gate, silu_gate
from ds4trio.engine.native.groups import FORM, GROUP, QUADS, Form
from ds4trio.engine.native.integers import make_group_tile, make_quantise
from ds4trio.engine.native.tiles import make_tile
from ds4trio.engine.native.vector import (
    PANEL,
    ROWS,
    claim,
    half_at,
    sum_of_squares,
)

__all__ = [
    "ADD",
    "EIGHT_BITS",
    "FINE",
    "FLOATS",
    "FOUR_BITS",
    "GATES",
    "STORE",
    "WIDENED",
    "combine",
    "multiply",
    "multiply_panels",
    "pack",
    "read_rows",
]

FLOATS, WIDENED, FOUR_BITS, EIGHT_BITS = 0, 1, 2, 3
"""Kinds of weights."""

FINE = 8
"""Added to the kind of groups: activations of sixteen bits."""

STORE, ADD = 0, 1
"""What becomes of a product: it is the result, or it is added to what is there."""

GATES = {"silu": 2, "gelu_tanh": 3, "clamped": 4, "limited": 5}
"""Or panels of eight gates and eight ups are combined, by activation."""

_silu, _gelu, _clamped = GATES["silu"], GATES["gelu_tanh"], GATES["clamped"]

HALF = PANEL // 2

CLAIMS = 8
"""Of a worker in one product. More would cost time where a panel is done in a tenth of a
microsecond; with fewer, others would wait for one that the system holds up."""

WIDEN_FROM = 2 * ROWS + 1
"""From so many rows on, a panel of int8 is widened once for all of them."""

_arguments = (
    float32[:, ::1],
    float32[::1],
    float32,
    _int8[:, ::1],
    int64,
    float32[::1],
    float32[::1],
    float32[:, :],
    int64,
)

_tile = make_tile()
_tile_of_bytes = make_tile(of="int8")


@compiled()
def _normalised(rows, norm, epsilon):
    """RMSNorm (arXiv:1910.07467)."""
    count, inputs = rows.shape
    normed = np.empty((count, inputs), np.float32)
    whole = inputs // PANEL * PANEL
    for i in range(count):
        row = rows[i]
        total = sum_of_squares(row.ctypes.data, whole)
        for j in range(whole, inputs):
            total += row[j] * row[j]
        factor = np.float32(1.0) / np.float32(math.sqrt(total / np.float32(inputs) + epsilon))
        for j in range(inputs):
            normed[i, j] = row[j] * factor * norm[j]
    return normed


@compiled()
def _claim(counter, panels):
    """The next panels that a worker does: the first, and the one after the last."""
    first = claim(counter.ctypes.data) * counter[1]
    return min(first, panels), min(first + counter[1], panels)


@compiled()
def _gate(line, ending):
    place = line.ctypes.data
    if ending == _silu:
        silu_gate(place, place)
    elif ending == _gelu:
        gelu_gate(place, place)
    elif ending == _clamped:
        clamped_gate(place, place)
    else:
        limited_gate(place, place)


@compiled()
def _finish(block, row, end, panel, scales, bias, out, ending):
    column = panel * PANEL
    for i in range(end - row):
        line = block[i]
        if len(scales):
            for j in range(PANEL):
                line[j] *= scales[column + j]
        if len(bias):
            for j in range(PANEL):
                line[j] += bias[column + j]
        if ending >= _silu:
            gated = panel * HALF
            _gate(line, ending)
            for j in range(min(HALF, out.shape[1] - gated)):
                out[row + i, gated + j] = line[j]
        elif ending == ADD:
            for j in range(min(PANEL, out.shape[1] - column)):
                out[row + i, column + j] += line[j]
        else:
            for j in range(min(PANEL, out.shape[1] - column)):
                out[row + i, column + j] = line[j]


def make_multiply_groups(form: Form, *, fine: bool = False) -> Any:
    """What a worker does of a product with weights in groups of this form."""
    most = form.fine_rows if fine else form.rows
    row_bytes = GROUP * (2 if fine else 1)
    quantise = make_quantise(fine=fine)
    tile_of_four = make_group_tile(form, 4, fine=fine)
    tile_of_eight = make_group_tile(form, 8 if form.dots else 4, fine=fine)

    @njit(nogil=True)  # kept with the kernel that calls it
    def multiply_groups(source, weight, bits, bias, out, ending, counter):
        count, inputs = source.shape
        groups = inputs // GROUP
        blocks = -(-count // most)
        levels = np.empty(count * groups * row_bytes, np.int8)
        numbers = np.empty(2 * count * groups, np.float32)
        row = 0
        for number in range(blocks):
            end = count * (number + 1) // blocks
            for i in range(row, end):
                quantise(
                    source.ctypes.data + i * inputs * 4,
                    groups,
                    levels.ctypes.data + (row * groups + i - row) * row_bytes,
                    numbers.ctypes.data + (row * groups + i - row) * 8,
                    end - row,
                )
            row = end
        block = np.empty((most, PANEL), np.float32)
        none = np.empty(0, np.float32)
        panel, last = _claim(counter, len(weight))
        while panel < last:
            address = weight.ctypes.data + panel * weight.shape[1]
            row = 0
            for number in range(blocks):
                end = count * (number + 1) // blocks
                own = levels.ctypes.data + row * groups * row_bytes
                with_own = numbers.ctypes.data + row * groups * 8
                result = block.ctypes.data
                if bits == 4:
                    tile_of_four(end - row, own, with_own, address, groups, result, PANEL * 4)
                else:
                    tile_of_eight(end - row, own, with_own, address, groups, result, PANEL * 4)
                _finish(block, row, end, panel, none, bias, out, ending)
                row = end
            panel += 1
            if panel == last:
                panel, last = _claim(counter, len(weight))

    return multiply_groups


if FORM:
    _multiply_groups = make_multiply_groups(FORM)
    _multiply_fine_groups = make_multiply_groups(FORM, fine=True)
else:

    @compiled()
    def _multiply_groups(source, weight, bits, bias, out, ending, counter):
        pass

    _multiply_fine_groups = _multiply_groups


@compiled(void(*_arguments, int64[::1]))
def multiply_panels(rows, norm, epsilon, weight, kind, scales, bias, out, ending, counter):
    """What one worker does of ``multiply``: the panels that it claims.

    Args:
        counter: int64 [2], claims so far, and how many panels one takes.
    """
    count, inputs = rows.shape
    source = rows if len(norm) == 0 else _normalised(rows, norm, epsilon)
    if kind not in (FLOATS, WIDENED):
        bits = 4 if kind & ~FINE == FOUR_BITS else 8
        if kind & FINE:
            _multiply_fine_groups(source, weight, bits, bias, out, ending, counter)
        else:
            _multiply_groups(source, weight, bits, bias, out, ending, counter)
        return
    block = np.empty((ROWS, PANEL), np.float32)
    widen = kind == WIDENED and count >= WIDEN_FROM
    wide = np.empty(inputs * PANEL if widen else 0, np.float32)
    blocks = -(-count // ROWS)
    stride = inputs * 4
    panel, last = _claim(counter, len(weight))
    while panel < last:
        address = weight.ctypes.data + panel * weight.shape[1]
        if widen:
            for i in range(inputs * PANEL):
                wide[i] = weight[panel, i]
            address = wide.ctypes.data
        row = 0
        for number in range(blocks):
            end = count * (number + 1) // blocks
            here = source.ctypes.data + row * stride
            if kind == WIDENED and not widen:
                _tile_of_bytes(
                    end - row, here, stride, inputs, PANEL * 4, address, block.ctypes.data
                )
            else:
                _tile(end - row, here, stride, inputs, PANEL * 4, address, block.ctypes.data)
            _finish(block, row, end, panel, scales, bias, out, ending)
            row = end
        panel += 1
        if panel == last:
            panel, last = _claim(counter, len(weight))


def pack(weight: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Bring [outputs, inputs] into panels, [panels, inputs, PANEL]; missing outputs are zeros."""
    outputs, inputs = weight.shape
    panels = -(-outputs // PANEL)
    padded = np.zeros((panels * PANEL, inputs), weight.dtype)
    padded[:outputs] = weight
    return np.ascontiguousarray(padded.reshape(panels, PANEL, inputs).transpose(0, 2, 1))


@compiled(void(*_arguments, int64), parallel=True)
def multiply(rows, norm, epsilon, weight, kind, scales, bias, out, ending, workers):
    """Multiply, by so many workers that share the panels.

    Args:
        rows: float32 [rows, inputs].
        norm: float32 [inputs], weights of an RMSNorm of the rows; empty for none.
        epsilon: of that norm, float32.
        weight: [panels, bytes of a panel], int8, from ``pack`` or ``pack_groups``.
        kind: FLOATS, WIDENED, FOUR_BITS or EIGHT_BITS; the last two also with FINE.
        scales: float32 [panels * PANEL], of the outputs, for WIDENED; else empty.
        bias: float32 [panels * PANEL]; empty for none.
        out: float32 [rows, outputs], with any stride between rows.
        ending: STORE, ADD or one of GATES.
        workers: threads.
    """
    counter = np.zeros(2, np.int64)
    counter[1] = max(1, len(weight) // (workers * CLAIMS))
    for _ in prange(workers):
        multiply_panels(rows, norm, epsilon, weight, kind, scales, bias, out, ending, counter)


@compiled(void(float32[:, ::1], float32[:, ::1], int64))
def combine(both, out, ending):
    """Gates and ups that were multiplied with STORE, combined.

    Args:
        both: [rows, panels * PANEL]; it is changed.
        out: [rows, outputs].
        ending: one of GATES.
    """
    for i in range(len(both)):
        for panel in range(both.shape[1] // PANEL):
            line = both[i, panel * PANEL : (panel + 1) * PANEL]
            _gate(line, ending)
            gated = panel * HALF
            for j in range(min(HALF, out.shape[1] - gated)):
                out[i, gated + j] = line[j]


_lanes, _part, _start = (
    (FORM.lanes, FORM.part_bytes(8), FORM.numbers_bytes) if FORM else (PANEL, 0, 0)
)


@compiled()
def _read_group(panel, lane, group, out):
    """One group of a row of EIGHT_BITS."""
    part = panel[(group * (PANEL // _lanes) + lane // _lanes) * _part :]
    lane %= _lanes
    scale = half_at(part.ctypes.data + 2 * lane)
    for quad in range(QUADS):
        for i in range(4):
            level = np.uint8(part[_start + 4 * (_lanes * quad + lane) + i])
            out[4 * quad + i] = np.float32(level - np.int64(128)) * scale


@compiled(void(int64[::1], _int8[:, ::1], int64, float32[::1], float32[:, ::1]))
def read_rows(numbers, weight, kind, scales, out):
    """Read rows (int64 [count]) of any kind but FOUR_BITS into out, float32 [count, inputs]."""
    floats = weight.view(np.float32)
    for i in range(len(numbers)):
        panel, lane = numbers[i] // PANEL, numbers[i] % PANEL
        if kind == EIGHT_BITS:
            for group in range(out.shape[1] // GROUP):
                _read_group(weight[panel], lane, group, out[i, group * GROUP :])
        else:
            for k in range(out.shape[1]):
                if kind == WIDENED:
                    out[i, k] = weight[panel, k * PANEL + lane] * scales[numbers[i]]
                else:
                    out[i, k] = floats[panel, k * PANEL + lane]
