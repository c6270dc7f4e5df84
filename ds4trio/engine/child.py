"""The engine's process: ``python -m ds4trio.engine.child``, started by ``process.py``.

It is told by its standard input what to do, and answers on its standard output. Signals that are
meant for the server reach it too, when they go to a whole group of processes; the server decides,
and this process ends when the server closes the pipe or is gone.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import queue
import signal
import sys
import threading
from typing import IO, Any

from ds4trio.engine.messages import Failed, NotStarted, PrepareGrammar, Started, Void, receive, send
from ds4trio.engine.step import Command
from ds4trio.errors import ModelUnavailable, StepVoid

__all__ = ["main"]

_log = logging.getLogger(__name__)


def main() -> None:
    """Load the model that the first message names, then carry out commands until the end."""
    for meant_for_the_server in (signal.SIGINT, signal.SIGTERM):
        signal.signal(meant_for_the_server, signal.SIG_IGN)
    faulthandler.enable()  # what native code does not survive is to be seen in the log
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints is not an answer
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    # A thread, so that the end of the server is noticed in the middle of a long step too.
    threading.Thread(target=_listen, args=(sys.stdin.buffer, inbox), daemon=True).start()
    try:
        _serve(inbox, answers)
    except OSError:  # nobody is there to be answered
        os._exit(0)


def _listen(commands: IO[bytes], inbox: queue.SimpleQueue[Any]) -> None:
    try:
        while True:
            inbox.put(receive(commands))
    except EOFError:
        os._exit(0)


def _serve(inbox: queue.SimpleQueue[Any], answers: IO[bytes]) -> None:
    spec = inbox.get()
    logging.basicConfig(
        level=spec.log_level.upper(),
        format="[%(asctime)s] [%(levelname)s] engine: %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
    )
    try:
        runner = spec.load()
    except (ModelUnavailable, OSError) as error:
        send(answers, NotStarted(str(error)))
        return
    except Exception as error:  # a fault of ours; the server is to say this and not a signal
        _log.critical("the model could not be loaded for a reason that is ours", exc_info=error)
        send(answers, NotStarted(f"{type(error).__name__}: {error}"))
        return
    send(answers, Started(runner.info))
    while True:
        command: Command | PrepareGrammar = inbox.get()
        if isinstance(command, PrepareGrammar):
            runner.prepare_grammar(command.grammar)
            continue
        answer: object
        try:
            answer = runner.step(command)
        except StepVoid:
            answer = Void()
        except Exception as error:
            answer = Failed.of(error)
        send(answers, answer)


if __name__ == "__main__":
    main()
