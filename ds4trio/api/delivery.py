"""Answers to their client, as one JSON object or as server-sent events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

import trio
from quart import Response

from ds4trio.api.choices import Take
from ds4trio.api.sse import EventStreamBody, SendEvent, event_stream
from ds4trio.api.wire import encode, error_body, json_response
from ds4trio.errors import WireError
from ds4trio.events import GenerationEvent

__all__ = ["Answers", "Run", "deliver"]

Run = Callable[[Take], Awaitable[None]]
"""Makes all answers of a request, and tells of each event."""


class Answers(Protocol):
    """How a door writes the answers to one request."""

    def take(self, index: int, event: GenerationEvent) -> None:
        """More of one of them, not streamed."""
        ...

    def whole(self) -> dict[str, Any]:
        """All of them."""
        ...

    def begin(self) -> Iterable[dict[str, Any]]:
        """What comes before them, streamed."""
        ...

    def chunk(self, index: int, event: GenerationEvent) -> dict[str, Any] | None:
        """More of one of them, streamed; None where there is nothing to tell."""
        ...

    def end(self) -> Iterable[dict[str, Any]]:
        """What comes behind them, streamed."""
        ...


async def deliver(run: Run, answers: Answers, *, stream: bool, send_timeout: float) -> Response:
    """Make answers, and send them in the form that the client asked for.

    Args:
        send_timeout: seconds that an event of a stream may wait for the client.

    Raises:
        WireError: an answer failed that is not streamed. In a stream it is the last event, and
            there is no ``[DONE]``.
    """
    if not stream:

        async def take(index: int, event: GenerationEvent) -> None:
            answers.take(index, event)

        await run(take)
        return json_response(answers.whole())

    async def produce(send: SendEvent) -> None:
        # The answers of a stream take turns, so that each has the whole time to be sent.
        turns = trio.Lock()

        async def tell(index: int, event: GenerationEvent) -> None:
            if (chunk := answers.chunk(index, event)) is not None:
                async with turns:
                    await send(encode(chunk))

        try:
            for chunk in answers.begin():
                await send(encode(chunk))
            await run(tell)
        except WireError as error:
            await send(encode({"error": error_body(error)}))
            return
        for chunk in answers.end():
            await send(encode(chunk))
        await send(b"[DONE]")

    return event_stream(EventStreamBody(produce, send_timeout=send_timeout))
