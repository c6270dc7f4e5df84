"""Paged attention on a CPU: rows are rotated, stored and attended where keys and values lie.

A page holds, for each head, keys in panels of ``PANEL`` positions ([head_dim, PANEL]) and values in
panels of ``PANEL`` dimensions ([page_size, PANEL]), so that both products of attention are products
with a panel, like those with weights. The query heads that share a key head, of neighbouring rows
of one sequence, are multiplied together.

Scores of a row are computed for all positions it sees, then their softmax, then the weighted sum of
values in the order of positions. No order depends on anything but the row's own position: not on
company, nor on how its sequence was cut into steps.
"""

from __future__ import annotations

import numpy as np
from numba import prange
from numba.types import float32, int64, uint16, void

from ds4trio.engine.native.compiled import compiled
from ds4trio.engine.native.vector import PANEL, ROWS, claim, half_bits, make_tile, softmax

__all__ = ["attend", "attend_units", "store", "store_rows"]

_caches = float32[:, :, :, :, ::1], uint16[:, :, :, :, ::1]
_heads = float32[:, :, ::1]
_numbers = int64[::1]
_inputs = float32[:, :, :]  # rows of a wide product lie apart


def _store_signatures(*ends):
    return [
        void(_inputs, _heads, _numbers, _numbers, _heads, cache, cache, *ends) for cache in _caches
    ]


def _attend_signatures(*ends):
    return [
        void(_heads, cache, cache, int64[:, ::1], _numbers, float32[:, ::1], *ends)
        for cache in _caches
    ]


_tile, _tile_of_halves = make_tile(), make_tile(of="float16")
_tile_onto, _tile_of_halves_onto = make_tile(onto=True), make_tile(of="float16", onto=True)


