"""What a user of a load test types: random words, pieces of a real text, or code to copy.

Sizes are in tokens, about. The load generator has no tokenizer (each server has its own), so a
common word counts as one token, and four characters of a text do.
"""

from __future__ import annotations

import builtins
import keyword
import random
import re
from importlib.resources import files
from typing import Final, Protocol

__all__ = ["CHARACTERS", "CodeToCopy", "Prompts", "RandomWords", "RealText", "built_in_code"]

_NOUNS: Final = """
    time year people way day man thing woman life child world school state family student group
    country problem hand part place case week company system program question work government
    number night point home water room mother area money story fact month lot right study book
    eye job word business issue side kind head house service friend father power hour game line
    end member law car city name president team minute idea body information back parent face
    others level office door health person art war history party result change morning reason
    research girl guy moment air teacher force education
"""
WORDS: Final = tuple(_NOUNS.split())
"""Common nouns: nearly every vocabulary has each of them, with its space, as one token."""

CHARACTERS: Final = 4
"""Of English or of code, about so many make a token."""

LONG_WORD: Final = 100
"""Characters in which a word should have come to its end."""

IDENTIFIER: Final = re.compile(r"\b[a-z][a-z_]{2,}\b")
TAKEN: Final = frozenset((*keyword.kwlist, *dir(builtins), "self"))


class Prompts(Protocol):
    """Writes what a conversation's turns say. All randomness is the caller's."""

    @property
    def name(self) -> str:
        """For people who read the figures."""
        ...

    def shared(self, source: random.Random, size: int) -> str:
        """What all conversations begin with."""
        ...

    def first(self, source: random.Random, size: int) -> str:
        """A first turn."""
        ...

    def later(self, source: random.Random, size: int) -> str:
        """Any other turn."""
        ...


class RandomWords:
    """Words, then what to do with them; a small prompt is words alone."""

    name = "random words"
    _wish = "Write a very long story with all of these words, in many chapters."

    def shared(self, source: random.Random, size: int) -> str:
        return _words(source, size)

    def first(self, source: random.Random, size: int) -> str:
        wish = len(self._wish.split()) + 2  # the full stop and a line break
        if size < 2 * wish:
            return _words(source, max(size, 1))
        return f"{_words(source, size - wish)}.\n{self._wish}"

    later = first


class RealText:
    """Pieces of a text, each from another place, then what to do with it.

    Args:
        text: the end is followed by its beginning, so that every place has enough after it.
    """

    _wish = "Go on with this text at great length."

    def __init__(self, text: str, name: str) -> None:
        self.name = f"text of {name}"
        self._text = text.strip()

    def shared(self, source: random.Random, size: int) -> str:
        return _piece(self._text, source, size) if size else ""

    def first(self, source: random.Random, size: int) -> str:
        wish = len(self._wish) // CHARACTERS + 2
        if size < 2 * wish:
            return _piece(self._text, source, size)
        return f"{_piece(self._text, source, size - wish)}\n\n{self._wish}"

    later = first


class CodeToCopy:
    """Code to be repeated with one change: most of a good answer is in its prompt.

    Args:
        code: whole lines are taken; after the last comes the first.
    """

    _task_tokens = 28

    def __init__(self, code: str, name: str) -> None:
        self.name = f"copying {name}"
        self._lines = [line.rstrip() for line in code.strip().splitlines()]

    def shared(self, source: random.Random, size: int) -> str:
        return _words(source, size)

    def first(self, source: random.Random, size: int) -> str:
        code = self._excerpt(source, max(size - self._task_tokens, 1))
        names = sorted(set(IDENTIFIER.findall(code)) - TAKEN) or sorted(set(code.split()))
        # The change comes first: two prompts of the same code differ from the beginning.
        return (
            f"Change the name `{source.choice(names)}` to `{_new_name(source)}` in this code. "
            f"Repeat all of it with that one change:\n```\n{code}\n```"
        )

    def later(self, source: random.Random, size: int) -> str:
        return f"Repeat all of it once more, with `{_new_name(source)}` as the new name."

    def _excerpt(self, source: random.Random, size: int) -> str:
        place = source.randrange(len(self._lines))
        lines: list[str] = []
        left = size * CHARACTERS
        while left > 0:
            lines.append(self._lines[place % len(self._lines)])
            left -= (
                len(lines[-1].lstrip()) + 2
            )  # a line's indentation is one token, its end another
            place += 1
        return "\n".join(lines).strip() or self._lines[0]


def built_in_code() -> str:
    """A Python file of about 1,400 tokens, written for this."""
    return (files(__package__) / "code_to_copy.txt").read_text(encoding="utf-8")


def _words(source: random.Random, count: int) -> str:
    return " ".join(source.choices(WORDS, k=count))


def _piece(text: str, source: random.Random, size: int) -> str:
    """From the beginning of a word to the end of one."""
    length = size * CHARACTERS
    place = source.randrange(len(text))
    enough = 2 * length + LONG_WORD
    around = text[place : place + enough]
    if len(around) < enough:
        around += "\n" + text[: enough - len(around)]
    begin = re.search(r"\s\S", around)
    start = begin.start() + 1 if begin else 0
    end = re.compile(r"\s").search(around, min(start + length, len(around) - 1))
    return around[start : end.start() if end else start + length].rstrip()


def _new_name(source: random.Random) -> str:
    return f"{source.choice(WORDS)}_{source.randrange(1000, 10000)}"
