"""What the terminal chat shows: answers as they come or whole, remarks, errors."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from ds4trio.cli.terminal.sanitiser import Sanitiser

__all__ = ["Screen"]


class Screen:
    """Where answers and remarks about them go.

    Args:
        out, err: text streams for answers, and for errors and remarks.
        interactive: a person watches both; show remarks, dimmed.
        live: show answers as they come. Otherwise each comes whole, so that an answer that breaks
            off leaves no half in a file.
        styled: escape sequences of our own are welcome.
    """

    def __init__(
        self, out: TextIO, err: TextIO, *, interactive: bool, live: bool, styled: bool
    ) -> None:
        self.interactive = interactive
        self._out = out
        self._err = err
        self._live = live
        self._styled = styled
        self._start_answer()

    @classmethod
    def standard(cls) -> Screen:
        """For this process: plain and whole into a pipe, live and dim on a terminal."""
        for stream in (sys.stdout, sys.stderr):
            reconfigure = getattr(stream, "reconfigure", None)
            if reconfigure is not None:
                reconfigure(errors="replace")  # the terminal's encoding may know less than a model
        live = sys.stdout.isatty()
        interactive = live and sys.stdin.isatty()
        plain = "NO_COLOR" in os.environ or os.environ.get("TERM", "dumb") == "dumb"
        return cls(
            sys.stdout, sys.stderr, interactive=interactive, live=live, styled=live and not plain
        )

    def piece(self, text: str) -> None:
        """The next piece of an answer."""
        clean = self._sanitiser.feed(text)
        if not clean:
            return
        self._column_zero = clean.endswith("\n")
        if self._live:
            self._write(self._out, clean)
        else:
            self._held.append(clean)

    def end_answer(self, remark: str = "") -> None:
        """The answer is whole; a person also gets the remark about it."""
        self._held.append("" if self._column_zero else "\n")
        self._write(self._out, "".join(self._held))
        self._start_answer()
        if self.interactive and remark:
            self._write(self._out, self._dim(remark))

    def discard_answer(self) -> None:
        """The answer broke off. What a person has seen of it stays, on lines of its own."""
        if self._live and not self._column_zero:
            self._write(self._out, "\n")
        self._start_answer()

    def notice(self, text: str) -> None:
        """A remark to a person, help for instance. May hold several lines."""
        if self.interactive:
            self._write(self._out, self._dim(text))

    def waiting(self, text: str) -> None:
        """Why nothing happens for a while; worth a line in a script's log as well."""
        if self.interactive:
            self.notice(text)
        else:
            self.error(text)

    def error(self, text: str) -> None:
        """One line about what went wrong; it may quote the server."""
        line = " ".join(Sanitiser().feed(text).split())
        self._write(self._err, f"ds4trio chat: {line}\n")

    def _start_answer(self) -> None:
        self._sanitiser = Sanitiser()
        self._held: list[str] = []
        self._column_zero = True

    def _dim(self, text: str) -> str:
        clean = Sanitiser().feed(text)
        return f"\x1b[2m{clean}\x1b[0m\n" if self._styled else f"{clean}\n"

    @staticmethod
    def _write(stream: TextIO, text: str) -> None:
        stream.write(text)
        stream.flush()
