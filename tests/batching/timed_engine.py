"""An engine whose steps take virtual time, as long as a model's would, and what its clients see."""

from __future__ import annotations

import itertools
import random
import sys
from dataclasses import dataclass, field

import trio

from ds4trio.batching.coalescer import Coalescer
from ds4trio.engine.ledger import Ledger
from ds4trio.engine.step import (
    Command,
    EngineInfo,
    Ran,
    Row,
    SampledToken,
    SamplingParams,
    Step,
    StepResult,
)
from ds4trio.engine.turns import InTurn


@dataclass
class TimedRunner:
    """Says the same token always, at a cost.

    Needs a clock that jumps (``autojump_clock``), and no deadlines but its own. A step takes its
    time only once the tokens of the one before have been committed: those are on their way from
    another thread, and the clock must not jump over that.

    Attributes:
        step_seconds, row, token: seconds of a step, of each decode row, and of each prompt token.
        steep: a prompt token at position ``p`` costs ``1 + p / steep`` times as much.
        noise: one step in ten takes up to this many times as long.
        steps: rows and seconds of the steps so far.
    """

    step_seconds: float = 0.020
    row: float = 0.002
    token: float = 0.0015
    steep: float = 4000.0
    noise: float = 1.0
    info: EngineInfo = field(
        default_factory=lambda: EngineInfo(97, 10_000, 16, 100_000, "nowhere", "none")
    )
    steps: list[tuple[tuple[Row, ...], float]] = field(default_factory=list)
    lengths: dict[int, int] = field(default_factory=dict)
    random: random.Random = field(default_factory=lambda: random.Random(1))
    committed: int = -1
    changed: trio.Event = field(default_factory=trio.Event)

    def has_committed(self, number: int) -> None:
        """Every step up to this one is over."""
        self.committed = number
        self.changed.set()
        self.changed = trio.Event()

    async def _pass_time(self, number: int, seconds: float) -> None:
        while self.committed < number - 1:
            await self.changed.wait()
        await trio.sleep(seconds)

    def prepare_grammar(self, grammar: str) -> None:
        pass

    def step(self, command: Command) -> Ran:
        for sequence in command.closes:
            del self.lengths[sequence]
        for opening in command.opens:
            self.lengths[opening.sequence] = len(opening.tokens)
        if not command.rows:
            return Ran((), 0.0)
        seconds = self.step_seconds
        for row in command.rows:
            position, count = self.lengths[row.sequence], len(row.tokens)
            each = self.token * (1 + (position + count / 2) / self.steep)
            seconds += count * each if count > 1 else self.row
            self.lengths[row.sequence] += count or 1
        seconds *= self.random.uniform(0.97, 1.03)
        if self.random.random() < 0.1:
            seconds *= self.random.uniform(1.0, self.noise)
        trio.from_thread.run(self._pass_time, command.number, seconds)
        self.steps.append((command.rows, seconds))
        return Ran(tuple((SampledToken(5),) if row.sample else () for row in command.rows), seconds)


class TimedEngine(Ledger):
    """The books of a real engine over a ``TimedRunner``, whose arguments it takes."""

    def __init__(self, **costs: float) -> None:
        self.timed = TimedRunner(**costs)  # type: ignore[arg-type]
        super().__init__(InTurn(self.timed), prefix_cache=False)

    def commit(self, step: Step, ran: Ran) -> StepResult:
        result = super().commit(step, ran)
        self.timed.has_committed(step.command.number)
        return result

    def let_go(self) -> None:
        """Steps in flight end, though nobody will commit the ones before them."""
        self.timed.has_committed(sys.maxsize)

    @property
    def steps(self) -> list[tuple[tuple[Row, ...], float]]:
        return self.timed.steps


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
