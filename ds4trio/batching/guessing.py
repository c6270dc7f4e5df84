"""How many guesses a session's next row is to carry, by what became of the last ones."""

from __future__ import annotations

__all__ = ["MOST_GUESSES", "Guessing"]

MOST_GUESSES = 7
"""With the token that is certain they are a short span, which attention takes row by row."""

WORTH_IT = 0.15
"""A guess that holds less often costs more than it brings: what a row adds to a step on a CPU that
computes in int8, where it is most, as a share of the step with one row."""

START = 0.35
RATE = 1 / 6
LEAST = 0.1
"""Below this the estimate does not fall, so that a few guesses that hold bring it back."""

FIRST_REST, LONGEST_REST = 8, 64
"""Rows without guesses after those that were not worth it."""


class Guessing:
    """One session's policy.

    It estimates how often a guess holds when those before it did, and asks for as many as are each
    worth their cost. When not even one is, it rests, tries one, and rests twice as long if that
    fails.

    Attributes:
        draft: how many guesses the next row is to carry, at most.
    """

    def __init__(self) -> None:
        self._holds = START
        self._rest = 0
        self._next_rest = FIRST_REST
        self.draft = self._worthwhile()

    def learn(self, guessed: int, held: int) -> None:
        """A row has run.

        Args:
            guessed: how many guesses were found and verified.
            held: how many of them, from the first, were right.
        """
        if self._rest and not guessed:
            self._rest -= 1
        for right in (True,) * held + (False,) * (held < guessed):
            self._holds += RATE * (right - self._holds)
        if guessed:
            self._judge(held)
        self.draft = 0 if self._rest else max(self._worthwhile(), 1)

    def _judge(self, held: int) -> None:
        self._holds = max(self._holds, LEAST)
        if held:
            self._rest, self._next_rest = 0, FIRST_REST
        elif self._holds < WORTH_IT:
            self._rest = self._next_rest
            self._next_rest = min(2 * self._next_rest, LONGEST_REST)

    def _worthwhile(self) -> int:
        count, chance = 0, self._holds
        while count < MOST_GUESSES and chance >= WORTH_IT:
            count, chance = count + 1, chance * self._holds
        return count
