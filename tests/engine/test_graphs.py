"""Recorded decode steps, by the recorder that runs them: sizes, padding and tables.

What a real recording adds is tested where there is a GPU (``tests/gpu``).
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from ds4trio.engine import attention as attention_module
from ds4trio.engine import runner as runner_module
from ds4trio.engine.attention import ROW_BY_ROW, PagedAttention, Span
from ds4trio.engine.graphs import RecordedSteps, Step, run_eagerly
from ds4trio.engine.paged import SPLIT
from ds4trio.engine.step import SamplingParams, StepItem
from tests.engine.builders import (
    Bench,
    Pair,
    generate,
    make_engine,
    make_pair,
    prompts,
    sampled,
)

pytest.importorskip("triton")


class Recording:
    """Counts what is recorded and repeated."""

    def __init__(self) -> None:
        self.recorded = 0
        self.repeated = 0

    def __call__(self, step: Step, /) -> Step:
        self.recorded += 1

        def repeat() -> None:
            self.repeated += 1
            step()

        return repeat


def with_kernels(pair: Pair, bench: Bench) -> PagedAttention:
    """Attention by kernels over the pages of a bench whose own attention is plain."""
    assert isinstance(bench.attention, PagedAttention)
    return PagedAttention(
        pair.config, bench.attention.cache, pair.config.context_length, paged=True
    )


class Decoding:
    """Sequences whose beginnings are evaluated, and recorded steps over their pages."""

    def __init__(self, pair: Pair, texts: Sequence[Sequence[int]], *, pages: int = 64) -> None:
        self.bench = Bench(pair, pages=pages, plain=True)
        self.bench.spoil()
        self.texts = [list(text) for text in texts]
        self.attention = with_kernels(pair, self.bench)
        free = list(range(pages))[::-1]
        # One page more than needed, so that sequences can go on.
        self.tables = [[free.pop() for _ in range(len(text) // 16 + 2)] for text in texts]
        for text, table in zip(self.texts, self.tables, strict=True):
            self.bench.logits([(Span(table, 0, len(text)), text)])
        self.recording = Recording()
        with torch.inference_mode():
            self.steps = RecordedSteps(
                self.bench.decoder,
                self.attention,
                vocabulary=pair.config.vocab_size,
                record=self.recording,
                sizes=(1, 2, 4, 8),
            )

    def step(self, rows: Sequence[tuple[int, Sequence[int]]]) -> torch.Tensor:
        """Go on with sequences, each by some tokens."""
        spans: list[Span] = []
        tokens: list[int] = []
        for i, more in rows:
            spans.append(Span(self.tables[i], len(self.texts[i]), len(more)))
            tokens.extend(more)
            self.texts[i].extend(more)
        assert self.steps.suits(spans)
        with torch.inference_mode():
            return self.steps(tokens, spans).clone()


def near(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return float((found - expected).abs().max()) < 2e-3


def test_every_size_of_step_gives_the_logits_of_the_reference() -> None:
    """Rows come and go, change places and cross into new pages; foreign pages hold NaN."""
    pair = make_pair()
    texts = [(prompts(1, 320, seed=i)[0] * 40)[:length] for i, length in enumerate((1, 15, 16, 40))]
    decoding = Decoding(pair, texts)
    plans: list[list[tuple[int, list[int]]]] = [
        [(0, [5])],
        [(3, [7]), (1, [9])],
        [(1, [4]), (3, [8]), (0, [3])],
        [(0, [3]), (1, [11]), (2, [2]), (3, [1])],
        [(2, [6, 7, 8]), (1, [9, 10])],
    ]
    for rows in plans:
        found = decoding.step(rows)
        expected = [pair.expected(decoding.texts[i])[-len(more) :] for i, more in rows]
        assert near(found, torch.cat(expected))
    # Sizes 1, 2, 4 and 8; the steps of three and four rows share one.
    assert (len(decoding.steps), decoding.recording.recorded) == (4, 4)
    assert decoding.recording.repeated == len(plans)


def test_padding_writes_to_the_page_that_nobody_owns() -> None:
    decoding = Decoding(make_pair(), [[1, 2, 3], [4] * 15, [5] * 20])
    cache = decoding.attention.cache
    keys, values = cache.keys.clone(), cache.values.clone()
    decoding.step([(0, [6]), (1, [7]), (2, [8])])
    rows = [(0, 3), (1, 15), (2, 20)]
    pages = torch.tensor([decoding.tables[i][place // 16] for i, place in rows])
    offsets = torch.tensor([place % 16 for _, place in rows])
    for now, was, axis in ((cache.keys, keys, 4), (cache.values, values, 2)):
        changed = ~torch.isclose(now, was, rtol=0, atol=0, equal_nan=True)
        where = changed.movedim(axis, 2).flatten(3).any(3).any(0)
        expected = torch.zeros_like(where)
        expected[pages, offsets] = True
        expected[cache.padding_page, 0] = True
        assert torch.equal(where, expected)


def test_a_long_sequence_has_a_recording_of_its_own() -> None:
    pair = make_pair()
    long = (prompts(1, 320, seed=8)[0] * 300)[: SPLIT + 3]
    decoding = Decoding(pair, [long, long[:5]])
    assert near(decoding.step([(1, [3])]), pair.expected(decoding.texts[1])[-1:])
    assert near(decoding.step([(0, [3])]), pair.expected(decoding.texts[0])[-1:])
    found = decoding.step([(0, [9]), (1, [4])])
    for logits, text in zip(found, decoding.texts, strict=True):
        assert near(logits, pair.expected(text)[-1])
    assert len(decoding.steps) == 3


def test_a_table_that_changed_at_its_end_is_read_anew() -> None:
    """As after a step that failed: its pages went back, and others take their place."""
    pair = make_pair()
    decoding = Decoding(pair, [(prompts(1, 320, seed=8)[0] * 40)[:31]])
    decoding.step([(0, [3])])
    decoding.step([(0, [4])])
    assert len(decoding.texts[0]) == 33
    del decoding.texts[0][-1]
    decoding.tables[0][2] = 60
    for token in (5, 6):
        assert near(decoding.step([(0, [token])]), pair.expected(decoding.texts[0])[-1:])


def test_what_suits() -> None:
    steps = Decoding(make_pair(), [[1]]).steps
    row, short, chunk = Span([0], 3, 1), Span([0], 0, ROW_BY_ROW), Span([0], 0, ROW_BY_ROW + 1)
    assert steps.suits([row] * 8)
    assert steps.suits([short])
    assert not steps.suits([row] * 9)
    assert not steps.suits([row, short])
    assert not steps.suits([chunk])


def test_a_recording_that_fails_leaves_nothing_behind() -> None:
    pair = make_pair()
    decoding = Decoding(pair, [[1, 2, 3]])
    failing = RecordedSteps(
        decoding.bench.decoder,
        decoding.attention,
        vocabulary=pair.config.vocab_size,
        record=_out_of_memory,
    )
    with pytest.raises(torch.OutOfMemoryError), torch.inference_mode():
        failing([4], [Span(decoding.tables[0], 3, 1)])
    assert len(failing) == 0


def _out_of_memory(step: Step) -> Step:
    raise torch.OutOfMemoryError


def test_an_engine_over_kernels_says_what_the_plain_one_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prefills, decode rows and both at once; greedy and drawn."""
    pair = make_pair()
    texts = prompts(3, 320, seed=6, longest=14)
    wishes = [SamplingParams(temperature=t, seed=i) for i, t in enumerate((0.0, 0.9, 0.0))]
    plain = make_engine(pair)
    expected = [generate(plain, t, 3, w) for t, w in zip(texts, wishes, strict=True)]
    monkeypatch.setattr(attention_module, "is_native", lambda dtype, device: False)
    monkeypatch.setattr(attention_module, "has_kernels", lambda device: True)
    recording = Recording()
    monkeypatch.setattr(runner_module, "CudaRecorder", lambda device: recording)
    engine = make_engine(pair)
    for i, wish in enumerate(wishes):
        engine.open(i, wish)
    found: list[list[int]] = [[] for _ in texts]
    for step in range(5):
        # They start one after the other, so that prefills meet decode rows.
        items = []
        for i, text in enumerate(texts):
            if found[i]:
                items.append(StepItem(i))
            elif step >= i:
                items.append(StepItem(i, tuple(text)))
        for item, token in zip(items, sampled(engine, *items), strict=True):
            found[item.sequence].append(token.token)
    assert [tokens[:3] for tokens in found] == expected
    assert recording.repeated >= 2


def test_the_eager_recorder_repeats_by_running() -> None:
    ran: list[int] = []
    repeat = run_eagerly(lambda: ran.append(1))
    repeat()
    repeat()
    assert len(ran) == 2
