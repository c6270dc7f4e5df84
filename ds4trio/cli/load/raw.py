"""The engine alone, in a process of its own: it neither disturbs the load nor rests upon it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import msgspec
import trio

from ds4trio.cli.load.replay import Order, RawFailed, RawRound
from ds4trio.settings import Settings

__all__ = ["Broken", "RawEngine", "Ready", "raw_engine"]

Said = TypeVar("Said", bound=msgspec.Struct)


class Ready(msgspec.Struct, frozen=True):
    """The process has its model: what it is called, and how it is computed."""

    model: str
    dtype: str
    device: str
    threads: int


class Broken(msgspec.Struct, frozen=True):
    """The process can do no more, and why."""

    error: str


class _Answer(msgspec.Struct):
    """Any answer: is it bad news?"""

    error: str | None = None


class RawEngine:
    """Replays orders. One at a time; after a cancellation there can be no other.

    Attributes:
        ready: what it runs.
        process: where.
    """

    ready: Ready

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self._received = bytearray()

    async def replay(self, order: Order) -> RawRound:
        """Do this round.

        Raises:
            RawFailed: in one line, it cannot or is no more.
        """
        return await self.ask(order, RawRound)

    async def ask(self, question: msgspec.Struct, kind: type[Said]) -> Said:
        """Send a line, and read the one that answers it. Raises as ``replay``."""
        stdin = self.process.stdin
        assert stdin is not None
        # Where it has ended, its last words may be there to read.
        with suppress(trio.BrokenResourceError):
            await stdin.send_all(msgspec.json.encode(question) + b"\n")
        line = await self._line()
        if (error := msgspec.json.decode(line, type=_Answer).error) is not None:
            raise RawFailed(error)
        return msgspec.json.decode(line, type=kind)

    async def _line(self) -> bytes:
        stdout = self.process.stdout
        assert stdout is not None
        while b"\n" not in self._received:
            received = await stdout.receive_some()
            if not received:
                status = await self.process.wait()
                raise RawFailed(f"--raw: the engine's process has ended (exit status {status})")
            self._received += received
        line, _, self._received = self._received.partition(b"\n")
        return bytes(line)


@asynccontextmanager
async def raw_engine(settings: Settings) -> AsyncIterator[RawEngine]:
    """The process, with its model loaded; it ends with the block.

    Args:
        settings: as the server has them. The model must be on this machine.

    Raises:
        RawFailed: on entering, the model or the settings cannot be used.
    """
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "ds4trio.cli.load.raw_engine"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with process.stdin, process.stdout:
            engine = RawEngine(process)
            engine.ready = await engine.ask(settings, Ready)
            yield engine
    finally:
        process.kill()  # it holds nothing that would be lost
        with trio.CancelScope(shield=True):
            await process.wait()
