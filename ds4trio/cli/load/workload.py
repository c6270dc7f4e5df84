"""What the users of a load test say, and when they arrive: seeded, so that it can be repeated."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from ds4trio.cli.load.prompts import Prompts, RandomWords

__all__ = ["Conversation", "Workload", "poisson_arrivals"]

Conversation = tuple[str, ...]
"""What one user says, turn by turn."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The shape of the conversations. All sizes of prompts are in tokens, about.

    Attributes:
        prompt_tokens: of the first turn, the shared prefix included.
        output_tokens: the longest answer, in tokens.
        shared_prefix: tokens that all conversations begin with.
        turns: requests in a conversation.
        turn_tokens: of every later turn.
        seed: of the prompts, and of the arrivals.
        prompts: writes them.
    """

    prompt_tokens: int = 64
    output_tokens: int = 64
    shared_prefix: int = 0
    turns: int = 1
    turn_tokens: int = 16
    temperature: float = 0.0
    seed: int = 0
    prompts: Prompts = field(default_factory=RandomWords)

    def conversations(self, *stream: object) -> Iterator[Conversation]:
        """Without end. The same stream (a few names or numbers) has the same conversations."""
        source = self.source("words", *stream)
        write = self.prompts
        prefix = write.shared(self.source("prefix"), self.shared_prefix)
        own = self.prompt_tokens - self.shared_prefix
        while True:
            first = write.first(source, own)
            later = (write.later(source, self.turn_tokens) for _ in range(self.turns - 1))
            yield (f"{prefix} {first}" if prefix else first, *later)

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
