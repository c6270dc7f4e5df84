"""Lines from a terminal or a pipe, read off the event loop by a thread that can be left behind."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal, Protocol

import trio

if sys.platform != "win32":
    import termios

__all__ = ["Interrupted", "Lines", "PipeLines", "TerminalLines", "terminal_kept"]

LONGEST_LINE: Final = 16 * 2**20
"""Bytes of one line from a pipe."""
CTRL_C: Final = "\x03"


class Interrupted(Exception):
    """Ctrl-C at the prompt. The line typed so far is gone.

    Args:
        typed: there was one.
    """

    def __init__(self, typed: bool) -> None:
        super().__init__("Ctrl-C")
        self.typed = typed


class Lines(Protocol):
    """Where questions come from."""

    async def read(self) -> str | None:
        """The next line without its end, None after the last.

        Raises:
            Interrupted: only where Ctrl-C at the prompt comes as input rather than as a signal.
        """


class PipeLines:
    """Lines from a file descriptor: a pipe, a file. UTF-8; bad bytes become U+FFFD.

    Reads past ``sys.stdin``: a thread that is left behind in a read would hold the lock of that
    buffer, and the interpreter could not end.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = bytearray()
        self._searched = 0
        self._ended = False

    async def read(self) -> str | None:
        """As :meth:`Lines.read`.

        Raises:
            ValueError: a line is longer than ``LONGEST_LINE``.
        """
        while (end := self._buffer.find(b"\n", self._searched)) < 0 and not self._ended:
            self._searched = len(self._buffer)
            if self._searched > LONGEST_LINE:
                raise ValueError(f"a line of the input is longer than {LONGEST_LINE} bytes")
            data = await trio.to_thread.run_sync(
                os.read, self._descriptor, 2**16, abandon_on_cancel=True
            )
            self._buffer += data
            self._ended = not data
        if end < 0 and not self._buffer:
            return None
        line = bytes(self._buffer if end < 0 else self._buffer[:end])
        del self._buffer[: len(line) + 1]
        self._searched = 0
        return line.decode("utf-8", "replace").removesuffix("\r")


class TerminalLines:
    """Lines typed at a terminal, edited with GNU readline where Python has it.

    A thread waits for the line, and a signal would not reach it. So while it waits, Ctrl-C is a
    key like others that ends the line, itself its last character. Where the terminal cannot be told
    so (Windows, libedit) Ctrl-C stays a signal, and the line stays as it is.
    """

    def __init__(self, prompt: str = "> ") -> None:
        self._prompt = prompt
        self._editor = _find_editor()

    async def read(self) -> str | None:
        """As :meth:`Lines.read`."""
        line = await trio.to_thread.run_sync(self._read, abandon_on_cancel=True)
        if line is not None and CTRL_C in line:
            raise Interrupted(typed=bool(line.replace(CTRL_C, "").strip()))
        return line

    def _read(self) -> str | None:
        if self._editor == "signal":
            return _input(self._prompt)
        with _ctrl_c_is_a_key():
            if self._editor == "bare":
                return _cooked_line(self._prompt)
            line = _input(self._prompt)
        if line and CTRL_C not in line:
            import readline

            readline.add_history(line)
        return line


@contextmanager
def terminal_kept() -> Iterator[None]:
    """Leave the terminal as it was found, whatever a thread left behind in it was about to do."""
    if sys.platform == "win32" or not sys.stdin.isatty():
        yield
        return
    descriptor = sys.stdin.fileno()
    found = termios.tcgetattr(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, found)


@contextmanager
def _ctrl_c_is_a_key() -> Iterator[None]:
    if sys.platform == "win32":
        yield
        return
    descriptor = sys.stdin.fileno()
    found = termios.tcgetattr(descriptor)
    changed = [*found[:6], list(found[6])]
    changed[6][termios.VINTR] = bytes([os.fpathconf(descriptor, "PC_VDISABLE") & 0xFF])
    changed[6][termios.VEOL] = CTRL_C.encode()  # in a terminal without an editor it ends the line
    termios.tcsetattr(descriptor, termios.TCSADRAIN, changed)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, found)


def _find_editor() -> Literal["readline", "bare", "signal"]:
    """Which of the three ways to read a line this platform has."""
    if sys.platform == "win32":
        return "signal"
    try:
        import readline
    except ImportError:
        return "bare"
    if "GNU" not in (readline.__doc__ or ""):
        return "signal"
    readline.set_auto_history(False)
    readline.parse_and_bind(r'"\C-c": "\C-v\C-c\C-m"')  # insert it verbatim, and end the line
    return "readline"


def _input(prompt: str) -> str | None:
    try:
        return input(prompt)
    except EOFError:
        return None


def _cooked_line(prompt: str) -> str | None:
    """A line as the terminal's own driver edits it. Not ``input``: that waits for a newline."""
    sys.stdout.write(prompt)
    sys.stdout.flush()
    line = b""
    while not line.endswith((b"\n", CTRL_C.encode())):
        data = os.read(sys.stdin.fileno(), 4096)
        if not data:
            break
        line += data
    return line.decode("utf-8", "replace").rstrip("\n") if line else None
