"""An engine without tensors: exact accounting, predictable tokens, faults and pauses on demand."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ds4trio.engine.step import (
    EngineInfo,
    Evaluated,
    Refused,
    SampledToken,
    SamplingParams,
    StepItem,
    StepResult,
)
from ds4trio.errors import EngineMisuse, InternalError, TokenOutOfVocabulary

VOCAB = 97


def next_token(tokens: Sequence[int]) -> int:
    """What the fake model says after ``tokens``: depends on every one of them, in order."""
    state = 7
    for token in tokens:
        state = (state * 31 + token + 1) % 1_000_003
    return state % VOCAB


def expected(prompt: Sequence[int], count: int) -> list[int]:
    """The first ``count`` tokens after ``prompt``."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


@dataclass(frozen=True)
class _Page:
    """What a page is known by: its salt and all tokens to its end, or its only owner."""

    owner: str | int
    tokens: tuple[int, ...]


class FakeEngine:
    """Implements ``EngineLike`` and checks how it is used.

    Attributes:
        batches: the items of every step that was tried, in order.
        refused_token: an item with this token is refused.
        fail_at: number of the step (from 1) that raises.
        gate: a step waits in its thread until this is set.
        in_step: set while a step is in its thread.
    """

    def __init__(
        self, *, pages: int = 1000, page_size: int = 4, context_length: int = 10_000
    ) -> None:
        self.info = EngineInfo(VOCAB, context_length, page_size, pages, "nowhere", "none")
        self.batches: list[tuple[StepItem, ...]] = []
        self.refused_token: int | None = None
        self.fail_at: int | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.in_step = threading.Event()
        self.sequences: dict[int, list[int]] = {}
        self._drawn: dict[int, int] = {}
        self._salts: dict[int, str] = {}
        self._known: dict[_Page, None] = {}

    @property
    def free_pages(self) -> int:
        return self.free_pages_without(())

    def free_pages_without(self, sequences: Collection[int]) -> int:
        return self.info.total_pages - len(self._held(sequences))

    def _held(self, without: Collection[int] = ()) -> set[_Page]:
        """Pages of the open sequences; those with the same beginning share full pages."""
        return {
            page
            for sequence in self.sequences
            if sequence not in without
            for page in self._pages(sequence)
        }

    def _pages(self, sequence: int) -> list[_Page]:
        tokens, size = self.sequences[sequence], self.info.page_size
        full = len(tokens) // size
        pages = [
            _Page(self._salts[sequence], tuple(tokens[: (number + 1) * size]))
            for number in range(full)
        ]
        return pages + [_Page(sequence, ())] * (len(tokens) % size > 0)

    def reuse(self, sequence: int, tokens: Sequence[int]) -> int:
        self._check_idle()
        size, found = self.info.page_size, 0
        while found + size < len(tokens):
            if _Page(self._salts[sequence], tuple(tokens[: found + size])) not in self._known:
                break
            found += size
        self.sequences[sequence].extend(tokens[:found])
        return found

    def _remember(self) -> None:
        """Keep what was evaluated, as far as there is room beside what is held."""
        held = self._held()
        for page in held:
            if page.tokens:
                self._known.pop(page, None)
                self._known[page] = None
        loose = [page for page in self._known if page not in held]
        for page in loose[: max(0, len(loose) + len(held) - self.info.total_pages)]:
            del self._known[page]

    def open(self, sequence: int, sampling: SamplingParams, *, cache_salt: str = "") -> None:
        self._check_idle()
        self._salts[sequence] = cache_salt
        if any(token >= self.info.vocab_size for token in sampling.logit_bias):
            raise TokenOutOfVocabulary("a bias for a token that there is not")
        if sequence in self.sequences:
            raise EngineMisuse(f"sequence {sequence} is open")
        self.sequences[sequence] = []

    def close(self, sequence: int) -> None:
        self._check_idle()
        if sequence not in self.sequences:
            raise EngineMisuse(f"sequence {sequence} is not open")
        del self.sequences[sequence]
        self._drawn.pop(sequence, None)

    def eval_batch(self, items: Sequence[StepItem]) -> StepResult:
        self._check_idle()
        self.in_step.set()
        try:
            assert self.gate.wait(5), "the test forgot to open the gate"
            self.batches.append(tuple(items))
            if len(self.batches) == self.fail_at:
                raise RuntimeError("planted fault")
            assert len({item.sequence for item in items}) == len(items)
            outcomes = tuple(self._evaluate(item) for item in items)
            self._remember()
            assert self.free_pages >= 0, "the plan used more pages than there are"
            return StepResult(outcomes, self.free_pages, 0.001)
        finally:
            self.in_step.clear()

    def _evaluate(self, item: StepItem) -> Evaluated | Refused:
        tokens = self.sequences[item.sequence]
        new = item.tokens or (self._drawn[item.sequence],)
        if self.refused_token in item.tokens:
            return Refused(item.sequence, InternalError("unlucky token"))
        tokens.extend(new)
        if not item.sample:
            return Evaluated(item.sequence, None)
        drawn = next_token(tokens)
        self._drawn[item.sequence] = drawn
        return Evaluated(item.sequence, SampledToken(drawn))

    def _check_idle(self) -> None:
        if self.in_step.is_set():
            raise AssertionError("the engine was used while a step was in flight")
