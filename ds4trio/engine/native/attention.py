"""Paged attention on a CPU: rows are rotated, stored and attended where keys and values lie.

A page holds, for each head, keys in panels of ``PANEL`` positions ([head_dim, PANEL]) and values in
panels of ``PANEL`` dimensions ([page_size, PANEL]), so that both products of attention are products
with a panel, like those with weights. The query heads that share a key head, of neighbouring rows
of one sequence, are multiplied together.

Scores of a row are computed for all positions it sees, then their softmax, then the weighted sum of
values in the order of positions. No order depends on anything but the row's own position: not on
company, nor on how its sequence was cut into steps. With a window, a block of rows begins with the
first position that any of them sees. Those that a row does not see have the weight 0 there, which
changes no sum, and softmax adds up by places in a panel, wherever the first panel is.
"""

from __future__ import annotations

import numpy as np
from numba import prange
from numba.types import float32, float64, int64, uint16, void

from ds4trio.engine.native.compiled import compile_for, compiled
from ds4trio.engine.native.panels import add, add_two, multiply, multiply_two
from ds4trio.engine.native.vector import (
    FEW_ROWS,
    PANEL,
    ROWS,
    cap,
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
def _score(queries, count, keys, kv_head, tables, head_dim, base, scores, after, later):
    """Products of some queries with all keys that any of them sees.

    Args:
        queries: address of float32 [count, head_dim].
        tables: page numbers of the sequence.
        base: the first position, at the beginning of a panel.
        scores: float32 [count, positions, filling panels], to be filled.
        after, later: addresses that will be read next.
    """
    size, page_size = keys.itemsize, keys.shape[2] * PANEL
    panel_bytes = size * head_dim * PANEL
    out, apart = scores.ctypes.data, 4 * scores.shape[1]
    places = np.empty(scores.shape[1] // PANEL, np.int64)
    for panel in range(len(places)):
        start = base + panel * PANEL
        page = _page(keys, tables[start // page_size], kv_head)
        places[panel] = page + start % page_size // PANEL * panel_bytes
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
def _mix(scores, count, values, kv_head, tables, base, first, longest, out, after):
    """Add to sums (address of float32 [count, value panels * PANEL]) values, weighted.

    Args:
        scores: the weights, of positions from ``base`` on.
        first, longest: the first position whose value is read, and the one where reading ends.
        after: address that will be read next.
    """
    size, panels, page_size = values.itemsize, values.shape[2], values.shape[3]
    panel_bytes = size * page_size * PANEL
    weights, apart = scores.ctypes.data, 4 * scores.shape[1]
    sums_apart = 4 * PANEL * panels
    while first < longest:
        number, offset = first // page_size, first % page_size
        here, ahead = _page(values, tables[number], kv_head) + size * PANEL * offset, after
        seen = min(page_size - offset, longest - first)
        if first + seen < longest:
            ahead = _page(values, tables[number + 1], kv_head)
        own = weights + 4 * (first - base)
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
        first += seen


@compiled()
def _weigh(scores, position, each, base, window, soft_cap, sinks):
    """Make weights of scores ([lines, positions from ``base`` on]): ``each`` lines of every row,
    the first of which is at a position. What a row does not see may hold anything."""
    for i in range(len(scores)):
        own = position + i // each - base
        line = scores.ctypes.data + 4 * scores.shape[1] * i
        if soft_cap > 0:
            cap(line, scores.shape[1], soft_cap)
        for unseen in range(own + 1, scores.shape[1]):
            scores[i, unseen] = -np.inf
        if window > 0:
            for unseen in range(own - window + 1):
                scores[i, unseen] = -np.inf
        softmax(line, scores.shape[1], sinks[i % each])


@compiled()
def _attend_block(
    queries, keys, values, block, tables, kv_head, head, each, window, soft_cap, sinks, out
):
    """``each`` query heads from ``head`` on, which share a key head."""
    first, rows, position = block[0], block[1], block[2]
    pages = tables[block[3] :]
    heads, head_dim = queries.shape[1], queries.shape[2]
    value_dim, page_size = out.shape[1] // heads, values.shape[3]
    longest = position + rows
    lines = rows * each
    start = max(0, position - window + 1) if window > 0 else 0
    base = start // PANEL * PANEL
    scores = np.empty((lines, -(-(longest - base) // PANEL) * PANEL), np.float32)
    # The heads of one row lie together already, and so may their results.
    together = rows == 1 and value_dim % PANEL == 0
    copies, width = 0 if together else lines, values.shape[2] * PANEL
    # One piece of memory for both: Numba frees an array after the last line that names it, though
    # its address may be in use, and ``mixed`` is named in the end.
    memory = np.empty(copies * (head_dim + width), np.float32)
    asked = memory[: copies * head_dim].reshape(copies, head_dim)
    mixed = memory[copies * head_dim :].reshape(copies, width)
    first_page, last_page = start // page_size, (longest - 1) // page_size
    first_values = _page(values, pages[first_page], kv_head)
    second_values = _page(values, pages[min(first_page + 1, last_page)], kv_head)
    next_keys = _page(keys, pages[first_page], min(kv_head + 1, keys.shape[1] - 1))
    query, mix = asked.ctypes.data, mixed.ctypes.data
    if together:
        query = queries.ctypes.data + 4 * head_dim * (first * heads + head)
        mix = out.ctypes.data + 4 * value_dim * (first * heads + head)
        for dim in range(head * value_dim, (head + each) * value_dim):
            out[first, dim] = 0.0
    else:
        for i in range(lines):
            row, number = first + i // each, head + i % each
            for dim in range(head_dim):
                asked[i, dim] = queries[row, number, dim]
            for dim in range(width):
                mixed[i, dim] = 0.0
    after, later = first_values, second_values
    _score(query, lines, keys, kv_head, pages, head_dim, base, scores, after, later)
    _weigh(scores, position, each, base, window, soft_cap, sinks[head:])
    _mix(scores, lines, values, kv_head, pages, base, start, longest, mix, next_keys)
    if not together:
        for i in range(lines):
            row, column = first + i // each, (head + i % each) * value_dim
            for dim in range(value_dim):
                out[row, column + dim] = mixed[i, dim]


@compiled()
def _put(panel, line, lane, number):
    panel[line, lane] = half_bits(number) if panel.itemsize == 2 else number


@compiled()
def _keep(key, value, turns, place, head, keys, values):
    page_size = values.shape[3]
    page, offset = place // page_size, place % page_size
    panel, lane = offset // PANEL, offset % PANEL
    kept, turned = keys[page, head, panel], 2 * turns.shape[0]
    for pair in range(turns.shape[0]):
        even, odd = key[2 * pair], key[2 * pair + 1]
        cosine, sine = turns[pair, 0], turns[pair, 1]
        _put(kept, 2 * pair, lane, even * cosine - odd * sine)
        _put(kept, 2 * pair + 1, lane, even * sine + odd * cosine)
    for dim in range(turned, len(key)):
        _put(kept, dim, lane, key[dim])
    for dim in range(len(value)):
        _put(values[page, head, dim // PANEL], offset, dim % PANEL, value[dim])


@compiled()
def _rotate(query, turns, out):
    for pair in range(turns.shape[0]):
        even, odd = query[2 * pair], query[2 * pair + 1]
        cosine, sine = turns[pair, 0], turns[pair, 1]
        out[2 * pair] = even * cosine - odd * sine
        out[2 * pair + 1] = even * sine + odd * cosine
    for dim in range(2 * turns.shape[0], len(query)):
        out[dim] = query[dim]


@compiled()
def store_rows(inputs, rotations, positions, places, queries, keys, values, first, last):
    """The part of ``store`` that falls to one worker: these rows."""
    heads, head_dim, kv_heads = queries.shape[1], queries.shape[2], keys.shape[1]
    values_at = (heads + kv_heads) * head_dim
    value_dim = (inputs.shape[1] - values_at) // kv_heads
    for row in range(first, last):
        turns = rotations[positions[row]]
        for head in range(heads):
            start = head * head_dim
            _rotate(inputs[row, start : start + head_dim], turns, queries[row, head])
        for head in range(kv_heads):
            start, end = (heads + head) * head_dim, values_at + head * value_dim
            key, value = inputs[row, start : start + head_dim], inputs[row, end : end + value_dim]
            _keep(key, value, turns, places[row], head, keys, values)


@compiled()
def attend_units(queries, keys, values, blocks, tables, window, soft_cap, sinks, out, counter):
    """What one worker does of ``attend``: the blocks that it claims (int64 [1]), or parts of blocks
    where these are few: the heads of keys, and of the query heads over one so many as a product
    takes at once."""
    kv_heads = keys.shape[1]
    shared = queries.shape[1] // kv_heads
    tiles = -(-shared // ROWS)
    units = kv_heads * tiles
    together = units if len(blocks) >= MANY_BLOCKS else 1
    unit = claim(counter.ctypes.data)
    while unit * together < len(blocks) * units:
        for i in range(unit * together, (unit + 1) * together):
            kv_head, tile = i % units // tiles, i % tiles
            head, end = shared * tile // tiles, shared * (tile + 1) // tiles
            _attend_block(
                queries,
                keys,
                values,
                blocks[i // units],
                tables,
                kv_head,
                kv_head * shared + head,
                end - head,
                window,
                float32(soft_cap),
                sinks,
                out,
            )
        unit = claim(counter.ctypes.data)


@compiled(parallel=True)
def store(inputs, rotations, positions, places, queries, keys, values, workers):
    """Rotate queries and keys, and store keys and values.

    Args:
        inputs: float32 [rows, heads * head_dim + kv_heads * (head_dim + value_dim)], with any
            stride between rows: queries, keys, values.
        rotations: float32 [context, pairs, 2], cosines and sines by position, for pairs of
            dimensions that lie next to each other; dimensions after these pairs stay.
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
def attend(queries, keys, values, blocks, tables, window, soft_cap, sinks, out, workers):
    """Attend, rows being grouped into blocks of neighbours in one sequence.

    Args:
        queries: float32 [rows, heads, head_dim], rotated and scaled.
        keys, values: as for ``store``.
        blocks: int64 [blocks, 4]: first row, number of rows, position of the first row, and where
            in ``tables`` the pages of its sequence begin. With rows goes the number of query heads
            over a key head: together at most ``ROWS``, or one row.
        tables: int64, page numbers.
        window: how many positions a row sees; 0 for all.
        soft_cap: of scores; 0 for none.
        sinks: float32 [heads], for each a score more whose value is zero; minus infinity for none.
        out: float32 [rows, heads * value_dim], to be filled.
        workers: threads.
    """
    counter = np.zeros(1, np.int64)
    for _ in prange(workers):
        attend_units(queries, keys, values, blocks, tables, window, soft_cap, sinks, out, counter)


def prepare(*, halves: bool) -> None:
    """Compile what is called from outside, for a cache in float16 or in float32."""
    cache = (uint16 if halves else float32)[:, :, :, :, ::1]
    heads, numbers = float32[:, :, ::1], int64[::1]
    inputs = float32[:, :]  # rows of a wide product lie apart
    kind = (int64, float64, float32[::1])
    stored = (inputs, heads, numbers, numbers, heads, cache, cache)
    attended = (heads, cache, cache, int64[:, ::1], numbers, *kind, float32[:, ::1])
    compile_for(store_rows, void(*stored, int64, int64))
    compile_for(store, void(*stored, int64))
    compile_for(attend_units, void(*attended, int64[::1]))
    compile_for(attend, void(*attended, int64))
