"""Grammars are checked in a process of their own, which is killed where one is too much for it."""

from __future__ import annotations

import functools
import logging
import math
import signal
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field

import trio
from trio_parallel import BrokenWorkerError, WorkerContext, open_worker_context

from ds4trio.chat.grammar_worker import (
    MOST_MEMORY,
    MOST_SECONDS,
    SIGNAL,
    begin,
    is_swollen,
    is_there,
    verdict,
)
from ds4trio.chat.tokenizer import Tokenizer
from ds4trio.errors import InternalError, InvalidRequest, ServerStopping, WireError

__all__ = ["GrammarChecks"]

_log = logging.getLogger(__name__)

LONGEST = 20.0
"""Seconds for one grammar. Where the processor is free its own bound ends it long before
(``grammar_worker.MOST_SECONDS``); this one is for what waits and does not compute."""

LONGEST_START = 120.0
"""Seconds until the process has its vocabulary, on a machine that is busy with other things."""

LONGEST_END = 1.0
"""Seconds that it has to end by itself."""

STOPPING = "the server is shutting down"

FAULTS = tuple(
    getattr(signal, name, None) for name in ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE")
)
"""How native code ends that has no memory or no stack left. A process that ends by another signal
was killed from outside, and the grammar is tried once more."""


class GrammarChecks:
    """Checks grammars one after the other. The process starts with the first one.

    Args:
        tokenizer: the model's.
        vocab_size: of the model.
        stop_tokens: ids that end an answer.
        most_seconds: of a processor, for one grammar.
        most_memory: bytes, for one grammar.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        stop_tokens: Collection[int],
        most_seconds: float = MOST_SECONDS,
        most_memory: int = MOST_MEMORY,
    ) -> None:
        self._begin = functools.partial(
            begin, tokenizer.source, vocab_size, tuple(stop_tokens), most_memory
        )
        self._most_seconds = most_seconds
        self._asked, self._asks = trio.open_memory_channel[_Check](0)

    async def run(self) -> None:
        """Have the process until this is cancelled; then it is gone."""
        # A process that was killed as it had nothing to do is told of at the end.
        with self._asks, suppress(BrokenWorkerError):
            async with open_worker_context(
                idle_timeout=math.inf,
                init=self._begin,
                retire=is_swollen,
                grace_period=LONGEST_END,
            ) as process:
                async for check in self._asks:
                    try:
                        check.result = await self._checked(process, check.grammar)
                    finally:
                        check.done.set()
                    # Whoever comes next need not wait for a start as well.
                    await _started(process)
        await trio.lowlevel.checkpoint_if_cancelled()

    async def check(self, grammar: str, *, param: str | None) -> float:
        """Wait until a grammar is found to be good.

        A caller that is cancelled as it waits its turn leaves no work behind. A check that has
        begun goes on to its end, or to its bound: to kill the process would cost more.

        Returns:
            Seconds that it took to compile.

        Raises:
            InvalidRequest: ``chat.grammar.check`` refuses it, or it takes more time or memory than
                a grammar may.
            ServerStopping: ``run`` has ended.
            InternalError: the process does not start.
        """
        asked = _Check(grammar)
        try:
            await self._asked.send(asked)
        except trio.BrokenResourceError:
            raise ServerStopping(STOPPING) from None
        await asked.done.wait()
        match asked.result:
            case None, seconds:
                return seconds
            case str() as why, _:
                raise InvalidRequest(why, param=param)
            case error:
                assert isinstance(error, WireError)
                raise error

    async def _checked(self, process: WorkerContext, grammar: str) -> _Result:
        for again in (False, True):
            if (failed := await _started(process)) is not None:
                return failed
            try:
                with trio.move_on_after(LONGEST):
                    result: tuple[str | None, float] = await process.run_sync(
                        verdict, grammar, self._most_seconds, kill_on_cancel=True
                    )
                    return result
                return _refused("it takes too long to compile")
            except BrokenWorkerError as error:
                number = -(error.args[-1].exitcode or 0)
                _log.warning("the process that checks grammars was ended by signal %d", number)
                if number == SIGNAL:
                    return _refused("it takes too long to compile")
                if again or number in FAULTS:
                    return _refused("it is too large to compile")
            except MemoryError:
                return _refused("it is too large to compile")
            except Exception as error:
                _log.error(
                    "a grammar could not be checked for a reason that is ours", exc_info=error
                )
                return InternalError("the server failed; its log says why")
        raise AssertionError("the second time says something")


@dataclass(slots=True)
class _Check:
    grammar: str
    done: trio.Event = field(default_factory=trio.Event)
    result: _Result = field(default_factory=lambda: ServerStopping(STOPPING))


_Result = tuple[str | None, float] | WireError


def _refused(why: str) -> _Result:
    return f"the format of the answer cannot be held: {why}", 0.0


async def _started(process: WorkerContext) -> InternalError | None:
    """Start a process and wait for its vocabulary, unless one is there; what that takes counts
    for nobody's grammar."""
    if process.statistics().idle_workers:
        return None
    for _ in range(2):  # it may be killed from outside, too
        try:
            with trio.fail_after(LONGEST_START):
                await process.run_sync(is_there, kill_on_cancel=True)
            return None
        except (BrokenWorkerError, trio.TooSlowError, OSError) as error:
            _log.error("the process that checks grammars does not start", exc_info=error)
    return InternalError("the server failed; its log says why")
