"""Which experts each row goes through, and what becomes of what they give.

A row is looked at by itself and in one order of operations, so its routes have the same bits in any
company; a framework's softmax or sigmoid of a small tensor has not, since its last numbers are
computed by other code than its first.
"""

from __future__ import annotations

import numpy as np
from numba.types import boolean, float32, int64, void

from ds4trio.engine.native.compiled import compiled

__all__ = ["CHOSEN", "ROOT_SOFTPLUS", "SIGMOID", "SOFTMAX", "add_shares", "route"]

SOFTMAX, SIGMOID, CHOSEN, ROOT_SOFTPLUS = 0, 1, 2, 3
"""What becomes of logits; see ``Experts.scoring``."""


@compiled()
def _sigmoid(x):
    return np.float32(1.0) / (np.float32(1.0) + np.exp(-x))


@compiled()
def _root_softplus(x):
    return np.float32(np.sqrt(max(x, 0.0) + np.log1p(np.exp(-abs(x)))))


@compiled()
def _softmax(numbers):
    """In place."""
    most = numbers[0]
    for i in range(len(numbers)):
        most = max(most, numbers[i])
    total = 0.0
    for i in range(len(numbers)):
        numbers[i] = np.exp(numbers[i] - most)
        total += numbers[i]
    for i in range(len(numbers)):
        numbers[i] = np.float32(numbers[i] / total)


@compiled()
def _largest(numbers, taken):
    """The first of the largest ones that are not taken. Where NaN is among them, any."""
    best = -1
    for i in range(len(numbers)):
        if not taken[i] and (best < 0 or numbers[i] > numbers[best]):
            best = i
    return best


@compiled()
def _close_groups(keys, taken, groups, groups_used, two):
    """Take all experts but those of the best groups."""
    size = len(keys) // groups
    scores = np.empty(groups, np.float32)
    for group in range(groups):
        own = slice(group * size, (group + 1) * size)
        best = _largest(keys[own], taken[own])
        scores[group] = keys[own][best]
        if two and size > 1:
            taken[own][best] = True
            scores[group] += keys[own][_largest(keys[own], taken[own])]
    taken[:] = True
    used = np.zeros(groups, np.bool_)
    for _ in range(groups_used):
        group = _largest(scores, used)
        used[group] = True
        taken[group * size : (group + 1) * size] = False


@compiled(
    void(
        float32[:, :],
        float32[::1],
        int64,
        int64,
        boolean,
        float32,
        int64,
        int64,
        boolean,
        int64[:, ::1],
        int64[::1],
        int64[::1],
        float32[::1],
        float32[::1],
    )
)
def route(
    logits,
    correction,
    used,
    scoring,
    normalise,
    scale,
    groups,
    groups_used,
    two,
    fixed,
    starts,
    rows,
    shares,
    gates,
):
    """Choose experts for rows. Of equal ones the first is chosen.

    Args:
        logits: float32 [rows, experts], and a column more where ``gates`` are wanted.
        correction: float32 [experts], added to scores where experts are chosen; empty for none.
        used: experts of a row.
        scoring: SOFTMAX, SIGMOID or CHOSEN.
        normalise, scale, groups, groups_used: as ``models.architecture.Experts`` has them.
        two: groups are chosen by the sum of their best two, not by their best.
        fixed: int64 [rows, used], experts that are given; empty where they are to be chosen.
        starts: int64 [experts + 1], result: where each expert's part of what follows begins; the
            last one is the end.
        rows: int64 [rows * used], result: the rows that go through an expert, rising.
        shares: float32 [rows * used], result: by what the expert's result is multiplied.
        gates: float32 [rows], result: the sigmoid of the last column; empty for none.
    """
    count, experts = len(logits), len(starts) - 1
    scores = np.empty(experts, np.float32)
    keys = np.empty(experts, np.float32)
    taken = np.empty(experts, np.bool_)
    chosen = np.empty((count, used), np.int64)
    weights = np.empty((count, used), np.float32)
    starts[:] = 0
    for i in range(count):
        for j in range(experts):
            scores[j] = logits[i, j]
            if scoring == SIGMOID:
                scores[j] = _sigmoid(scores[j])
            elif scoring == ROOT_SOFTPLUS:
                scores[j] = _root_softplus(scores[j])
        if scoring == SOFTMAX:
            _softmax(scores)
        for j in range(experts):
            keys[j] = scores[j] + correction[j] if len(correction) else scores[j]
        taken[:] = False
        if groups_used < groups:
            _close_groups(keys, taken, groups, groups_used, two)
        for place in range(used):
            best = fixed[i, place] if len(fixed) else _largest(keys, taken)
            taken[best] = True
            chosen[i, place] = best
            weights[i, place] = scores[best]
            starts[best + 1] += 1
        if scoring == CHOSEN:
            _softmax(weights[i])
        elif normalise:
            total = 1e-20  # where all sigmoids are zero
            for place in range(used):
                total += weights[i, place]
            for place in range(used):
                weights[i, place] = np.float32(weights[i, place] / total)
        if len(gates):
            gates[i] = _sigmoid(logits[i, experts])
    for j in range(experts):
        starts[j + 1] += starts[j]
    free = starts[:-1].copy()
    for i in range(count):
        for place in range(used):
            at = free[chosen[i, place]]
            free[chosen[i, place]] += 1
            rows[at] = i
            shares[at] = weights[i, place] * scale


@compiled(void(float32[:, :], int64[::1], float32[::1], float32[:, :]))
def add_shares(results, rows, shares, out):
    """Add an expert's results (float32 [count, width]), times their shares, to rows of ``out``
    (float32 [rows, width]); no row is there twice."""
    for i in range(len(rows)):
        for j in range(results.shape[1]):
            out[rows[i], j] += results[i, j] * shares[i]