@compiled()
def _attend_block(queries, keys, values, block, tables, kv_head, out):
    first, rows, position, table = block[0], block[1], block[2], block[3]
    heads, head_dim = queries.shape[1], queries.shape[2]
    shared = heads // keys.shape[1]
    page_size, panels = values.shape[3], values.shape[2]
    longest = position + rows
    width = -(-longest // PANEL) * PANEL
    size = keys.itemsize  # known to the compiler, which keeps one of the two tiles
    # Addresses, in bytes: of numbers that lie one after the other in the cache.
    key_panel, value_panel = size * head_dim * PANEL, size * page_size * PANEL
    key_head, value_head = key_panel * keys.shape[2], value_panel * panels
    key_page, value_page = key_head * keys.shape[1], value_head * keys.shape[1]
    first_key = keys.ctypes.data + kv_head * key_head
    first_value = values.ctypes.data + kv_head * value_head
    scores = np.empty((ROWS, width), np.float32)
    asked = np.empty((ROWS, head_dim), np.float32)
    mixed = np.empty((ROWS, panels * PANEL), np.float32)
    score, query, mix = scores.ctypes.data, asked.ctypes.data, mixed.ctypes.data
    lines = rows * shared
    done = 0
    while done < lines:
        count = min(ROWS, lines - done)
        for i in range(count):
            row, head = first + (done + i) // shared, kv_head * shared + (done + i) % shared
            for dim in range(head_dim):
                asked[i, dim] = queries[row, head, dim]
            for dim in range(panels * PANEL):
                mixed[i, dim] = 0.0
        for start in range(0, width, PANEL):
            page = first_key + tables[table + start // page_size] * key_page
            panel = page + start % page_size // PANEL * key_panel
            there = score + 4 * start
            if size == 2:
                _tile_of_halves(count, query, 4 * head_dim, panel, head_dim, there, 4 * width)
            else:
                _tile(count, query, 4 * head_dim, panel, head_dim, there, 4 * width)
        for i in range(count):
            for unseen in range(position + (done + i) // shared + 1, width):
                scores[i, unseen] = -np.inf
            softmax(score + 4 * width * i, width)
        for start in range(0, longest, page_size):
            page = first_value + tables[table + start // page_size] * value_page
            seen = min(page_size, longest - start)
            for panel in range(panels):
                here, there = page + panel * value_panel, mix + 4 * PANEL * panel
                own, apart = score + 4 * start, 4 * PANEL * panels
                if size == 2:
                    _tile_of_halves_onto(count, own, 4 * width, here, seen, there, apart)
                else:
                    _tile_onto(count, own, 4 * width, here, seen, there, apart)
        for i in range(count):
            row, head = first + (done + i) // shared, kv_head * shared + (done + i) % shared
            for dim in range(head_dim):
                out[row, head * head_dim + dim] = mixed[i, dim]
        done += count


@compiled()
def _put(panel, line, lane, number):
    panel[line, lane] = half_bits(number) if panel.itemsize == 2 else number


@compiled()
def _keep(heads, turns, query_heads, place, keys, values):
    kv_heads, head_dim = keys.shape[1], heads.shape[1]
    page_size = values.shape[3]
    page, offset = place // page_size, place % page_size
    panel, lane = offset // PANEL, offset % PANEL
    for head in range(kv_heads):
        key = heads[query_heads + head]
        kept = keys[page, head, panel]
        for pair in range(turns.shape[0]):
            even, odd = key[2 * pair], key[2 * pair + 1]
            cosine, sine = turns[pair, 0], turns[pair, 1]
            _put(kept, 2 * pair, lane, even * cosine - odd * sine)
            _put(kept, 2 * pair + 1, lane, even * sine + odd * cosine)
        value = heads[query_heads + kv_heads + head]
        for dim in range(head_dim):
            _put(values[page, head, dim // PANEL], offset, dim % PANEL, value[dim])


@compiled()
def _rotate(heads, turns, out):
    for head in range(out.shape[0]):
        for pair in range(turns.shape[0]):
            even, odd = heads[head, 2 * pair], heads[head, 2 * pair + 1]
            cosine, sine = turns[pair, 0], turns[pair, 1]
            out[head, 2 * pair] = even * cosine - odd * sine
            out[head, 2 * pair + 1] = even * sine + odd * cosine


@compiled(*_store_signatures(int64, int64))
def store_rows(inputs, rotations, positions, places, queries, keys, values, first, last):
    """The part of ``store`` that falls to one worker: these rows."""
    for row in range(first, last):
        turns = rotations[positions[row]]
        _rotate(inputs[row], turns, queries[row])
        _keep(inputs[row], turns, queries.shape[1], places[row], keys, values)


@compiled(*_attend_signatures(int64[::1]))
def attend_units(queries, keys, values, blocks, tables, out, counter):
    """What one worker does of ``attend``: the heads of blocks that it claims (int64 [1])."""
    kv_heads = keys.shape[1]
    unit = claim(counter.ctypes.data)
    while unit < len(blocks) * kv_heads:
        _attend_block(queries, keys, values, blocks[unit // kv_heads], tables, unit % kv_heads, out)
        unit = claim(counter.ctypes.data)


@compiled(*_store_signatures(int64), parallel=True)
def store(inputs, rotations, positions, places, queries, keys, values, workers):
    """Rotate queries and keys, and store keys and values.

    Args:
        inputs: float32 [rows, heads + 2 * kv_heads, head_dim], with any stride between rows:
            queries, keys, values.
        rotations: float32 [context, head_dim / 2, 2], cosines and sines by position, for pairs of
            dimensions that lie next to each other.
        positions: int64 [rows], each row's place in its sequence.
        places: int64 [rows], ``page * page_size + offset`` of each.
        queries: float32 [rows, heads, head_dim], to be filled.
        keys: [pages, kv_heads, page_size / PANEL, head_dim, PANEL], float32, or float16 as uint16.
        values: [pages, kv_heads, value panels, page_size, PANEL], of the same type.
        workers: threads.
    """
    rows = len(inputs)
    for worker in prange(workers):
        first, last = rows * worker // workers, rows * (worker + 1) // workers
        store_rows(inputs, rotations, positions, places, queries, keys, values, first, last)


@compiled(*_attend_signatures(int64), parallel=True)
def attend(queries, keys, values, blocks, tables, out, workers):
    """Attend, rows being grouped into blocks of neighbours in one sequence.

    Args:
        queries: float32 [rows, heads, head_dim], rotated, scaled by 1 / sqrt(head_dim).
        keys, values: as for ``store``.
        blocks: int64 [blocks, 4]: first row, number of rows, position of the first row, and where
            in ``tables`` the pages of its sequence begin.
        tables: int64, page numbers.
        out: float32 [rows, heads * head_dim], to be filled.
        workers: threads.
    """
    counter = np.zeros(1, np.int64)
    for _ in prange(workers):
        attend_units(queries, keys, values, blocks, tables, out, counter)
