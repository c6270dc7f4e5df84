"""Threads that come in any order go on in the order of their numbers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from ds4trio.engine.step import Command, EngineInfo, Ran
from ds4trio.errors import StepVoid

__all__ = ["InTurn", "Turns"]


class Turns:
    """Lets numbers through one at a time, from 0 on, and leaves none out but by request."""

    def __init__(self) -> None:
        self._next = 0
        self._left_out: set[int] = set()
        self._changed = threading.Condition()

    @contextmanager
    def turn(self, number: int) -> Iterator[None]:
        """Wait for the end of the block of ``number - 1``, and be in the block meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: self._next == number)
        try:
            yield
        finally:
            self._advance(number)

    def leave_out(self, number: int) -> None:
        """No thread will come with this number. Nothing happens if one did."""
        with self._changed:
            if number > self._next:
                self._left_out.add(number)
                return
        if number == self._next:
            self._advance(number)

    def _advance(self, number: int) -> None:
        with self._changed:
            self._next = number + 1
            while self._next in self._left_out:
                self._left_out.remove(self._next)
                self._next += 1
            self._changed.notify_all()


class _Steps(Protocol):
    @property
    def info(self) -> EngineInfo: ...

    def step(self, command: Command) -> Ran: ...

    def prepare_grammar(self, grammar: str) -> None: ...


class InTurn:
    """A runner in this process: whichever thread brings a command carries it out, in its turn."""

    ready = True

    def __init__(self, runner: _Steps) -> None:
        self._runner = runner
        self._turns = Turns()
        self._stopped = threading.Event()

    @property
    def info(self) -> EngineInfo:
        return self._runner.info

    def run(self, command: Command) -> Ran:
        with self._turns.turn(command.number):
            if self._stopped.is_set():
                raise StepVoid("the engine has been stopped")
            return self._runner.step(command)

    def leave_out(self, number: int) -> None:
        self._turns.leave_out(number)

    def prepare_grammar(self, grammar: str) -> None:
        self._runner.prepare_grammar(grammar)

    def watch(self) -> bool:
        self._stopped.wait()  # it dies with this process only
        return False

    def interrupt(self) -> bool:
        return False

    def stop(self) -> None:
        self._stopped.set()
