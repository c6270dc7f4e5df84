"""Triton kernels over the pages of a KV cache: storing, and attention where the pages lie.

Flash attention (arXiv:2205.14135) over a page table (arXiv:2309.06180). A program holds the
queries of one key/value head and walks over positions in tiles, with the running maximum and sum
of the softmax in float32. A row's tiles begin at multiples of the tile and of the split whatever
else is in the launch, and tiles that a row does not see change none of its bits, so that a row's
result does not depend on its company.

Only positions that a sequence has stored are ever loaded: what lies beyond, a former owner's NaN
for instance, is masked in memory and not only in the sums.

Strides are in elements. A head's dimensions are padded to a power of two, PADDED. Features that are
off (WINDOW 0, SOFT_CAP 0, no SINKS) cost nothing: they are decided when a kernel is compiled.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["chunk_kernel", "merge_kernel", "row_kernel", "store_kernel"]

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def store_kernel(
    keys,
    values,
    cached_keys,
    cached_values,
    pages,
    offsets,
    key_row,
    key_head,
    value_row,
    value_head,
    to_key_page,
    to_key_offset,
    to_key_head,
    to_key_width,
    to_value_page,
    to_value_offset,
    to_value_head,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
):
    """One program stores the key and the value of one row and head."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    page = tl.load(pages + row).to(tl.int64)
    offset = tl.load(offsets + row)
    width = tl.arange(0, PADDED)
    within = width < WIDTH
    key = tl.load(keys + row * key_row + head * key_head + width, mask=within)
    value = tl.load(values + row * value_row + head * value_head + width, mask=within)
    place = page * to_key_page + offset * to_key_offset + head * to_key_head
    tl.store(cached_keys + place + width * to_key_width, key, mask=within)
    place = page * to_value_page + offset * to_value_offset + head * to_value_head
    tl.store(cached_values + place + width, value, mask=within)


