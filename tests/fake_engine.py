"""An engine without tensors: real books, predictable tokens, faults and pauses on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence

from ds4trio.engine.interface import RunnerLike
from ds4trio.engine.ledger import Ledger
from ds4trio.engine.step import (
    Command,
    EngineInfo,
    Opening,
    Ran,
    Row,
    SampledToken,
    SamplingParams,
    StepItem,
)
from ds4trio.engine.turns import InTurn
from ds4trio.errors import EngineDied, InternalError, StepVoid, WireError

VOCAB = 97
NOTHING = -1
"""What a place of the fake's cache holds that nobody has written to, or that a fault spoiled."""


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


def prompt_logprob(before: Sequence[int], token: int) -> float:
    """What the fake model thinks of a token of a prompt."""
    return -float(next_token([*before, token]) + 1)


class FakeRunner:
    """Keeps tokens where a runner keeps keys and values, and says what the pages tell it.

    Two sequences that write to the same page therefore spoil each other's text.

    Attributes:
        batches: the rows of every step that was tried, in order, as items.
        fail_at: number of the step (from 1) that raises.
        fault: a step for whose items this is true raises.
        gate: a step waits in its thread until this is set.
        in_step: set while a step is in its thread.
        speak: the next token of a sequence after all of its tokens.
        guesses: it finds guesses for rows that may carry any.
        prepared: the grammars that it was told of.
        faults: sequences that fail when they draw, and why.
    """

    def __init__(self, info: EngineInfo) -> None:
        self.info = info
        self.batches: list[tuple[StepItem, ...]] = []
        self.fail_at: int | None = None
        self.fault: Callable[[Sequence[StepItem]], Exception | None] = lambda items: None
        self.gate = threading.Event()
        self.gate.set()
        self.in_step = threading.Event()
        self.speak: Callable[[Opening, Sequence[int]], int] = lambda _, tokens: next_token(tokens)
        self.guesses = True
        self.prepared: list[str] = []
        self.faults: dict[int, str] = {}
        self._cache = [[NOTHING] * info.page_size for _ in range(info.total_pages)]
        self._sequences: dict[int, Opening] = {}
        self._lengths: dict[int, int] = {}
        self._broken = False

    def prepare_grammar(self, grammar: str) -> None:
        self.prepared.append(grammar)

    def step(self, command: Command) -> Ran:
        assert not self.in_step.is_set(), "two steps at once"
        if command.reset:
            self._sequences.clear()
        elif self._broken:
            raise StepVoid("a step before it failed")
        self._broken = True
        self.in_step.set()
        try:
            assert self.gate.wait(5), "the test forgot to open the gate"
            ran = self._carry_out(command)
        finally:
            self.in_step.clear()
        self._broken = False
        return ran

    def _carry_out(self, command: Command) -> Ran:
        for sequence in command.closes:
            del self._sequences[sequence]
        for opening in command.opens:
            assert opening.sequence not in self._sequences
            self._sequences[opening.sequence] = opening
            self._lengths[opening.sequence] = len(opening.tokens)
            assert self._read(opening, len(opening.tokens)) == list(opening.tokens)
        items = tuple(
            StepItem(row.sequence, row.tokens, row.sample, row.draft) for row in command.rows
        )
        failure = self.fault(items)
        if items:
            self.batches.append(items)
        assert len({item.sequence for item in items}) == len(items)
        if len(self.batches) == self.fail_at:
            failure = RuntimeError("planted fault")
        starts = [self._lengths[row.sequence] for row in command.rows]
        changes = [self._evaluate(row, spoil=failure is not None) for row in command.rows]
        if failure is not None:
            raise failure
        for opening, length, _ in changes:
            self._sequences[opening.sequence] = opening
            self._lengths[opening.sequence] = length
        return Ran(
            tuple(tuple(map(SampledToken, sampled)) for _, _, sampled in changes),
            seconds=0.001,
            guessed=tuple(row.draft * self.guesses for row in command.rows),
            faults={
                place: self.faults[row.sequence]
                for place, row in enumerate(command.rows)
                if row.sample and row.sequence in self.faults
            },
            prompts={
                place: told
                for place, (row, start) in enumerate(zip(command.rows, starts, strict=True))
                if (told := self._told(row, start))
            },
        )

    def _evaluate(self, row: Row, *, spoil: bool) -> tuple[Opening, int, list[int]]:
        """The sequence as it is after the row, its length, and the tokens that were drawn."""
        before = self._sequences[row.sequence]
        pages = (*before.pages, *row.pages)
        opening = Opening(before.sequence, before.sampling, before.tokens, pages, before.pending)
        length = self._lengths[row.sequence]
        tokens = list(row.tokens)
        if not tokens:
            assert before.pending is not None
            tokens = [before.pending]
        sampled: list[int] = []
        while tokens:
            for token in tokens:
                page = pages[length // self.info.page_size]
                self._cache[page][length % self.info.page_size] = NOTHING if spoil else token
                length += 1
            tokens = []
            if row.sample and not spoil:
                sampled.append(self.speak(opening, self._read(opening, length)))
                # Some of the guesses hold, depending on the text.
                draft = row.draft if self.guesses else 0
                if len(sampled) <= draft and sampled[0] % (draft + 1) >= len(sampled):
                    tokens = [sampled[-1]]
        pending = sampled[-1] if sampled else None
        return (
            Opening(before.sequence, before.sampling, before.tokens, pages, pending),
            length,
            sampled,
        )

    def _told(self, row: Row, start: int) -> tuple[SampledToken, ...]:
        """Log-probabilities of the prompt, which depend on every token before."""
        opening = self._sequences[row.sequence]
        wanted, prompt = opening.sampling.prompt_logprobs, opening.sampling.prompt_length
        if wanted is None:
            return ()
        targets = [*row.tokens[1:], *([] if row.follows is None else [row.follows])]
        return tuple(
            SampledToken(token, prompt_logprob(self._read(opening, place), token))
            for place, token in enumerate(targets, start + 1)
            if place < prompt
        )

    def _read(self, opening: Opening, length: int) -> list[int]:
        size = self.info.page_size
        return [self._cache[opening.pages[p // size]][p % size] for p in range(length)]


class MortalRunner(InTurn):
    """Dies as the engine's process does: the next command fails, the one after it starts it again.

    Attributes:
        starts: how often it was started again.
    """

    def __init__(self, fake: FakeRunner) -> None:
        super().__init__(fake)
        self.starts = 0
        self._fake = fake
        self._alive = threading.Event()
        self._alive.set()
        self._ended = threading.Event()
        self._started = threading.Event()

    @property
    def ready(self) -> bool:  # type: ignore[override]
        return self._alive.is_set()

    def die(self) -> None:
        """With whatever it is doing."""
        self._alive.clear()
        self._fake.gate.set()
        self._ended.set()

    def wait_for_start(self) -> None:
        """Until it was started again, since this was asked last."""
        self._started.wait()
        self._started.clear()

    def run(self, command: Command) -> Ran:
        if not self.ready and command.reset:
            self.starts += 1
            self._alive.set()
            self._started.set()
        ran = super().run(command)
        if not self.ready:
            raise EngineDied("died")
        return ran

    def watch(self) -> bool:
        self._alive.wait()
        self._ended.wait()
        self._ended.clear()
        return not self._stopped.is_set()

    def interrupt(self) -> bool:
        self.die()
        return True

    def stop(self) -> None:
        super().stop()
        self._alive.set()
        self._ended.set()


class FakeEngine(Ledger):
    """The books of a real engine over a ``FakeRunner``.

    Attributes:
        fake: the runner.
        refused_token: an item with this token is refused.
    """

    def __init__(
        self,
        *,
        pages: int = 1000,
        page_size: int = 4,
        context_length: int = 10_000,
        vocab_size: int = VOCAB,
    ) -> None:
        self.fake = FakeRunner(
            EngineInfo(vocab_size, context_length, page_size, pages, "nowhere", "none")
        )
        super().__init__(self._housing(self.fake))
        self.refused_token: int | None = None
        self.gate, self.in_step, self.batches = (
            self.fake.gate,
            self.fake.in_step,
            self.fake.batches,
        )

    def _housing(self, fake: FakeRunner) -> RunnerLike:
        return InTurn(fake)

    @property
    def sequences(self) -> Collection[int]:
        """Those that are open."""
        return self._sequences.keys()

    def check(self) -> None:
        """Raise unless every page is where it should be."""
        self._pool.check()

    def sampling_of(self, sequence: int) -> SamplingParams:
        return self._sequences[sequence].sampling

    def _examine(self, item: StepItem, seen: Collection[int]) -> WireError | None:
        if self.refused_token in item.tokens:
            return InternalError("unlucky token")
        return super()._examine(item, seen)


class MortalEngine(FakeEngine):
    """One over a ``MortalRunner``.

    Attributes:
        mortal: that.
    """

    mortal: MortalRunner

    def _housing(self, fake: FakeRunner) -> RunnerLike:
        self.mortal = MortalRunner(fake)
        return self.mortal
