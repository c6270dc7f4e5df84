"""Keeps what a client writes apart from the control tokens that a template writes.

Before rendering, every control token spelled out in the client's data is replaced by one
private-use character that occurs nowhere else in it; whatever the template does with the text, it
cannot be torn apart or mistaken. After rendering, the control tokens in the text are therefore the
template's own, and the private characters are put back as plain text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ds4trio.chat.patterns import any_of

__all__ = ["Guarded", "Markers", "Segment"]

PRIVATE = range(0xF0000, 0xFFFFE)
"""Supplementary Private Use Area A of Unicode: no letter, no case, no space."""

NOTHING = re.compile("(?!)")


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a prompt.

    Attributes:
        text: what it says.
        special: control tokens in it are meant; otherwise they are plain text.
    """

    text: str
    special: bool


class Markers:
    """The control tokens of one tokenizer."""

    def __init__(self, control_tokens: Sequence[str]) -> None:
        tokens = {token for token in control_tokens if token.strip()}
        self._whole = any_of(tokens) or NOTHING
        # The beginning of a control token at the end of one text could be completed by the
        # beginning of the next, so it is replaced as well.
        self._prefixes = {token[:length] for token in tokens for length in range(1, len(token))}
        self._longest_prefix = max(map(len, self._prefixes), default=0)

    def guard(self, data: Mapping[str, Any]) -> Guarded:
        """Replace the control tokens in every text of the data, however deep.

        Raises:
            RecursionError: the data are nested too deeply.
        """
        used: set[str] = set()
        for text in _texts(data):
            if not text.isascii():
                used.update(character for character in text if ord(character) in PRIVATE)
        free = (character for character in map(chr, PRIVATE) if character not in used)
        stand_ins: dict[str, str] = {}

        def stand_in(found: str) -> str:
            if found not in stand_ins:
                stand_ins[found] = next(free)
            return stand_ins[found]

        def guarded(value: Any) -> Any:
            if isinstance(value, str):
                value = self._whole.sub(lambda match: stand_in(match.group()), value)
                tail = self._open_tail(value)
                return value[: len(value) - len(tail)] + stand_in(tail) if tail else value
            if isinstance(value, Mapping):
                return {guarded(key): guarded(inner) for key, inner in value.items()}
            if isinstance(value, list | tuple):
                return [guarded(inner) for inner in value]
            return value

        clean = {key: guarded(value) for key, value in data.items()}
        return Guarded(clean, {sign: text for text, sign in stand_ins.items()}, self._whole)

    def _open_tail(self, text: str) -> str:
        """The longest beginning of a control token that the text ends with."""
        for length in range(min(self._longest_prefix, len(text)), 0, -1):
            if text[-length:] in self._prefixes:
                return text[-length:]
        return ""


@dataclass(frozen=True)
class Guarded:
    """Data that can be rendered, and what its private characters stand for."""

    data: dict[str, Any]
    meaning: Mapping[str, str]
    control: re.Pattern[str]

    def split(self, text: str) -> list[Segment]:
        """Cut rendered text into segments that say which control tokens are meant.

        Text without private characters comes back in one segment. Otherwise each stretch between
        two control tokens of the template that has such a character in it is a segment of its own,
        so that its plain text is tokenised in one piece.
        """
        if not self.meaning:
            return [Segment(text, special=True)]
        signs = re.compile(f"[{''.join(self.meaning)}]")
        segments: list[Segment] = []
        meant = ""
        for stretch, control in self._stretches(text):
            if signs.search(stretch):
                if meant:
                    segments.append(Segment(meant, special=True))
                plain = signs.sub(lambda match: self.meaning[match.group()], stretch)
                segments.append(Segment(plain, special=False))
                meant = control
            else:
                meant += stretch + control
        if meant:
            segments.append(Segment(meant, special=True))
        return segments

    def _stretches(self, text: str) -> Iterator[tuple[str, str]]:
        """Each stretch of plain text with the control token after it, the last with none."""
        begin = 0
        for match in self.control.finditer(text):
            yield text[begin : match.start()], match.group()
            begin = match.end()
        yield text[begin:], ""


def _texts(value: Any) -> Iterator[str]:
    """Every text in the data."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
