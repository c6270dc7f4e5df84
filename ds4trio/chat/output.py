"""What a model writes, taken apart: answer, reasoning, tool calls.

A parser is given one token after the other, so what it makes of an answer cannot depend on how the
answer travels. Streamed or not, the pieces are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

__all__ = [
    "CallArguments",
    "CallBegun",
    "CallEnded",
    "Inside",
    "OutputParser",
    "Piece",
    "PlainOutput",
    "ReasoningText",
    "Text",
]


@dataclass(frozen=True, slots=True)
class Text:
    """Of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningText:
    """Of what is thought before the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A function is called; calls come one after the other."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the JSON text of its arguments."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The arguments are complete, or will not become so."""


Inside = Literal["text", "reasoning", "call"]

Piece = Text | ReasoningText | CallBegun | CallArguments | CallEnded


class OutputParser(Protocol):
    """Takes one answer apart."""

    @property
    def inside(self) -> Inside:
        """What comes next belongs to, as far as is known."""
        ...

    def push(self, token: int, text: str) -> Sequence[Piece]:
        """A token, and the whole characters that it completes (none for a control token).

        What may yet turn out to be a tag is held back.
        """
        ...

    def finish(self, *, cut: bool = False) -> Sequence[Piece]:
        """The answer ends here: what was held back in vain.

        Args:
            cut: a limit ended it. What may be the beginning of a tag is then dropped, as half a
                character is.
        """
        ...


class PlainOutput:
    """The parser of a model, or a prompt, that knows neither reasoning nor tools."""

    inside: Inside = "text"

    def push(self, token: int, text: str) -> Sequence[Piece]:
        return (Text(text),) if text else ()

    def finish(self, *, cut: bool = False) -> Sequence[Piece]:
        return ()
