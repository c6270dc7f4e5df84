"""What an answer must look like: the grammar that the sampler holds it to."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Collection

import trio
from llguidance import LLTokenizer

from ds4trio.chat.dialect import Dialect, Rules
from ds4trio.chat.grammar import check, compose
from ds4trio.chat.grammar_tokens import make_grammar_tokens
from ds4trio.chat.tokenizer import Tokenizer
from ds4trio.errors import InvalidRequest
from ds4trio.request import GenerationRequest

__all__ = ["Shaper"]

MOST_REMEMBERED = 4096
"""Grammars that were checked lately and need not be again; a hash of each is kept."""

FREE = "start: @answer"


class Shaper:
    """Makes the grammar of a request, and checks it before the engine sees it.

    Args:
        tokenizer, dialect: the model's.
        vocab_size: of the model.
        stop_tokens: ids that end an answer.
        announce: tells the engine of a grammar that a session will have, so that it compiles it
            in good time. Blocks.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        dialect: Dialect,
        *,
        vocab_size: int,
        stop_tokens: Collection[int],
        announce: Callable[[str], None],
    ) -> None:
        self._tokenizer = tokenizer
        self._dialect = dialect
        self._vocab_size = vocab_size
        self._stop_tokens = stop_tokens
        self._announce = announce
        self._tokens: LLTokenizer | None = None  # made by the first thread that needs it
        self._checked: OrderedDict[bytes, None] = OrderedDict()
        self._one_at_a_time = trio.CapacityLimiter(1)
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
            await trio.to_thread.run_sync(self._announce, grammar, limiter=self._one_at_a_time)
        else:
            await trio.to_thread.run_sync(self._check, grammar, limiter=self._one_at_a_time)
            self._checked[mark] = None
        self._checked.move_to_end(mark)
        while len(self._checked) > MOST_REMEMBERED:
            self._checked.popitem(last=False)
        return grammar

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

    def _check(self, grammar: str) -> None:
        """In a worker thread, one at a time."""
        self._announce(grammar)
        if self._tokens is None:
            self._tokens = make_grammar_tokens(
                self._tokenizer, size=self._vocab_size, ends=self._stop_tokens
            )
        check(grammar, self._tokens, param="format")
