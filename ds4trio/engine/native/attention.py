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

from ds4trio.engine.native.compiled import compile_for, compiled
from ds4trio.engine.native.panels import add, add_two, multiply, multiply_two
from ds4trio.engine.native.vector import (
    FEW_ROWS,
    PANEL,
    ROWS,
    claim,
    half_bits,
    softmax,
)

__all__ = ["attend", "attend_units", "prepare", "store", "store_rows"]

MANY_BLOCKS = 16
"""From so many on a worker takes all heads of one, which lie side by side in a page."""


@compiled()
def _page(cache, page, head):
    """Address of what a page holds of a head."""
    _, heads, panels, lines, width = cache.shape
    return cache.ctypes.data + cache.itemsize * panels * lines * width * (page * heads + head)


@compiled()
def _score(queries, count, keys, kv_head, tables, head_dim, longest, scores, after, later):
    """Products of some queries with all keys that any of them sees.

    Args:
        queries: address of float32 [count, head_dim].
        tables: page numbers of the sequence.
        longest: how many positions are seen.
        scores: float32 [count, longest rounded up to panels], to be filled.
        after, later: addresses that will be read next.
    """
    size, page_size = keys.itemsize, keys.shape[2] * PANEL
    panel_bytes = size * head_dim * PANEL
    out, apart = scores.ctypes.data, 4 * scores.shape[1]
    places = np.empty(-(-longest // PANEL), np.int64)
    for panel in range(len(places)):
        page = _page(keys, tables[panel * PANEL // page_size], kv_head)
        places[panel] = page + panel * PANEL % page_size // PANEL * panel_bytes
    panel = 0
    while panel < len(places):
        here, there = places[panel], out + 4 * PANEL * panel
        if count <= FEW_ROWS and panel + 1 < len(places):
            more = panel + 3 < len(places)
            multiply_two(
                size == 2,
                count,
                queries,
                4 * head_dim,
                head_dim,
                apart,
                here,
                there,
                places[panel + 1],
                there + 4 * PANEL,
                places[panel + 2] if more else after,
                places[panel + 3] if more else later,
            )
            panel += 2
        else:
            multiply(size == 2, count, queries, 4 * head_dim, head_dim, apart, here, there)
            panel += 1


@compiled()
def _mix(scores, count, values, kv_head, tables, longest, out, after):
    """Add to sums (address of float32 [count, value panels * PANEL]) all values, weighted.

    Args:
        after: address that will be read next.
    """
    size, panels, page_size = values.itemsize, values.shape[2], values.shape[3]
    panel_bytes = size * page_size * PANEL
    weights, apart = scores.ctypes.data, 4 * scores.shape[1]
    sums_apart = 4 * PANEL * panels
    for start in range(0, longest, page_size):
        here, ahead = _page(values, tables[start // page_size], kv_head), after
        if start + page_size < longest:
            ahead = _page(values, tables[start // page_size + 1], kv_head)
        seen = min(page_size, longest - start)
        own = weights + 4 * start
        panel = 0
        while panel < panels:
            place, sums = here + panel * panel_bytes, out + 4 * PANEL * panel
            if panel + 1 < panels and count <= FEW_ROWS:
                then = ahead + panel * panel_bytes
                add_two(
                    size == 2,
                    count,
                    own,
                    apart,
                    seen,
                    sums_apart,
                    place,
                    sums,
                    place + panel_bytes,
                    sums + 4 * PANEL,
                    then,
                    then + panel_bytes,
                )
                panel += 2
            else:
                add(size == 2, count, own, apart, seen, sums_apart, place, sums)
                panel += 1


@compiled()
def _attend_block(queries, keys, values, block, tables, kv_head, out):
    first, rows, position = block[0], block[1], block[2]
    pages = tables[block[3] :]
    heads, head_dim = queries.shape[1], queries.shape[2]
    shared = heads // keys.shape[1]
    longest = position + rows
    lines = rows * shared
    most = min(ROWS, lines)
    scores = np.empty((most, -(-longest // PANEL) * PANEL), np.float32)
    # The heads of one row lie together already, and so may their results.
    together = rows == 1 and head_dim % PANEL == 0
    copies = 0 if together else most
    asked = np.empty((copies, head_dim), np.float32)
    mixed = np.empty((copies, values.shape[2] * PANEL), np.float32)
    last_page = (longest - 1) // values.shape[3]
    first_values = _page(values, pages[0], kv_head)
    second_values = _page(values, pages[min(1, last_page)], kv_head)
    next_keys = _page(keys, pages[0], min(kv_head + 1, keys.shape[1] - 1))
    done = 0
    while done < lines:
        count = min(ROWS, lines - done)
        query, mix = asked.ctypes.data, mixed.ctypes.data
        if together:
            head = kv_head * shared + done
            query = queries.ctypes.data + 4 * head_dim * (first * heads + head)
            mix = out.ctypes.data + 4 * head_dim * (first * heads + head)
            for dim in range(head * head_dim, (head + count) * head_dim):
                out[first, dim] = 0.0
        else:
            for i in range(count):
                row, head = first + (done + i) // shared, kv_head * shared + (done + i) % shared
                for dim in range(head_dim):
                    asked[i, dim] = queries[row, head, dim]
                for dim in range(mixed.shape[1]):
                    mixed[i, dim] = 0.0
        after, later = first_values, second_values
        _score(query, count, keys, kv_head, pages, head_dim, longest, scores, after, later)
        for i in range(count):
            for unseen in range(position + (done + i) // shared + 1, scores.shape[1]):
                scores[i, unseen] = -np.inf
            softmax(scores.ctypes.data + 4 * scores.shape[1] * i, scores.shape[1])
        _mix(scores, count, values, kv_head, pages, longest, mix, next_keys)
        if not together:
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


@compiled()
def store_rows(inputs, rotations, positions, places, queries, keys, values, first, last):
    """The part of ``store`` that falls to one worker: these rows."""
    for row in range(first, last):
        turns = rotations[positions[row]]
        _rotate(inputs[row], turns, queries[row])
        _keep(inputs[row], turns, queries.shape[1], places[row], keys, values)


@compiled()
def attend_units(queries, keys, values, blocks, tables, out, counter):
    """What one worker does of ``attend``: the blocks that it claims (int64 [1]), or the heads of
    blocks where these are few."""
    kv_heads = keys.shape[1]
    together = kv_heads if len(blocks) >= MANY_BLOCKS else 1
    unit = claim(counter.ctypes.data)
    while unit * together < len(blocks) * kv_heads:
        for i in range(unit * together, (unit + 1) * together):
            _attend_block(queries, keys, values, blocks[i // kv_heads], tables, i % kv_heads, out)
        unit = claim(counter.ctypes.data)


@compiled(parallel=True)
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


@compiled(parallel=True)
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


def prepare(*, halves: bool) -> None:
    """Compile what is called from outside, for a cache in float16 or in float32."""
    cache = (uint16 if halves else float32)[:, :, :, :, ::1]
    heads, numbers = float32[:, :, ::1], int64[::1]
    inputs = float32[:, :, :]  # rows of a wide product lie apart
    stored = (inputs, heads, numbers, numbers, heads, cache, cache)
    attended = (heads, cache, cache, int64[:, ::1], numbers, float32[:, ::1])
    compile_for(store_rows, void(*stored, int64, int64))
    compile_for(store, void(*stored, int64))
    compile_for(attend_units, void(*attended, int64[::1]))
    compile_for(attend, void(*attended, int64))
