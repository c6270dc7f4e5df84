"""What a process does that is there to check grammars, and to be killed where one is too much.

``ds4trio.checking`` starts it. It has the vocabulary and nothing else of the server, so it neither
imports torch nor Trio. A compilation cannot be interrupted and no limit of the library bounds it in
full, so the system is asked for the bounds: of processor time by a timer whose signal ends the
process, of memory by its address space, of depth by its stack.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Collection

from llguidance import LLTokenizer

from ds4trio.chat.grammar import check
from ds4trio.chat.grammar_tokens import make_grammar_tokens
from ds4trio.chat.tokenizer import Tokenizer
from ds4trio.errors import InvalidRequest

if sys.platform != "win32":
    import resource

__all__ = ["MOST_MEMORY", "MOST_SECONDS", "SIGNAL", "begin", "is_swollen", "is_there", "verdict"]

MOST_SECONDS = 2.0
"""Of a processor, for one grammar. Those of more than ``grammar.SLOWEST`` are refused as well, but
leave the process alone, which takes some time to start."""

SIGNAL = None if sys.platform == "win32" else signal.SIGPROF
"""Ends the process at ``MOST_SECONDS``."""

MOST_MEMORY = 256 << 20
"""Bytes that a grammar may take; the engine holds several."""

SWOLLEN = 96 << 20
"""Bytes more than at its beginning that the process may keep between two grammars."""

STACK = 6 << 20
"""Bytes. The engine compiles in threads, which have 8 MiB: what fits here fits there."""

_tokens: LLTokenizer | None = None
_memory_at_first = 0


def begin(source: str, size: int, ends: Collection[int], memory: int) -> None:
    """Make the vocabulary and set the bounds. Once, before anything else.

    Args:
        source: of the ``tokenizer.json``.
        size, ends: as for ``make_grammar_tokens``.
        memory: bytes that a grammar may take.
    """
    global _tokens, _memory_at_first
    if sys.platform != "win32":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the server decides, as for the engine
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _tokens = make_grammar_tokens(Tokenizer(source), size=size, ends=ends)
    _memory_at_first = _memory()[1]
    if sys.platform == "linux":
        _lower(resource.RLIMIT_AS, _memory()[0] + memory)
        _lower(resource.RLIMIT_STACK, STACK)


def is_there() -> None:
    """Do nothing, once ``begin`` is done."""


def verdict(grammar: str, seconds: float) -> tuple[str | None, float]:
    """Why a grammar is refused, None where it is not, and the seconds that this has taken.

    Args:
        grammar: what ``compose`` returned.
        seconds: of a processor, after which the process ends.
    """
    assert _tokens is not None
    began = time.monotonic()
    _limit_processor(seconds)
    try:
        check(grammar, _tokens, param=None)
        error = None
    except InvalidRequest as refused:
        error = refused.message
    finally:
        _limit_processor(0.0)
    return error, time.monotonic() - began


def is_swollen() -> bool:
    """Whether grammars have left so much memory behind that a new process is due."""
    return _memory()[1] > _memory_at_first + SWOLLEN


def _limit_processor(seconds: float) -> None:
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _lower(limit: int, to: int) -> None:
    if sys.platform != "win32":
        soft, hard = resource.getrlimit(limit)
        known = [bound for bound in (soft, hard, to) if bound != resource.RLIM_INFINITY]
        resource.setrlimit(limit, (min(known), hard))


def _memory() -> tuple[int, int]:
    """Bytes of the address space, and those resident; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as told:
            pages, resident = map(int, told.read().split()[:2])
    except OSError:
        return 0, 0
    size = os.sysconf("SC_PAGE_SIZE")
    return pages * size, resident * size