@triton.jit
def _walk(
    queries,
    places,
    start,
    stop,
    table,
    table_step,
    keys,
    values,
    key_page,
    key_offset,
    key_width,
    value_page,
    value_offset,
    ROWS: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
):
    """Attend ``queries`` [ROWS, PADDED] to positions ``start .. stop - 1``.

    ``places`` [ROWS] are the queries' own positions, the last ones they see. Returns unnormalised
    sums of values [ROWS, PADDED], maxima in powers of two [ROWS] and sums of weights [ROWS]; a row
    that sees nothing has 0, minus infinity and 0.
    """
    width = tl.arange(0, PADDED)
    within = (width < WIDTH)[None, :]
    mixed = tl.zeros([ROWS, PADDED], dtype=tl.float32)
    top = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    for begin in range(start, stop, TILE):
        positions = begin + tl.arange(0, TILE)
        stored = positions < stop
        page = tl.load(table + (positions // PAGE) * table_step, mask=stored, other=0)
        page = page.to(tl.int64)[:, None]
        offset = (positions % PAGE)[:, None]
        loaded = stored[:, None] & within
        key = tl.load(
            keys + page * key_page + offset * key_offset + width[None, :] * key_width,
            mask=loaded,
            other=0.0,
        )
        scores = tl.dot(queries, tl.trans(key), input_precision="ieee")
        if SOFT_CAP > 0:
            # tanh by the logistic function, which every back end has.
            scores = SOFT_CAP * (2.0 * tl.sigmoid(scores * (2.0 / SOFT_CAP)) - 1.0)
        seen = stored[None, :] & (positions[None, :] <= places[:, None])
        if WINDOW > 0:
            seen = seen & (positions[None, :] > places[:, None] - WINDOW)
        scores = tl.where(seen, scores * LOG2_E, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        # A row that has seen nothing yet must not subtract infinity from infinity.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - base[:, None])
        fade = tl.exp2(top - base)
        value = tl.load(
            values + page * value_page + offset * value_offset + width[None, :],
            mask=loaded,
            other=0.0,
        )
        total = total * fade + tl.sum(weights, 1)
        product = tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        mixed = mixed * fade[:, None] + product
        top = higher
    return mixed, top, total


@triton.jit
def _finished(mixed, top, total, sinks, heads, HAS_SINKS: tl.constexpr):
    """Normalise [ROWS, PADDED] sums; a sink is one more score, of a value that is zero."""
    if HAS_SINKS:
        sink = tl.load(sinks + heads).to(tl.float32) * LOG2_E
        higher = tl.maximum(top, sink)
        fade = tl.exp2(top - higher)
        total = total * fade + tl.exp2(sink - higher)
        mixed = mixed * fade[:, None]
    # Rows of padding see nothing and are thrown away: no division by zero for them.
    return mixed / tl.where(total > 0.0, total, 1.0)[:, None]


@triton.jit(do_not_specialize=["table_row", "splits"])
def row_kernel(
    queries,
    keys,
    values,
    tables,
    lengths,
    sinks,
    mixed,
    tops,
    totals,
    result,
    query_row,
    query_head,
    key_page,
    key_offset,
    key_head,
    key_width,
    value_page,
    value_offset,
    value_head,
    table_row,
    table_step,
    splits,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    SPLIT: tl.constexpr,
    ALONE: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """One query per row: a program attends the GROUP heads of one key/value head to one split.

    The grid is (rows, key/value heads, splits). ALONE: there is one split for every row, and the
    result is written at once; otherwise ``merge_kernel`` follows. No length may be 0.
    """
    row = tl.program_id(0).to(tl.int64)
    shared = tl.program_id(1)
    split = tl.program_id(2)
    length = tl.load(lengths + row)
    start = split * SPLIT
    if start < length:
        stop = tl.minimum(start + SPLIT, length)
        if WINDOW > 0:
            start = tl.maximum(start, (tl.maximum(length - WINDOW, 0) // TILE) * TILE)
        member = tl.arange(0, ROWS)
        width = tl.arange(0, PADDED)
        present = member < GROUP
        heads = shared * GROUP + tl.where(present, member, 0)
        query = tl.load(
            queries + row * query_row + heads[:, None] * query_head + width[None, :],
            mask=present[:, None] & (width < WIDTH)[None, :],
            other=0.0,
        )
        sums, top, total = _walk(
            query,
            tl.zeros([ROWS], dtype=tl.int32) + (length - 1),
            start,
            stop,
            tables + row * table_row,
            table_step,
            keys + shared * key_head,
            values + shared * value_head,
            key_page,
            key_offset,
            key_width,
            value_page,
            value_offset,
            ROWS,
            PAGE,
            TILE,
            WIDTH,
            PADDED,
            WINDOW,
            SOFT_CAP,
        )
        count = tl.num_programs(1) * GROUP
        if ALONE:
            found = _finished(sums, top, total, sinks, heads, HAS_SINKS)
            tl.store(
                result + ((row * count + heads) * WIDTH)[:, None] + width[None, :],
                found.to(result.dtype.element_ty),
                mask=present[:, None] & (width < WIDTH)[None, :],
            )
        else:
            place = (row * count + heads) * splits + split
            tl.store(tops + place, top, mask=present)
            tl.store(totals + place, total, mask=present)
            tl.store(
                mixed + (place * PADDED)[:, None] + width[None, :], sums, mask=present[:, None]
            )


@triton.jit(do_not_specialize=["splits"])
def merge_kernel(
    mixed,
    tops,
    totals,
    lengths,
    sinks,
    result,
    splits,
    SPLIT: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """Put a row's splits together, in their order. The grid is (rows, heads)."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    width = tl.arange(0, PADDED)
    place = (row * tl.num_programs(1) + head) * splits
    sums = tl.zeros([1, PADDED], dtype=tl.float32)
    top = tl.full([1], float("-inf"), dtype=tl.float32)
    total = tl.zeros([1], dtype=tl.float32)
    for split in range(0, tl.cdiv(tl.load(lengths + row), SPLIT)):
        one = tl.zeros([1], dtype=tl.int64) + place + split
        another = tl.load(tops + one)
        higher = tl.maximum(top, another)
        base = tl.where(higher == float("-inf"), 0.0, higher)
        fade = tl.exp2(top - base)
        weight = tl.exp2(another - base)
        total = total * fade + tl.load(totals + one) * weight
        more = tl.load(mixed + (one * PADDED)[:, None] + width[None, :])
        sums = sums * fade[:, None] + more * weight[:, None]
        top = higher
    heads = tl.zeros([1], dtype=tl.int64) + head
    found = _finished(sums, top, total, sinks, heads, HAS_SINKS)
    target = (row * tl.num_programs(1) + head) * WIDTH + width[None, :]
    tl.store(result + target, found.to(result.dtype.element_ty), mask=(width < WIDTH)[None, :])


@triton.jit(do_not_specialize=["table_row"])
def chunk_kernel(
    queries,
    keys,
    values,
    tables,
    blocks,
    sinks,
    result,
    query_row,
    query_head,
    key_page,
    key_offset,
    key_head,
    key_width,
    value_page,
    value_offset,
    value_head,
    table_row,
    table_step,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """Consecutive queries of a sequence, causally: a program attends one block of them, with all
    GROUP heads of one key/value head, ROWS // GROUP queries at most.

    ``blocks``, int32 [blocks, 4]: the first row, its position, how many rows, the sequence's table.
    The grid is (blocks, key/value heads).
    """
    block = blocks + tl.program_id(0) * 4
    shared = tl.program_id(1)
    first_row = tl.load(block).to(tl.int64)
    first_place = tl.load(block + 1)
    queries_here = tl.load(block + 2)
    sequence = tl.load(block + 3).to(tl.int64)
    member = tl.arange(0, ROWS)
    width = tl.arange(0, PADDED)
    number = member // GROUP
    present = number < queries_here
    number = tl.where(present, number, 0)
    heads = shared * GROUP + member % GROUP
    row = first_row + number
    filled = present[:, None] & (width < WIDTH)[None, :]
    query = tl.load(
        queries + row[:, None] * query_row + heads[:, None] * query_head + width[None, :],
        mask=filled,
        other=0.0,
    )
    start = 0
    if WINDOW > 0:
        start = (tl.maximum(first_place - WINDOW + 1, 0) // TILE) * TILE
    sums, top, total = _walk(
        query,
        first_place + number,
        start,
        first_place + queries_here,
        tables + sequence * table_row,
        table_step,
        keys + shared * key_head,
        values + shared * value_head,
        key_page,
        key_offset,
        key_width,
        value_page,
        value_offset,
        ROWS,
        PAGE,
        TILE,
        WIDTH,
        PADDED,
        WINDOW,
        SOFT_CAP,
    )
    found = _finished(sums, top, total, sinks, heads, HAS_SINKS)
    count = tl.num_programs(1) * GROUP
    tl.store(
        result + ((row * count + heads) * WIDTH)[:, None] + width[None, :],
        found.to(result.dtype.element_ty),
        mask=filled,
    )
