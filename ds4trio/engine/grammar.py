"""Masks of the tokens that a grammar allows, worked out beside the network.

Where a sequence stands in its grammar follows from the tokens of its answer alone, so that it goes
on after preemption, a failed step or a new process as if nothing had been. A matcher only remembers
what it has taken, to take the rest.
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer

from ds4trio.chat.grammar import compile_grammar, why_not

__all__ = ["Bound", "GrammarFault", "Grammars", "Mask"]

KEPT = 8
"""Compiled grammars that are kept for sequences to come; answers of one program share theirs."""


class GrammarFault(Exception):
    """A sequence cannot be held to its grammar any further; the message says why."""


class Grammars:
    """The grammars of one runner's sequences, compiled in threads of their own.

    Args:
        load: makes the vocabulary, once, when the first grammar comes; it may take seconds.
        vocab_size: how wide masks are.
    """

    def __init__(self, load: Callable[[], LLTokenizer] | None, vocab_size: int) -> None:
        self._load = load
        self._vocab_size = vocab_size
        self._tokens: LLTokenizer | None = None
        self._loading, self._choosing = threading.Lock(), threading.Lock()
        self._compiled: OrderedDict[str, Future[LLMatcher]] = OrderedDict()
        # Their threads are started when there is work.
        self._compilers = ThreadPoolExecutor(2, "grammars")
        self._masker = ThreadPoolExecutor(1, "masks")

    def begin(self, grammar: str) -> Future[LLMatcher]:
        """Have it compiled, unless it is or was. Returns at once; any thread may call it."""
        with self._choosing:
            found = self._compiled.pop(grammar, None)
            if found is None:
                found = self._compilers.submit(self._compile, grammar)
            self._compiled[grammar] = found
            while len(self._compiled) > KEPT:
                self._compiled.popitem(last=False)
        return found

    def bind(self, grammar: str) -> Bound:
        """For one sequence at the beginning of its answer. Returns at once."""
        return Bound(self.begin(grammar), self._vocab_size)

    def masks(
        self, wanted: Sequence[tuple[Bound, array[int], int]]
    ) -> Future[list[list[Mask] | Exception]]:
        """Start ``Bound.masks`` for the rows of a step, as one task: a mask takes less time than a
        thread takes to wake up. The result has what each returned or raised."""
        return self._masker.submit(_all_masks, wanted)

    def _compile(self, grammar: str) -> LLMatcher:
        with self._loading:
            if self._tokens is None:
                if self._load is None:
                    raise GrammarFault("this engine has no vocabulary for grammars")
                self._tokens = self._load()
        matcher = compile_grammar(grammar, self._tokens)
        if (error := why_not(matcher)) is not None:
            raise GrammarFault(error)
        return matcher


def _all_masks(wanted: Sequence[tuple[Bound, array[int], int]]) -> list[list[Mask] | Exception]:
    masks: list[list[Mask] | Exception] = []
    for bound, output, guesses in wanted:
        try:
            masks.append(bound.masks(output, guesses))
        except Exception as error:  # whatever it is, it is this row's alone
            masks.append(error)
    return masks


Mask = torch.Tensor | None
"""bool [vocab_size], true where a token may be drawn; None after a guess that cannot hold, where
it does not matter what is drawn."""


@dataclass(slots=True, eq=False)
class Bound:
    """One sequence's place in its grammar. For one thread at a time."""

    _compiled: Future[LLMatcher]
    _vocab_size: int
    _matcher: LLMatcher | None = None
    _taken: array[int] | None = None

    def masks(self, output: array[int], guesses: int) -> list[Mask]:
        """What may be drawn after the certain tokens, and after each guess if it holds.

        Args:
            output: int64 ids of the answer so far, and the guesses behind it.
            guesses: how many of them there are.

        Returns:
            1 + guesses masks.

        Raises:
            GrammarFault: the grammar has a fault, has become too complex, or allows nothing.
        """
        certain = output[: len(output) - guesses]
        matcher = self._at(certain)
        masks: list[Mask] = [self._mask(matcher)]
        tried = 0
        for guess in output[len(certain) :]:
            if matcher.is_stopped():
                masks.append(masks[-1])  # nothing but ends from here on
                continue
            if matcher.try_consume_tokens([guess]) == 0:
                break
            tried += 1
            masks.append(self._mask(matcher))
        if tried and not matcher.rollback(tried):
            self._matcher = None  # some rules cannot be left again
        return masks + [None] * (1 + guesses - len(masks))

    def _at(self, output: array[int]) -> LLMatcher:
        """The matcher after these tokens; those after the grammar's end do not count."""
        matcher, taken = self._matcher, self._taken
        if matcher is None or taken is None or output[: len(taken)] != taken:
            matcher, taken = self._compiled.result().deep_copy(), array("q")
        new = output[len(taken) :]
        if len(new) and not matcher.is_stopped():
            count = matcher.try_consume_tokens(new.tolist())
            taken = taken + new[:count]
            if count < len(new) and not matcher.is_stopped():
                raise GrammarFault(why_not(matcher) or "the answer has left its grammar")
        if (error := why_not(matcher)) is not None:
            raise GrammarFault(error)
        self._matcher, self._taken = matcher, taken
        return matcher

    def _mask(self, matcher: LLMatcher) -> torch.Tensor:
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        if (error := why_not(matcher)) is not None:
            raise GrammarFault(error)
        allowed = np.unpackbits(bits, count=self._vocab_size, bitorder="little")
        if not allowed.any():
            raise GrammarFault("no token may follow")
        return torch.from_numpy(allowed.view(np.bool_))
