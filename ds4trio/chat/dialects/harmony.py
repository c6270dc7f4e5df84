"""The parser of gpt-oss, whose answers are messages in channels.

A message is a header, ``<|message|>``, and a body that ends with ``<|end|>``, ``<|call|>`` or
``<|return|>``. The header says in which channel the message is, and to whom it goes:

- ``analysis`` is reasoning;
- ``commentary`` to ``functions.NAME`` is a call, its body the arguments; to nobody, it is said
  before calls, and text like ``final``.

A call of an unknown function is text, or reasoning in ``analysis``
(https://cookbook.openai.com/articles/openai-harmony).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

from ds4trio.chat.dialects.reading import NotACall, Sink
from ds4trio.chat.dialects.signs import Signs, without_signs
from ds4trio.chat.dialects.stream import Marks, joined
from ds4trio.chat.output import CallArguments, Inside, Piece, ReasoningText, Text
from ds4trio.chat.tool import Tool

__all__ = ["MARKERS", "HarmonyParser"]

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
CONSTRAIN = "<|constrain|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
MARKERS = (START, CHANNEL, MESSAGE, CONSTRAIN, *ENDS)

RECIPIENT = re.compile(r"\bto=([^\s<]+)")
IN_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
LONGEST_HEADER = 1_000

Part = Literal["header", "text", "reasoning", "call"]


class HarmonyParser:
    """Takes an answer of gpt-oss apart.

    Args:
        signs: of the model's control tokens.
        tools: those that it may call.
        prompt_tail: the end of the prompt, which may have begun a message.
    """

    def __init__(self, signs: Signs, tools: Mapping[str, Tool], prompt_tail: str) -> None:
        self._signs = signs
        self._sink = Sink(tools)
        self._name = {signs.spell(marker): marker for marker in MARKERS}
        self._marks = Marks(set(self._name))
        self._held = ""
        self._header: list[str] = []
        self._size = 0
        self._part: Part = "header"
        self._empty = True
        self._pieces: list[Piece] = []
        _, _, begun = prompt_tail.rpartition(START)
        if begun.endswith(MESSAGE):
            self._header = [begun.removesuffix(MESSAGE)]
            self._begin()
        elif CHANNEL in begun:
            self._header = [begun]

    @property
    def inside(self) -> Inside:
        return "text" if self._part == "header" else self._part

    def push(self, token: int, text: str) -> Sequence[Piece]:
        self._held += text + self._signs.of.get(token, "")
        while found := self._marks.first(self._held):
            begin, end = found
            self._say(self._held[:begin])
            self._meet(self._name[self._held[begin:end]])
            self._held = self._held[end:]
        cut = len(self._held) - self._marks.open_tail(self._held)
        self._say(self._held[:cut])
        self._held = self._held[cut:]
        return self._taken()

    def finish(self, *, cut: bool = False) -> Sequence[Piece]:
        self._say(self._held)
        self._held = ""
        self._end()
        return self._taken()

    def _meet(self, marker: str) -> None:
        if self._part == "header":
            if marker == MESSAGE:
                self._begin()
            elif marker in (CHANNEL, CONSTRAIN):
                self._add(marker)
            else:
                self._end()
        elif marker in (CHANNEL, START, *ENDS):
            self._end()
            if marker == CHANNEL:
                self._add(marker)

    def _say(self, text: str) -> None:
        text = without_signs(text)
        if not text:
            return
        if self._part == "header":
            self._add(text)
            if self._size > LONGEST_HEADER:
                self._end()  # it is none
                self._part = "text"
        elif self._part == "reasoning":
            self._pieces.append(ReasoningText(text))
        elif self._part == "text":
            self._pieces.append(Text(text))
        else:
            self._empty = False
            self._pieces.append(CallArguments(text))

    def _add(self, text: str) -> None:
        self._header.append(text)
        self._size += len(text)

    def _begin(self) -> None:
        """The body comes."""
        header = "".join(self._header)
        self._header, self._size = [], 0
        channel = IN_CHANNEL.search(header)
        thinks = channel is not None and channel[1] == "analysis"
        self._part = "reasoning" if thinks else "text"
        recipient = RECIPIENT.search(header)
        if recipient is None or recipient[1] == "assistant":
            return
        try:
            name = self._sink.known(recipient[1])
        except NotACall:
            return
        self._sink.begin(name)
        self._pieces += self._sink.pieces
        self._sink.pieces.clear()
        self._part = "call"
        self._empty = True

    def _end(self) -> None:
        """A message ends, or a header that became none."""
        if self._part == "call":
            if self._empty:
                self._sink.arguments("{}")
            self._sink.end()
            self._pieces += self._sink.pieces
            self._sink.pieces.clear()
        elif self._part == "header":
            header = "".join(self._header)
            written = header.strip()
            # A model that has forgotten its channels still answers.
            if CHANNEL not in header and not header.startswith("assistant") and written:
                self._pieces.append(Text(header))
        self._header, self._size = [], 0
        self._part = "header"

    def _taken(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return joined(pieces)
