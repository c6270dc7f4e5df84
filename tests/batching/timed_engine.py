"""An engine whose steps take virtual time, as long as a model's would, and what its clients see."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import trio

from ds4trio.batching.coalescer import Coalescer
from ds4trio.engine.step import (
    EngineInfo,
    Evaluated,
    SampledToken,
    SamplingParams,
    StepItem,
    StepResult,
)


@dataclass
class TimedEngine:
    """Implements ``EngineLike`` with costs and without memory: there are always pages.

    Needs a clock that jumps (``autojump_clock``), and no deadlines but its own: while its thread
    is on the way to the event loop, every task waits.

    Attributes:
        step, row, token: seconds of a step, of each decode row, and of each prompt token.
        steep: a prompt token at position ``p`` costs ``1 + p / steep`` times as much.
        noise: one step in ten takes up to this many times as long.
        steps: items and seconds of the steps so far.
    """

    step: float = 0.020
    row: float = 0.002
    token: float = 0.0015
    steep: float = 4000.0
    noise: float = 1.0
    info: EngineInfo = field(
        default_factory=lambda: EngineInfo(97, 10_000, 16, 100_000, "nowhere", "none")
    )
    steps: list[tuple[tuple[StepItem, ...], float]] = field(default_factory=list)
    lengths: dict[int, int] = field(default_factory=dict)
    random: random.Random = field(default_factory=lambda: random.Random(1))

    @property
    def free_pages(self) -> int:
        return self.info.total_pages

    def free_pages_without(self, sequences: Collection[int]) -> int:
        return self.free_pages

    def open(self, sequence: int, sampling: SamplingParams, *, cache_salt: str = "") -> None:
        self.lengths[sequence] = 0

    def reuse(self, sequence: int, tokens: Sequence[int]) -> int:
        return 0

    def close(self, sequence: int) -> None:
        del self.lengths[sequence]

    def eval_batch(self, items: Sequence[StepItem]) -> StepResult:
        seconds = self.step
        for item in items:
            position, count = self.lengths[item.sequence], len(item.tokens)
            each = self.token * (1 + (position + count / 2) / self.steep)
            seconds += count * each if count > 1 else self.row
            self.lengths[item.sequence] += count or 1
        seconds *= self.random.uniform(0.97, 1.03)
        if self.random.random() < 0.1:
            seconds *= self.random.uniform(1.0, self.noise)
        trio.from_thread.run(trio.sleep, seconds)
        self.steps.append((tuple(items), seconds))
        outcomes = tuple(
            Evaluated(item.sequence, SampledToken(5) if item.sample else None) for item in items
        )
        return StepResult(outcomes, self.free_pages, seconds)


@dataclass
class Client:
    """One request as its client sees it; times are of Trio's clock.

    Attributes:
        asked: when.
        arrivals: when each token came.
        has_many: set when ``many`` have come.
    """

    asked: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    has_many: trio.Event = field(default_factory=trio.Event)
    many: int = 100

    @property
    def first(self) -> float:
        """Seconds until the first token."""
        return self.arrivals[0] - self.asked

    def gaps_between(self, begin: float, end: float) -> list[float]:
        """Seconds between tokens, of those that came within this time."""
        return [
            after - before
            for before, after in itertools.pairwise(self.arrivals)
            if begin <= after <= end
        ]

    async def ask(self, coalescer: Coalescer, prompt: int, count: int, user: str = "") -> None:
        """Send a prompt of so many tokens and read an answer of ``count``."""
        self.asked = trio.current_time()
        async with coalescer.session(SamplingParams(), user=user) as session:
            session.start([1] * prompt, max_new_tokens=count, stop_tokens=frozenset())
            end = None
            while end is None:
                delivery = await session.receive()
                self.arrivals += [trio.current_time()] * len(delivery.tokens)
                if len(self.arrivals) >= self.many:
                    self.has_many.set()
                end = delivery.end
