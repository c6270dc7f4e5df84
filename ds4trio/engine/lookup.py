"""Guesses without a model: what followed when a sequence last said the same.

Answers that quote, edit or repeat (code, documents, lists) say again what stands in their own
history; Saxena, "Prompt Lookup Decoding" (2023). A wrong guess changes no answer, since every guess
is verified.
"""

from __future__ import annotations

from array import array

__all__ = ["MOST_ENTRIES", "Lookup"]

LENGTHS = (3, 2)
"""How many of the last tokens are looked up; the first that is found decides."""

MOST_ENTRIES = 16384
"""Places that an index holds before its older half is forgotten."""


class Lookup:
    """Where the beginnings of one sequence's tokens go on. For one sequence, which only grows.

    Every call looks at the tokens that are new, so that a step costs microseconds however long the
    history is; the first one looks at all that the index holds.

    Args:
        most_entries: of each of two generations; the older one is dropped when the newer is full.
    """

    def __init__(self, most_entries: int = MOST_ENTRIES) -> None:
        self._most_entries = most_entries
        self._places: dict[tuple[int, ...], int] = {}
        self._older: dict[tuple[int, ...], int] = {}
        self._seen = 0

    def propose(self, tokens: array[int], last: int, most: int) -> list[int]:
        """What may come next.

        Args:
            tokens: the history; at least as long as it was in the last call, and beginning with
                the same tokens.
            last: the token after them, which need not become one of them.
            most: how many are wanted.

        Returns:
            The tokens that followed the latest earlier place with the same last ones. Where such a
            repetition reaches the end of the history, it goes on. Empty where there is none.
        """
        self._learn(tokens)
        end = len(tokens) + 1
        for length in LENGTHS:
            key = (*tokens[max(end - length, 0) :], last)
            if len(key) < length:
                continue
            place = self._places.get(key, self._older.get(key))
            if place is not None:
                return _following(tokens, last, place, most)
        return []

    def _learn(self, tokens: array[int]) -> None:
        """Note the places that tokens follow on: the key may end with the last one of them."""
        most_places = 2 * self._most_entries // len(LENGTHS)
        for place in range(max(self._seen, len(tokens) - most_places) + 1, len(tokens) + 1):
            for length in LENGTHS:
                if place >= length:
                    self._places[tuple(tokens[place - length : place])] = place
            if len(self._places) >= self._most_entries:
                self._older, self._places = self._places, {}
        self._seen = max(self._seen, len(tokens))


def _following(tokens: array[int], last: int, place: int, most: int) -> list[int]:
    found = list(tokens[place : place + most])
    if len(found) < most:
        found.append(last)
    period = len(tokens) + 1 - place
    while len(found) < most:
        found.append(found[len(found) - period])
    return found
