"""An engine without tensors: exact accounting, predictable tokens, faults and pauses on demand."""

from __future__ import annotations

import threading
from collections.abc import Sequence

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

    @property
    def free_pages(self) -> int:
        held = sum(self.info.pages_for(len(tokens)) for tokens in self.sequences.values())
        return self.info.total_pages - held

    def open(self, sequence: int, sampling: SamplingParams) -> None:
        self._check_idle()
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
