"""Reading a call one character at a time.

A reader is a generator: it is sent each character and returns those that it took too many. The end
of the answer is the empty text. What a reader needs can therefore arrive in any pieces.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from ds4trio.chat.output import CallArguments, CallBegun, CallEnded, Piece
from ds4trio.chat.tool import Tool

__all__ = ["Ended", "NotACall", "Reader", "Reading", "Sink", "is_sign", "one_of", "space", "until"]

LONGEST_NAME = 300

Reading = Generator[None, str, Any]
Reader = Generator[None, str, str]


class NotACall(Exception):
    """What was read is no call of a known function. Nothing of it was told."""


class Ended(Exception):
    """The answer ends in the middle."""


class Sink:
    """Takes what readers find out.

    Attributes:
        tools: the functions that may be called, by name.
        pieces: told since somebody took them.
        live: a call has begun and has not ended.
        told: something has been since somebody set it back.
        calls: how many have begun.
    """

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self.tools = tools
        self.pieces: list[Piece] = []
        self.live = False
        self.told = False
        self.calls = 0

    def known(self, name: str) -> str:
        """The name of the function that is meant.

        Raises:
            NotACall: there is none.
        """
        name = name.strip()
        for candidate in (name, name.removeprefix("functions.")):
            if candidate in self.tools:
                return candidate
        raise NotACall

    def begin(self, name: str) -> None:
        self.pieces.append(CallBegun(name))
        self.live = self.told = True
        self.calls += 1

    def arguments(self, text: str) -> None:
        if text:
            self.pieces.append(CallArguments(text))

    def end(self) -> None:
        self.pieces.append(CallEnded())
        self.live = False
        self.told = True


def is_sign(character: str) -> bool:
    """Whether it stands for a control token (``signs.py``)."""
    return "\ud800" <= character <= "\udfff"


def space() -> Generator[None, str, str]:
    """Skip white space; returns what comes behind it.

    Raises:
        Ended
    """
    while True:
        character = yield
        if not character.isspace():
            if not character:
                raise Ended
            return character


def until(
    marks: Sequence[str], out: Callable[[str], object], *, most: int | None = None
) -> Generator[None, str, str]:
    """Read up to one of the marks, and return that.

    Args:
        marks: none begins another, and their first character occurs in none of them again.
        out: gets each character before the mark.
        most: characters, for what must be short.

    Raises:
        Ended
        NotACall: it is longer.
    """
    held = ""
    count = 0
    while True:
        character = yield
        if not character:
            raise Ended  # and what may be the beginning of a mark is taken for that
        held += character
        if held in marks:
            return held
        while held and not any(mark.startswith(held) for mark in marks):
            out(held[0])
            held = held[1:]
            count += 1
            if most is not None and count > most:
                raise NotACall


def name_until(marks: Sequence[str]) -> Generator[None, str, tuple[str, str]]:
    """A short text, and the mark that it ends with."""
    characters: list[str] = []
    mark = yield from until(marks, characters.append, most=LONGEST_NAME)
    return "".join(characters), mark


def one_of(first: str, marks: Sequence[str]) -> Generator[None, str, tuple[str, str]]:
    """Read one of the marks, whose first character was read.

    Returns:
        The mark and the empty text; or the empty text and what was read instead.
    """
    read = first
    while read not in marks:
        if not any(mark.startswith(read) for mark in marks):
            return "", read
        character = yield
        if not character:
            return "", read
        read += character
    return read, ""


def escaped(character: str) -> str:
    """A character as it stands in a JSON string."""
    return json.dumps(character, ensure_ascii=False)[1:-1]
