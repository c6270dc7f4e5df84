"""What an answer must look like: the grammar that the sampler holds it to."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable

import trio

from ds4trio.chat.dialect import Dialect, Rules
from ds4trio.chat.grammar import compose
from ds4trio.checking import GrammarChecks
from ds4trio.errors import InvalidRequest
from ds4trio.request import GenerationRequest

__all__ = ["Shaper"]

MOST_REMEMBERED = 4096
"""Grammars that were checked lately and need not be again; a hash of each is kept."""

FREE = "start: @answer"

FIRST = compose('start: "a"')
"""Has the engine make its vocabulary while the first grammar is checked."""

NOTICEABLE = 0.05
"""Seconds. Rows whose grammar the engine still compiles hold up a step, so what takes longer than
this is given as much time again before its request goes on."""


class Shaper:
    """Makes the grammar of a request, and has it checked before the engine sees it.

    Args:
        dialect: the model's.
        checks: runs elsewhere.
        announce: tells the engine of a grammar that a session will have, so that it compiles it
            in good time. Blocks.
    """

    def __init__(
        self, dialect: Dialect, *, checks: GrammarChecks, announce: Callable[[str], None]
    ) -> None:
        self._dialect = dialect
        self._checks = checks
        self._announce = announce
        self._announced_first = False
        self._checked: OrderedDict[bytes, None] = OrderedDict()
        self._one_announced_at_a_time = trio.CapacityLimiter(1)
        self._one_composed_at_a_time = trio.CapacityLimiter(1)

    async def grammar(self, request: GenerationRequest, prompt_tail: str) -> str:
        """The text of the grammar for ``SamplingParams``; empty where the answer is free.

        Raises:
            InvalidRequest: what is asked for cannot be held, or cannot be held together.
        """
        if request.format is None and not request.tools.known:
            return ""
        # Megabytes of schemas are looked through, also of those that are refused then.
        grammar = await trio.to_thread.run_sync(
            self._composed, request, prompt_tail, limiter=self._one_composed_at_a_time
        )
        if not grammar:
            return ""
        mark = hashlib.sha256(grammar.encode("utf-8", "surrogatepass")).digest()
        if mark in self._checked:
            await self._tell(grammar)
        else:
            await self._check(grammar)
            self._checked[mark] = None
        self._checked.move_to_end(mark)
        while len(self._checked) > MOST_REMEMBERED:
            self._checked.popitem(last=False)
        return grammar

    async def _check(self, grammar: str) -> None:
        if not self._announced_first:
            self._announced_first = True
            await self._tell(FIRST)
        seconds = await self._checks.check(grammar, param="format")
        # The engine compiles it without any bound, so it hears of those only that are within ours.
        await self._tell(grammar)
        if seconds > NOTICEABLE:
            await trio.sleep(seconds)

    async def _tell(self, grammar: str) -> None:
        await trio.to_thread.run_sync(
            self._announce, grammar, limiter=self._one_announced_at_a_time
        )

    def _composed(self, request: GenerationRequest, prompt_tail: str) -> str:
        """In a worker thread, one at a time. The text; empty where the answer is free."""
        rules = self._rules(request, prompt_tail)
        if rules is None:
            return ""
        if request.ignore_eos:
            raise InvalidRequest(
                "an answer of a given format ends where the format does; ignore_eos cannot be kept",
                param="ignore_eos",
            )
        start, formats = rules
        return compose(start, param="format", **formats)

    def _rules(self, request: GenerationRequest, prompt_tail: str) -> Rules | None:
        if request.prompt is None:
            return self._dialect.grammar_rules(request.tools, request.format, prompt_tail)
        return None if request.format is None else (FREE, {"answer": request.format})
