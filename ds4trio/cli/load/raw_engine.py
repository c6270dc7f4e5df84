"""``python -m ds4trio.cli.load.raw_engine``: the engine of ``ds4trio bench --raw``, in a process.

Lines of JSON come in on the standard input, and each is answered with one on the standard output:
first the settings, then an ``Order`` after the other. Between two lines it waits and uses no
processor.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import BinaryIO

import msgspec
import torch

from ds4trio.batching.schedule import Budget
from ds4trio.cli.load.raw import Broken, Ready
from ds4trio.cli.load.replay import Order, Replayer
from ds4trio.engine.ledger import Ledger
from ds4trio.engine.spec import RunnerSpec
from ds4trio.engine.turns import InTurn
from ds4trio.errors import Ds4TrioError
from ds4trio.models.resolve import resolve
from ds4trio.settings import Settings


def main() -> None:
    """Until the input ends, or something goes wrong."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who started this
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what libraries print must not come between
    try:
        _serve(sys.stdin.buffer, answers)
    except Ds4TrioError as error:
        _answer(answers, Broken(error=str(error)))
    except Exception as error:
        _answer(answers, Broken(error=f"{type(error).__name__}: {error}"))
        raise


def _serve(questions: BinaryIO, answers: BinaryIO) -> None:
    settings = msgspec.json.decode(questions.readline(), type=Settings)
    source = resolve(settings.model)
    runner = RunnerSpec.of(settings, source).load()
    engine = Ledger(InTurn(runner), prefix_cache=settings.prefix_cache)
    budget = Budget(
        step_tokens=settings.step_tokens,
        prefill_chunk=settings.prefill_chunk,
        sessions=settings.max_sessions if settings.batching else 1,
    )
    replay = Replayer(engine, budget)
    info, threads = engine.info, torch.get_num_threads()
    _answer(answers, Ready(source.name, info.dtype, info.device, threads))
    for line in questions:
        _answer(answers, replay(msgspec.json.decode(line, type=Order)))


def _answer(answers: BinaryIO, said: msgspec.Struct) -> None:
    answers.write(msgspec.json.encode(said) + b"\n")


if __name__ == "__main__":
    main()
