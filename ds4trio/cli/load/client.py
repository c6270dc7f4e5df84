"""What the load generator wants of a client, whatever protocol it speaks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from ds4trio.errors import Ds4TrioError

__all__ = ["Answer", "Asking", "Client", "Connect", "RequestFailed"]


@dataclass(frozen=True, slots=True)
class Asking:
    """What every request of a load test has in common.

    Attributes:
        model: by name; None leaves the choice to the server.
        output_tokens: the longest answer.
    """

    model: str | None
    output_tokens: int
    temperature: float


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that came to its end.

    Attributes:
        pieces: ``trio.current_time()`` of every event that brought text.
        input_tokens, cached_tokens, output_tokens: as the server counts them; None where it does
            not say.
    """

    pieces: tuple[float, ...]
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None


class RequestFailed(Ds4TrioError):
    """There is no whole answer.

    Attributes:
        code: the server's, or one of ``connection_closed``, ``unreachable``, ``bad_answer``,
            ``error`` and ``http_<status>``.
        lost: the connection is of no more use.
    """

    def __init__(self, message: str, *, code: str, lost: bool) -> None:
        super().__init__(message)
        self.code = code
        self.lost = lost


class Client(Protocol):
    """One user's connection."""

    def begin(self) -> None:
        """The next request is the first of a new conversation."""

    async def ask(self, text: str) -> Answer:
        """Say something, and wait for the end of the answer.

        Raises:
            RequestFailed: see there whether the connection can still be used. After a
                cancellation it cannot.
        """


Connect = Callable[[], AbstractAsyncContextManager[Client]]
"""Opens a connection, and closes it on the way out. Entering raises Ds4TrioError in one line."""
