"""The events of one response, for all who follow it, now or later."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import trio

__all__ = ["EventLog"]

BLOCK = 256
"""Events that are compressed together: they resemble one another, and most are read once."""


class EventLog:
    """Events as JSON, in order, numbered from 0. Whoever reads it takes its own time.

    Attributes:
        bytes: what it takes in memory.
        ended: there will be no more.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self.ended = False
        self._blocks: list[bytes] = []
        self._latest: list[bytes] = []
        self._changed = trio.Event()

    def __len__(self) -> int:
        return BLOCK * len(self._blocks) + len(self._latest)

    def append(self, event: bytes) -> None:
        """One more. It must hold no line break, as JSON does not when it is compact."""
        self._latest.append(event)
        self.bytes += len(event)
        if len(self._latest) == BLOCK:
            block = zlib.compress(b"\n".join(self._latest), 1)
            self.bytes += len(block) - sum(map(len, self._latest))
            self._blocks.append(block)
            self._latest = []
        self._wake()

    def end(self) -> None:
        """That was the last one."""
        self.ended = True
        self._wake()

    def read(self, start: int) -> list[bytes]:
        """Those from a number on that are at hand, some of them if there are many."""
        block, offset = divmod(max(start, 0), BLOCK)
        if block < len(self._blocks):
            return zlib.decompress(self._blocks[block]).split(b"\n")[offset:]
        return self._latest[offset:] if block == len(self._blocks) else []

    def all(self) -> Iterator[bytes]:
        """Every one so far."""
        for block in self._blocks:
            yield from zlib.decompress(block).split(b"\n")
        yield from self._latest

    async def more_than(self, count: int) -> None:
        """Wait until there are more, or the end."""
        while len(self) <= count and not self.ended:
            await self._changed.wait()

    async def until_ended(self) -> None:
        """Wait for the end."""
        while not self.ended:
            await self._changed.wait()

    def _wake(self) -> None:
        if self._changed.statistics().tasks_waiting:
            self._changed.set()
            self._changed = trio.Event()
