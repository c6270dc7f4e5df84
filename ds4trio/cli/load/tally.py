"""What one measurement has counted, while it runs and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ds4trio.cli.load.client import Answer

__all__ = ["Request", "Tally"]


@dataclass(frozen=True, slots=True)
class Request:
    """One that was answered to the end. Times are of ``trio.current_time()``, in seconds.

    Attributes:
        turn: 0 for the first of a conversation.
        due: when it was sent; of an arrival in an open loop, when it came.
        ended: when the end of the answer was there.
    """

    turn: int
    due: float
    ended: float
    answer: Answer

    @property
    def output_tokens(self) -> int:
        """As the server counts them; where it does not, an event of text is taken for a token."""
        counted = self.answer.output_tokens
        return len(self.answer.pieces) if counted is None else counted


@dataclass(slots=True)
class Tally:
    """What one measurement has counted so far, or several of them together.

    Attributes:
        seconds: from its start to the end of the latest request, failed or not.
        errors: failed requests, by code.
        message: what the server said of the latest of them.
        complete: it came to its end, and was not cut short.
    """

    requests: list[Request] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    message: str | None = None
    seconds: float = 0.0
    complete: bool = False

    @property
    def output_tokens(self) -> int:
        return sum(request.output_tokens for request in self.requests)

    @classmethod
    def merged(cls, tallies: Sequence[Tally]) -> Tally:
        """All of them as if measured in one, their times one after the other."""
        whole = cls(complete=bool(tallies))
        for tally in tallies:
            whole.requests += tally.requests
            whole.errors += tally.errors
            whole.message = tally.message or whole.message
            whole.seconds += tally.seconds
            whole.complete &= tally.complete
        return whole
