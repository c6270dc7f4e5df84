"""What has come for a session and was not read yet.

The coalescer puts tokens in without waiting; the request's task takes all that have piled up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import trio

from ds4trio.engine.step import SampledToken
from ds4trio.errors import WireError

__all__ = ["Delivery", "EndReason", "Mailbox", "Progress"]

EndReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a prompt is: tokens evaluated, and how many of those were found in the cache."""

    evaluated: int
    cached: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """Everything that has come since the last delivery.

    Attributes:
        tokens: in order; empty only with ``end``, ``progress`` or ``prompt``.
        rows: how many sessions shared the step of the last token.
        end: why no more will come, or None.
        progress: how far the prompt had come before the first of the tokens, if that is new.
        prompt: more of the prompt's tokens, where their log-probabilities are wanted; they come
            before ``tokens``.
    """

    tokens: list[SampledToken]
    rows: int
    end: EndReason | None
    progress: Progress | None = None
    prompt: Sequence[SampledToken] = ()


class Mailbox:
    """Tokens, and at last why no more will come. Who fills it sees to it that it stays small.

    Attributes:
        end: why no more will come, once that is so.
        error: or what went wrong.
    """

    def __init__(self) -> None:
        self.end: EndReason | None = None
        self.error: WireError | None = None
        self._tokens: list[SampledToken] = []
        self._prompt: list[SampledToken] = []
        self._rows = 0
        self._progress: Progress | None = None
        self._wake = trio.Event()

    def __len__(self) -> int:
        """Tokens that wait to be read."""
        return len(self._tokens) + len(self._prompt)

    def put(self, token: SampledToken, rows: int) -> None:
        """A token, drawn in a step of so many rows."""
        self._tokens.append(token)
        self._rows = rows
        self._wake.set()

    def tell_prompt(self, tokens: Sequence[SampledToken]) -> None:
        """More tokens of the prompt, with their log-probabilities."""
        if tokens:
            self._prompt.extend(tokens)
            self._wake.set()

    def tell(self, progress: Progress) -> None:
        """The prompt has come so far. Who has not read the word before gets only this one."""
        self._progress = progress
        self._wake.set()

    def close(self, end: EndReason, rows: int) -> None:
        """No more will come; the last token, put in or not, was drawn in a step of so many rows."""
        self.end = end
        self._rows = rows
        self._wake.set()

    def reopen(self) -> None:
        """More will come after all."""
        self.end = None

    def fail(self, error: WireError) -> None:
        """No more will come, and this is why. Tokens that came before can still be taken."""
        self.error = error
        self._wake.set()

    async def take(self) -> Delivery:
        """Wait until there is something, then take all of it.

        Raises:
            WireError: it has failed, and was read to its end.
        """
        while not (self._tokens or self._prompt or self._progress or self.end or self.error):
            self._wake = trio.Event()
            await self._wake.wait()
        await trio.lowlevel.checkpoint()
        if self.error is not None and not len(self):
            raise self.error
        delivery = Delivery(self._tokens, self._rows, self.end, self._progress, self._prompt)
        self._tokens, self._progress, self._prompt = [], None, []
        return delivery
