"""What the users of a load test say, and when they arrive: seeded, so that it can be repeated."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

__all__ = ["Conversation", "Workload", "poisson_arrivals"]

_NOUNS: Final = """
    time year people way day man thing woman life child world school state family student group
    country problem hand part place case week company system program question work government
    number night point home water room mother area money story fact month lot right study book
    eye job word business issue side kind head house service friend father power hour game line
    end member law car city name president team minute idea body information back parent face
    others level office door health person art war history party result change morning reason
    research girl guy moment air teacher force education
"""
WORDS: Final = tuple(_NOUNS.split())
"""Common nouns: nearly every vocabulary has each of them, with its space, as one token."""

WISH: Final = "Tell a very long story with these words."
WISH_WORDS: Final = len(WISH.split()) + 2
"""Its size in tokens, about: the words, the full stop and a line break."""

Conversation = tuple[str, ...]
"""What one user says, turn by turn."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The shape of the conversations. All sizes of prompts are in words, about a token each.

    Attributes:
        prompt_tokens: of the first turn, the shared prefix included.
        output_tokens: the longest answer, in tokens.
        shared_prefix: words that all conversations begin with.
        turns: requests in a conversation.
        turn_tokens: of every later turn.
        seed: of the words, and of the arrivals.
    """

    prompt_tokens: int = 64
    output_tokens: int = 64
    shared_prefix: int = 0
    turns: int = 1
    turn_tokens: int = 16
    temperature: float = 0.0
    seed: int = 0

    def conversations(self, *stream: object) -> Iterator[Conversation]:
        """Without end. The same stream (a few names or numbers) has the same conversations."""
        source = self.source("words", *stream)
        prefix = _words(self.source("prefix"), self.shared_prefix)
        own = self.prompt_tokens - self.shared_prefix
        while True:
            first = " ".join([*prefix, _prompt(source, own)])
            later = (_prompt(source, self.turn_tokens) for _ in range(self.turns - 1))
            yield (first, *later)

    def source(self, *stream: object) -> random.Random:
        """Random numbers of their own for whatever the stream names."""
        return random.Random(" ".join(map(str, (self.seed, *stream))))


def poisson_arrivals(rate: float, source: random.Random) -> Iterator[float]:
    """The times of a Poisson process, in seconds from its start, without end.

    Args:
        rate: mean arrivals in a second.
    """
    now = 0.0
    while True:
        now += source.expovariate(rate)
        yield now


def _prompt(source: random.Random, size: int) -> str:
    """Random words, then what to do with them; a small prompt is words alone."""
    if size < 2 * WISH_WORDS:
        return " ".join(_words(source, max(size, 1)))
    return " ".join(_words(source, size - WISH_WORDS)) + f".\n{WISH}"


def _words(source: random.Random, count: int) -> list[str]:
    return source.choices(WORDS, k=count)
