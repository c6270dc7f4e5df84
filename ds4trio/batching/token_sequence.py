"""The tokens of one sequence: which are evaluated, which are in flight, which wait.

Steps are planned while others run, so most questions here are about the time when the steps in
flight will have succeeded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from ds4trio.engine.step import EngineInfo, StepItem

__all__ = ["TokenSequence"]


@dataclass(eq=False, slots=True)
class TokenSequence:
    """Tokens, and how far the engine is with them. Every ``Session`` is one.

    Attributes:
        id: the engine's name for the sequence.
        tokens: every token known: evaluated ones, then those that wait.
        evaluated: how many of them the engine has committed.
        reused: how many of those came from the prefix cache when it was opened.
        in_flight: its parts of the steps that run or wait to run, in order.
        scheduled: its length in the engine when those have succeeded, and every guess in them.
        drawn_in_flight: tokens that those will draw, if every guess holds.
        reach: the farthest that a step could have brought it: pages are held up to there.
        last_is_drawn: the last token was drawn and has not been evaluated yet.
        last_is_on_device: moreover the engine still holds it, so it need not be sent.
        scored: so many of the first tokens are a prompt whose log-probabilities are wanted.
        charged: how many of its tokens, from the first, were charged for or came from the cache.
    """

    id: int
    info: EngineInfo
    tokens: list[int] = field(default_factory=list, init=False, repr=False)
    evaluated: int = field(default=0, init=False)
    reused: int = field(default=0, init=False)
    in_flight: deque[StepItem] = field(default_factory=deque, init=False)
    scheduled: int = field(default=0, init=False)
    drawn_in_flight: int = field(default=0, init=False)
    reach: int = field(default=0, init=False)
    last_is_drawn: bool = field(default=False, init=False)
    last_is_on_device: bool = field(default=False, init=False)
    charged: int = field(default=0, init=False)
    scored: int = field(default=0, init=False)

    @property
    def waiting(self) -> int:
        """Tokens that wait to be evaluated, those not drawn yet among them."""
        return len(self.tokens) + self.drawn_in_flight - self.scheduled

    @property
    def begun(self) -> bool:
        """Has evaluated something itself since it was opened in the engine."""
        return self.scheduled > self.reused

    @property
    def next_is_on_device(self) -> bool:
        """The next token to evaluate is one that the engine draws or has drawn: a decode row."""
        return self.drawn_in_flight > 0 or (self.last_is_on_device and not self.in_flight)

    def append(self, tokens: Sequence[int]) -> None:
        """These wait too. They take the place of a drawn token that was not evaluated."""
        if self.last_is_drawn:
            self.tokens.pop()
        self.tokens.extend(tokens)
        self.last_is_drawn = self.last_is_on_device = False

    def drew(self, token: int) -> None:
        """The engine drew this one, and holds it."""
        self.tokens.append(token)
        self.last_is_drawn = self.last_is_on_device = True

    def found_in_cache(self, count: int) -> None:
        """It was opened in the engine, where the first ``count`` tokens are evaluated already."""
        self.evaluated = self.reused = self.reach = self.scheduled = count
        self.charged = max(self.charged, count)

    def taken_off(self, item: StepItem) -> None:
        """The item is part of a step that will run."""
        self.in_flight.append(item)
        self.scheduled += item.most
        self.drawn_in_flight += _drawn(item)
        self.reach = max(self.reach, self.scheduled)

    def landed(self, drawn: int) -> None:
        """The oldest item in flight is committed. So many tokens came of it; ``drew`` follows."""
        item = self.in_flight.popleft()
        self.evaluated += item.evaluated(drawn)
        self.scheduled += item.evaluated(drawn) - item.most  # less the guesses that did not hold
        self.drawn_in_flight -= _drawn(item)
        self.last_is_on_device = False
        if self.evaluated == len(self.tokens):
            self.last_is_drawn = False

    def turned_back(self) -> None:
        """What is in flight comes to nothing. The engine has what was committed before."""
        self._forget_steps()
        self.reach = self.evaluated

    def lost(self) -> None:
        """The engine has nothing of it any more."""
        self.evaluated = self.reused = 0
        self._forget_steps()
        self.last_is_on_device = False

    def _forget_steps(self) -> None:
        self.in_flight.clear()
        self.scheduled = self.evaluated
        self.drawn_in_flight = 0

    def pages_for_next(self, count: int) -> int:
        """Pages that ``count`` more tokens need beyond those it holds."""
        held = self.info.pages_for(max(self.scheduled, self.reach))
        return max(self.info.pages_for(self.scheduled + count) - held, 0)

    def item(self, count: int) -> StepItem:
        """The next ``count`` waiting tokens as a part of a step; for a decode row, ``count - 1``
        guesses besides the one token that waits."""
        if self.next_is_on_device:
            return StepItem(self.id, draft=count - 1)
        end = self.scheduled + count
        chunk = tuple(self.tokens[self.scheduled : end])
        follows = self.tokens[end] if end < self.scored else None
        return StepItem(self.id, chunk, sample=end == len(self.tokens), follows=follows)

    def take_uncharged(self) -> int:
        """Tokens to charge for now: what is evaluated, or will be when the steps in flight have
        succeeded and none of their guesses holds, less what was charged for before."""
        certain = self.evaluated + sum(item.evaluated(0) for item in self.in_flight)
        before, self.charged = self.charged, max(self.charged, certain)
        return self.charged - before


def _drawn(item: StepItem) -> int:
    """Tokens that an item draws at most."""
    return 1 + item.draft if item.sample else 0
