"""A runner in a process of its own, which is started again when it dies.

Work in Python beside a decoder in the same process makes every step slower, since each of its
operations must win the interpreter's lock back. A process of its own has no such company, and what
crashes there does not take the server along. This module needs no torch.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import ds4trio
from ds4trio.engine.messages import NotStarted, PrepareGrammar, Started, Void, receive, send
from ds4trio.engine.spec import RunnerSpec
from ds4trio.engine.step import Command, EngineInfo, Ran
from ds4trio.engine.turns import Turns
from ds4trio.errors import EngineDied, EngineLost, ModelUnavailable, StepFailed, StepVoid

__all__ = ["ProcessRunner"]

_log = logging.getLogger(__name__)

PAUSES = (0.0, 1.0, 5.0)
"""Seconds before each attempt to start the process again; after the last one it is given up."""


class ProcessRunner:
    """Implements ``RunnerLike``. The process is started at once, and loads its model meanwhile.

    A command goes down the pipe as soon as it is there, so that the process finds it when the one
    before is done.

    Attributes:
        ready: False from the death of the process until it has been started again.
    """

    def __init__(self, spec: RunnerSpec) -> None:
        self.ready = True
        self._spec = spec
        self._info: EngineInfo | None = None
        self._sending, self._answering = Turns(), Turns()
        self._stopping = threading.Event()
        self._child: _Child | None = _Child(spec)
        self._changing = threading.Condition()

    @property
    def info(self) -> EngineInfo:
        """Sizes of the engine. The first time, it waits until the model is loaded.

        Raises:
            ModelUnavailable: it cannot be.
            EngineDied: the process ended before it was.
        """
        if self._info is None:
            assert self._child is not None
            self._info = self._child.started()
            # What the machine can spare may be less when it is started again.
            self._spec = replace(
                self._spec,
                pages=self._info.total_pages,
                context_length=self._info.context_length,
            )
        return self._info

    @property
    def pid(self) -> int | None:
        """Id of the process, or None while there is none."""
        return None if self._child is None else self._child.process.pid

    def run(self, command: Command) -> Ran:
        """Have a command carried out, once ``info`` was there.

        Raises:
            StepFailed: it raised in the process; a note has the traceback.
            StepVoid: one before it had failed, or the runner was stopped.
            EngineDied: the process ended.
            EngineLost: and could not be started again.
        """
        child: _Child | Exception
        with self._sending.turn(command.number):
            try:
                child = self._hand_over(command)
            except Exception as error:
                child = error
        with self._answering.turn(command.number):
            if isinstance(child, Exception):
                raise child
            return self._answer(child)

    def leave_out(self, number: int) -> None:
        """The command of this number will not come. Nothing happens if it did."""
        self._sending.leave_out(number)
        self._answering.leave_out(number)

    def prepare_grammar(self, grammar: str) -> None:
        """Tell the process, if there is one; one that is started later compiles it when a sequence
        is opened with it."""
        with self._changing:
            child = self._child if self.ready else None
        if child is not None:
            with contextlib.suppress(OSError, ValueError):  # it has ended, as a command will find
                child.tell(PrepareGrammar(grammar))

    def stop(self) -> None:
        """End the process, in the middle of a step if need be."""
        with self._changing:
            self._stopping.set()
            self._changing.notify_all()
            child = self._child
        if child is not None:
            child.end()

    def watch(self) -> bool:
        """Wait until the process has ended, in the middle of a command or idle. The first command
        after that fails with ``EngineDied``, and the next one starts it again.

        Returns:
            False when it was stopped instead.
        """
        with self._changing:
            self._changing.wait_for(lambda: self._stopping.is_set() or self.ready)
            child = self._child
        if child is None or self._stopping.is_set():
            return not self._stopping.is_set()
        child.process.wait()
        with self._changing:
            if self._child is child:
                self.ready = False
        return not self._stopping.is_set()

    def interrupt(self) -> bool:
        """Kill the process, if it is not just being started. Its command fails."""
        with self._changing:
            child = self._child if self.ready else None
        if child is not None:
            child.process.kill()
        return True

    def _hand_over(self, command: Command) -> _Child:
        if self._child is None and not command.reset:
            raise EngineDied("the engine's process has ended")
        child = self._child or self._start_again()
        with contextlib.suppress(OSError, ValueError):  # it has ended, as its answer will say
            child.tell(command)
        return child

    def _answer(self, child: _Child) -> Ran:
        try:
            answer = receive(child.answers)
        except (EOFError, OSError, ValueError):  # ended by itself, or by stop()
            how = child.has_ended()
            with self._changing:
                if self._child is child:
                    self._child = None
                    self.ready = False
            if self._stopping.is_set():
                raise StepVoid("the engine has been stopped") from None
            raise EngineDied(f"the engine's process {how}") from None
        if isinstance(answer, Ran):
            return answer
        if isinstance(answer, Void):
            raise StepVoid("a step before it failed")
        error = StepFailed(f"{answer.kind}: {answer.message}", kind=answer.kind)
        error.add_note(f"In the engine's process:\n{answer.traceback}")
        raise error

    def _start_again(self) -> _Child:
        self.ready = False
        for pause in PAUSES:
            self._stopping.wait(pause)
            child: _Child | None = None
            try:
                with self._changing:
                    if self._stopping.is_set():
                        raise StepVoid("the engine has been stopped")
                    child = self._child = _Child(self._spec)
                if child.started() != self._info:
                    raise ModelUnavailable("the model is another one now")
            # OSError: the system has no descriptors or no memory left for it.
            except (EngineDied, ModelUnavailable, OSError) as error:
                _log.error("the engine's process could not be started again: %s", error)
                with self._changing:
                    self._child = None
                if child is not None:
                    child.end()
            else:
                _log.warning("the engine's process was started again")
                with self._changing:
                    self.ready = True
                    self._changing.notify_all()
                return child
        raise EngineLost("the engine's process died and could not be started again")


class _Child:
    """A started process, and the pipes to it. It does not outlive this object."""

    def __init__(self, spec: RunnerSpec) -> None:
        package = str(Path(ds4trio.__file__).parent.parent)
        path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "ds4trio.engine.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.commands: IO[bytes] = self.process.stdin
        self.answers: IO[bytes] = self.process.stdout
        self._telling = threading.Lock()
        self._ended = weakref.finalize(self, _end, self.process, threading.Lock())
        with contextlib.suppress(OSError):  # it has ended already, as started() will say
            self.tell(spec)

    def tell(self, message: object) -> None:
        """Send it a message, as one piece. Raises OSError or ValueError when it has ended."""
        with self._telling:
            send(self.commands, message)

    def started(self) -> EngineInfo:
        """Wait until the model is loaded. Raises ModelUnavailable or EngineDied if it is not."""
        try:
            answer: Any = receive(self.answers)
        except (EOFError, OSError, ValueError):
            raise EngineDied(
                f"the engine's process {self.has_ended()} as it loaded the model"
            ) from None
        if isinstance(answer, NotStarted):
            raise ModelUnavailable(answer.why)
        assert isinstance(answer, Started)
        return answer.info

    def end(self) -> None:
        """Kill the process if it still runs."""
        self._ended()

    def has_ended(self) -> str:
        """It has closed its pipe: see it off, and say how it ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1.0)
        self.end()
        code = self.process.wait()
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"ended with status {code}"


def _end(process: subprocess.Popen[bytes], one_at_a_time: threading.Lock) -> None:
    with one_at_a_time:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):  # what was not sent yet
                pipe.close()
