"""Text that a model or a server wrote is never trusted with the terminal."""

from __future__ import annotations

import re
from collections.abc import Callable

__all__ = ["Sanitiser"]


class Sanitiser:
    """Makes streamed text harmless to print: only what shows, newlines and tabs pass.

    Control characters (C0 but newline and tab, DEL, C1), whole escape sequences (ECMA-48), even
    when split over pieces, and the bidirectional controls that make text read otherwise than it is
    stored (CVE-2021-42574) are dropped. Lone surrogates become U+FFFD.
    """

    _SUSPECT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
    _LONGEST_SEQUENCE = 256
    """Past this many characters a sequence is taken for text, lest it swallow an answer."""

    def __init__(self) -> None:
        self._step: Callable[[str], str] = self._plain
        self._length = 0

    def feed(self, text: str) -> str:
        """The next piece, made harmless."""
        if self._step == self._plain and not self._SUSPECT.search(text):
            return text
        return "".join([self._step(char) for char in text])

    def _enter(self, step: Callable[[str], str]) -> str:
        self._step = step
        self._length = 0
        return ""

    def _plain(self, char: str) -> str:
        if not self._SUSPECT.match(char):
            return char
        match char:
            case "\x1b":
                return self._enter(self._escape)
            case "\x9b":
                return self._enter(self._control_sequence)
            case "\x90" | "\x98" | "\x9d" | "\x9e" | "\x9f":
                return self._enter(self._control_string)
        return "\ufffd" if "\ud800" <= char <= "\udfff" else ""

    def _escape(self, char: str) -> str:
        """After ESC: which kind of sequence is it?"""
        if char == "[":
            return self._enter(self._control_sequence)
        if char in "]PX^_":
            return self._enter(self._control_string)
        if " " <= char <= "/":
            return ""
        self._enter(self._plain)
        return "" if "0" <= char <= "~" else self._plain(char)

    def _control_sequence(self, char: str) -> str:
        """CSI: parameters and intermediates up to a final byte."""
        self._length += 1
        if " " <= char <= "?" and self._length <= self._LONGEST_SEQUENCE:
            return ""
        self._enter(self._plain)
        return "" if "@" <= char <= "~" else self._plain(char)

    def _control_string(self, char: str) -> str:
        """OSC, DCS and their like: any text up to BEL or ST; a newline ends it too."""
        self._length += 1
        if char == "\x1b":
            return self._enter(self._escape)  # of ST, or of a sequence of its own
        if char in "\x07\x9c\n" or self._length > self._LONGEST_SEQUENCE:
            self._enter(self._plain)
            return "" if char == "\x07" else self._plain(char)
        return ""
