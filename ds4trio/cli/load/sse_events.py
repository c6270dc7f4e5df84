"""Server-sent events, read from bytes as they come."""

from __future__ import annotations

from typing import Final

__all__ = ["EventReader"]

LARGEST_LINE: Final = 16 * 2**20
"""Bytes."""


class EventReader:
    """Cuts a ``text/event-stream`` (WHATWG HTML, section 9.2) into the data of its events.

    The names, ids and retry times of events are not read.
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        self._data: list[bytes] = []
        self._after_return = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of every event that these bytes complete.

        Raises:
            ValueError: a line is longer than any event may be.
        """
        if self._after_return and chunk.startswith(b"\n"):
            chunk = chunk[1:]  # the second half of a line end
        self._after_return = chunk.endswith(b"\r")
        self._rest += chunk
        lines = bytes(self._rest).splitlines(keepends=True)
        self._rest.clear()
        if lines and not lines[-1].endswith((b"\n", b"\r")):
            self._rest += lines.pop()
            if len(self._rest) > LARGEST_LINE:
                raise ValueError("a line of the event stream has no end")
        events = []
        for line in (line.rstrip(b"\r\n") for line in lines):
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        return events
