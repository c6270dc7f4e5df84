"""What a runner has of each sequence, and what a step does for one."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from ds4trio.engine.attention import Span
from ds4trio.engine.grammar import Bound
from ds4trio.engine.lookup import Lookup
from ds4trio.engine.sampler import Bias, Draw
from ds4trio.engine.step import Row, SampledToken, SamplingParams

__all__ = ["RunningSequence", "Work"]


@dataclass(slots=True)
class RunningSequence:
    """What a runner knows of a sequence.

    Attributes:
        tokens: ids of the positions whose keys and values are in the cache.
        pages: where those are.
        pending: the token drawn last, not yet evaluated; None where there is none.
        bias: of how it draws.
        adapter: the name of the one it has; empty for none.
        lookup: finds guesses; made when the first ones are asked for.
        bound: to its grammar, if it has one.
    """

    sampling: SamplingParams
    tokens: array[int]
    pages: list[int]
    pending: int | None
    bias: Bias | None
    adapter: str
    lookup: Lookup | None = None
    bound: Bound | None = None

    def guesses(self, last: int, most: int) -> list[int]:
        """What may follow ``last``, the token that waits."""
        if self.lookup is None:
            self.lookup = Lookup()
        return self.lookup.propose(self.tokens, last, most)


@dataclass(frozen=True, slots=True)
class Work:
    """A row with the sequence it belongs to, the tokens it evaluates, and where they go.

    Attributes:
        tokens: those that are certain, then guesses.
        guessed: how many of them are guesses.
    """

    row: Row
    sequence: RunningSequence
    tokens: Sequence[int]
    guessed: int
    span: Span

    @property
    def draws(self) -> list[Draw]:
        """One after the last certain token, and one after each guess, as if it held."""
        if not self.row.sample:
            return []
        sampling, before = self.sequence.sampling, self.sequence.tokens
        certain = len(self.tokens) - self.guessed
        return [
            Draw(sampling, before + array("q", self.tokens[:end]), self.sequence.bias)
            for end in range(certain, len(self.tokens) + 1)
        ]

    def held(self, drawn: Sequence[SampledToken]) -> tuple[SampledToken, ...]:
        """Of one token per draw those whose histories came true. They are what the sequence would
        have drawn one by one: its logits and its random numbers are the same."""
        guesses = self.tokens[len(self.tokens) - self.guessed :]
        count = 1
        for token, guess in zip(drawn, guesses, strict=False):
            if token.token != guess:
                break
            count += 1
        return tuple(drawn[:count])
