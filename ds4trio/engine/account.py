"""One sequence in the ledger: what is committed of it, and what the steps in flight will add."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ds4trio.engine.prefix_cache import PrefixCache
from ds4trio.engine.step import EngineInfo, SampledToken, SamplingParams, StepItem
from ds4trio.errors import (
    ContextLengthExceeded,
    InternalError,
    TokenOutOfVocabulary,
    WireError,
)

__all__ = ["Account"]


@dataclass(slots=True, eq=False)
class Account:
    """A sequence as the ledger knows it. Its pages are the pool's business.

    Attributes:
        sampling: how it draws.
        root: digest that its beginnings are named from.
        adapter: the name of the one it is evaluated with; empty for none.
        tokens: ids of the positions that are committed.
        pending: the token drawn last, not yet evaluated; None where there is none.
        digests: names of its full pages, in order.
        end: its length when the steps in flight have succeeded, and every guess in them.
        draws: there will be a pending token then.
    """

    sampling: SamplingParams
    root: bytes
    adapter: str = ""
    tokens: array[int] = field(default_factory=lambda: array("q"))
    pending: int | None = None
    digests: list[bytes] = field(default_factory=list)
    end: int = 0
    draws: bool = False

    def fault(self, item: StepItem, info: EngineInfo) -> WireError | None:
        """Why the item cannot follow the steps in flight, or None if it can."""
        if not item.tokens and not self.draws:
            return InternalError(f"sequence {item.sequence} has no token to evaluate")
        follows = () if item.follows is None else (item.follows,)
        for token in (*item.tokens, *follows):
            if not 0 <= token < info.vocab_size:
                return TokenOutOfVocabulary(
                    f"token {token} is not in the vocabulary of {info.vocab_size}"
                )
        end = self.end + item.most
        if end > info.longest_sequence:
            return ContextLengthExceeded(
                f"{end} tokens do not fit: a sequence can hold {info.longest_sequence}"
            )
        return None

    def cached(self, tokens: Sequence[int], digests: list[bytes]) -> None:
        """It goes on with these tokens, whose pages were in the prefix cache under these names."""
        self.digests.extend(digests)
        self.tokens.extend(tokens)
        self.end = len(self.tokens)

    def planned(self, item: StepItem) -> None:
        """The item is part of a step that is prepared."""
        self.end += item.most
        self.draws = item.sample

    def committed(self, item: StepItem, sampled: Sequence[SampledToken]) -> None:
        """The oldest item in flight counts, with the tokens that came of it."""
        if item.tokens:
            self.tokens.extend(item.tokens)
        else:
            assert self.pending is not None
            self.tokens.append(self.pending)
        self.tokens.extend(token.token for token in sampled[:-1])
        self.pending = sampled[-1].token if sampled else None
        self.end -= item.most - item.evaluated(len(sampled))  # guesses that did not hold

    def rolled_back(self) -> None:
        """No step is in flight any more; what was committed before stays."""
        self.end = len(self.tokens)
        self.draws = self.pending is not None

    def name_full_pages(self, page_size: int) -> Iterator[tuple[int, bytes]]:
        """Places in its table and digests of the pages that have become full. Names them once."""
        for number in range(len(self.digests), len(self.tokens) // page_size):
            before = self.digests[-1] if self.digests else self.root
            page_tokens = self.tokens[number * page_size : (number + 1) * page_size]
            self.digests.append(PrefixCache.extend(before, page_tokens))
            yield number, self.digests[-1]
