"""Stop strings, found across the borders of tokens."""

from __future__ import annotations

from collections.abc import Sequence

from ds4trio.errors import InvalidRequest

__all__ = ["StopMatcher"]


class StopMatcher:
    """Passes text through until a stop string appears in it.

    The stop that is complete first, character by character, ends the text, and of two complete at
    the same character the longer (that is, the one that began first). The text is cut before it.
    So the result does not depend on how the text was split over calls, and no character is needed
    beyond the one that completes a stop. Text that may yet become a stop is held back.

    Each stop is followed by the automaton of Knuth, Morris and Pratt (SIAM J. Comput. 6, 1977):
    the time is linear in the text, whatever the stops are.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """
        Raises:
            InvalidRequest: a stop is empty.
        """
        if any(not stop for stop in stops):
            raise InvalidRequest("A stop string must not be empty.", param="stop")
        self._stops = [(stop, _borders(stop)) for stop in dict.fromkeys(stops)]
        self._matched = [0] * len(self._stops)
        self._held = ""
        self._stopped = False

    def push(self, text: str) -> tuple[str, str | None]:
        """Take text.

        Returns:
            The text that is safe to send, and the stop that ended it or None. After a stop,
            further text is swallowed.
        """
        if self._stopped:
            return "", None
        if not self._stops:
            return text, None
        held = self._held + text
        begin = len(self._held)
        for position in range(begin, len(held)):
            if (stop := self._advance(held[position])) is not None:
                self._held, self._stopped = "", True
                return held[: position + 1 - len(stop)], stop
        keep = max(self._matched)
        cut = len(held) - keep
        self._held = held[cut:]
        return held[:cut], None

    def finish(self) -> str:
        """The text ends here: return what was held back in vain."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> str | None:
        """Move every automaton by one character; return the longest stop that is now complete."""
        complete: str | None = None
        for number, (stop, borders) in enumerate(self._stops):
            matched = self._matched[number]
            while matched and stop[matched] != character:
                matched = borders[matched - 1]
            if stop[matched] == character:
                matched += 1
            self._matched[number] = matched
            if matched == len(stop) and (complete is None or len(stop) > len(complete)):
                complete = stop
        return complete


def _borders(text: str) -> list[int]:
    """For each prefix, the length of its longest proper prefix that also ends it."""
    borders = [0] * len(text)
    length = 0
    for index in range(1, len(text)):
        while length and text[index] != text[length]:
            length = borders[length - 1]
        if text[index] == text[length]:
            length += 1
        borders[index] = length
    return borders
