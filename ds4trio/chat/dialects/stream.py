"""An answer taken apart while it comes: text, reasoning, calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ds4trio.chat.dialects.reading import Ended, NotACall, Reader, Sink
from ds4trio.chat.dialects.signs import Signs, without_signs
from ds4trio.chat.dialects.styles import Style, bare
from ds4trio.chat.dialects.tags import ReasoningTags
from ds4trio.chat.output import (
    CallArguments,
    Inside,
    Piece,
    ReasoningText,
    Text,
)
from ds4trio.chat.patterns import any_of
from ds4trio.chat.tool import Tool

__all__ = ["Marks", "StreamParser", "joined"]

QUOTES = "`\"'"


class StreamParser:
    """The parser of models whose markers stand in the text.

    White space around a marker belongs to it. What begins as a call and is none, is text; once a
    function's name was told, what follows is told as its arguments, broken or not. Tags of
    reasoning are no text, except behind a quotation mark or, the opening one, within a line: there
    the answer speaks of them.

    Args:
        signs: of the model's control tokens.
        tags: that it thinks between, spelled.
        styles: in which it may write calls.
        tools: those that it may call; empty for none, and then their markers are text.
        thinks: the prompt has begun the reasoning.
        trimmed: white space at the beginning belongs to a marker at the end of the prompt.
    """

    def __init__(
        self,
        signs: Signs,
        tags: ReasoningTags | None,
        styles: Sequence[Style],
        tools: Mapping[str, Tool],
        *,
        thinks: bool = False,
        trimmed: bool = False,
    ) -> None:
        self._signs = signs
        self._tags = tags
        self._sink = Sink(tools)
        offered = styles if tools else ()
        self._openers = {
            signs.spell(marker): reader for style in offered for marker, reader in style.openers
        }
        self._closers = {signs.spell(marker) for style in offered for marker in style.closers}
        self._bare = any(style.bare for style in offered)
        around = {tags.opens, tags.closes, *tags.answer} if tags else set()
        self._in_text = Marks({*self._openers, *self._closers, *around})
        # A model that calls while it thinks has stopped thinking; only a control token says so.
        calls = {marker for marker in self._openers if without_signs(marker) != marker}
        self._in_reasoning = Marks({tags.opens, tags.closes, *calls} if tags else set())
        self._thinks = thinks
        self._trim = trimmed or thinks
        self._held = ""
        self._space: list[str] = []
        self._line_is_blank = True
        self._last = ""
        self._answered = False
        self._reader: Reader | None = None
        self._read: list[str] = []
        self._pieces: list[Piece] = []

    @property
    def inside(self) -> Inside:
        if self._reader is not None:
            return "call"
        return "reasoning" if self._thinks else "text"

    def push(self, token: int, text: str) -> Sequence[Piece]:
        self._held += text + self._signs.of.get(token, "")
        while self._held and (self._take_call() if self._reader else self._take_text()):
            pass
        return self._taken()

    def finish(self, *, cut: bool = False) -> Sequence[Piece]:
        if self._reader is None:
            self._held = "" if cut else self._held
        else:
            try:
                self._reader.send("")
            except StopIteration as read:
                unread: str = read.value
                # Cut within the marker that would have closed the call.
                closes = any(marker.startswith(unread) for marker in self._closers)
                self._held = "" if closes else unread
                self._call_is_over()
            except (NotACall, Ended):
                self._no_call()
        self._say(self._held)
        self._held = ""
        if self._space and not self._trim and not self._thinks:
            self._pieces.append(Text("".join(self._space)))
        self._space.clear()
        return self._taken()

    def _take_text(self) -> bool:
        """Take what is held, up to and with the next marker; whether there may be more to do."""
        if self._trim:
            self._held = self._held.lstrip()
            if not self._held:
                return False
        if self._bare and not self._thinks and not self._answered and not self._sink.calls:
            begun = self._held.lstrip()
            if begun.startswith("{"):
                self._say(self._held[: len(self._held) - len(begun)])
                self._held = begun
                self._begin(bare(self._signs.spell, self._sink), "")
                return True
        marks = self._in_reasoning if self._thinks else self._in_text
        found = marks.first(self._held)
        if found is None:
            cut = len(self._held) - marks.open_tail(self._held)
            self._say(self._held[:cut])
            self._held = self._held[cut:]
            return False
        begin, end = found
        self._say(self._held[:begin])
        marker, self._held = self._held[begin:end], self._held[end:]
        self._meet(marker)
        return True

    def _meet(self, marker: str) -> None:
        """What a marker does."""
        tags = self._tags
        if marker in self._openers:
            if self._thinks:
                self._end_of_reasoning()
            self._begin(self._openers[marker](self._signs.spell, self._sink), marker)
        elif marker in self._closers:
            if not self._sink.calls:
                self._say(marker)
        elif tags is None or (self._quoted(marker) and not self._thinks):
            self._say(marker)
        elif marker == tags.closes and self._thinks:
            self._end_of_reasoning()
        elif marker == tags.opens and not self._thinks:
            if not self._line_is_blank and without_signs(marker) == marker:
                self._say(marker)
            else:
                self._thinks = True
                self._marked()

    def _quoted(self, marker: str) -> bool:
        return self._last in QUOTES and self._last != "" and without_signs(marker) == marker

    def _end_of_reasoning(self) -> None:
        self._thinks = False
        self._marked()

    def _marked(self) -> None:
        """White space on both sides belongs to a marker."""
        self._space.clear()
        self._trim = True
        self._line_is_blank = True
        self._last = ""

    def _say(self, text: str) -> None:
        """Tell text or reasoning; white space waits for what comes behind it."""
        text = without_signs(text)
        if not text:
            return
        self._last = text[-1]
        _, line_break, line = text.rpartition("\n")
        self._line_is_blank = not line.strip() and (bool(line_break) or self._line_is_blank)
        told = text.rstrip()
        if told:
            self._trim = False
            whole = "".join([*self._space, told])
            self._space.clear()
            self._pieces.append(ReasoningText(whole) if self._thinks else Text(whole))
            self._answered = self._answered or not self._thinks
        if len(told) < len(text) and not self._trim:
            self._space.append(text[len(told) :])

    def _begin(self, reader: Reader, marker: str) -> None:
        self._reader = reader
        next(reader)
        self._read = [marker]

    def _take_call(self) -> bool:
        reader = self._reader
        assert reader is not None
        sink = self._sink
        held = self._held
        for position, character in enumerate(held):
            try:
                reader.send(character)
            except StopIteration as read:
                self._held = read.value + held[position + 1 :]
                self._call_is_over()
                return True
            except NotACall:
                self._held = held[position:]
                self._no_call()
                return True
            if sink.told:
                self._told()
            elif not sink.live:
                self._read.append(character)
        self._held = ""
        return False

    def _told(self) -> None:
        """The reader has told something, so that what was read until now is accounted for."""
        self._sink.told = False
        self._read.clear()
        self._marked()
        self._pieces += self._sink.pieces
        self._sink.pieces.clear()

    def _call_is_over(self) -> None:
        self._reader = None
        self._told()

    def _no_call(self) -> None:
        """What was read since something was told is text, and is not looked through again."""
        if self._sink.live:
            self._sink.end()
        if self._sink.told:
            self._told()
        self._reader = None
        read, self._read = "".join(self._read), []
        self._say(read)

    def _taken(self) -> list[Piece]:
        self._pieces += self._sink.pieces
        self._sink.pieces.clear()
        pieces, self._pieces = self._pieces, []
        return joined(pieces)


class Marks:
    """Looks for markers."""

    def __init__(self, markers: set[str]) -> None:
        self._pattern = any_of(markers)
        self._beginnings = {mark[:size] for mark in markers for size in range(1, len(mark))}
        self._longest = max(map(len, self._beginnings), default=0)

    def first(self, text: str) -> tuple[int, int] | None:
        match = self._pattern.search(text) if self._pattern else None
        return match.span() if match else None

    def open_tail(self, text: str) -> int:
        """How many characters at the end may be the beginning of a marker."""
        for size in range(min(self._longest, len(text)), 0, -1):
            if text[-size:] in self._beginnings:
                return size
        return 0


def joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Neighbours of one kind as one."""
    result: list[Piece] = []
    texts: list[str] = []
    for number, piece in enumerate(pieces):
        if not isinstance(piece, Text | ReasoningText | CallArguments):
            result.append(piece)
            continue
        texts.append(piece.text)
        following = pieces[number + 1] if number + 1 < len(pieces) else None
        if type(following) is not type(piece):
            result.append(type(piece)("".join(texts)))
            texts = []
    return result
