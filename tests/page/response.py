"""One scripted response: a log of events that any number of readers follow from any place, whether
or not a socket carries it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import trio

from tests.page.script import perform

__all__ = ["Event", "ScriptedResponse"]

Event = dict[str, Any]

FIGURES = {
    "queue_seconds": 0.01,
    "first_token_seconds": 0.25,
    "decode_seconds": 1.5,
    "tokens_per_second": 42.5,
    "mean_batch_size": 3.6,
}


class ScriptedResponse:
    """Attributes:
    id: as on the wire.
    conversation: the items it answers, and at its end its own.
    deaf: it does not listen to a cancel.
    """

    def __init__(self, response_id: str, conversation: list[dict[str, Any]]) -> None:
        self.id = response_id
        self.conversation = conversation
        self.deaf = False
        self._events: list[Event] = []
        self._numbers = 0
        self._text = ""
        self._tokens = 0
        self._reasoning_tokens = 0
        self._ended = False
        self._news = trio.Event()
        self._scope = trio.CancelScope()

    # -- what a script may do

    def emit(self, kind: str, **fields: Any) -> None:
        event: Event = {"type": kind, **fields}
        if kind.startswith("response."):
            event["sequence_number"] = self._numbers
            self._numbers += 1
        self._events.append(event)
        self._news.set()
        self._news = trio.Event()

    def say(self, text: str) -> None:
        self._text += text
        self._delta("response.output_text.delta", text)

    def think(self, text: str) -> None:
        self._reasoning_tokens += 1
        self._delta("response.reasoning_text.delta", text)

    # -- its life

    async def run(self) -> None:
        last = self.conversation[-1]
        begun = last["content"] if last["role"] == "assistant" else ""
        asked = [item for item in self.conversation if item["role"] == "user"]
        question = asked[-1]["content"]
        in_progress = {"id": self.id, "status": "in_progress"}
        self.emit("response.created", response=in_progress)
        self.emit("response.in_progress", response=in_progress)
        with self._scope:
            await perform(self, question, begun)
        self._end(question)

    def cancel(self) -> bool:
        """Whether there was something to end."""
        if not self.deaf:
            self._scope.cancel()
        return not self._ended

    async def follow(self, after: int) -> AsyncIterator[Event]:
        """Its events, to the last, from the one after this sequence number."""
        at = 0
        while True:
            while at < len(self._events):
                event = self._events[at]
                at += 1
                if event.get("sequence_number", after + 1) > after:
                    yield event
            if self._ended:
                return
            await self._news.wait()

    def _delta(self, kind: str, text: str) -> None:
        self._tokens += 1
        self.emit(kind, item_id="item_1", delta=text, ds4trio={"tokens": 1, "batch_size": 4})

    def _end(self, question: str) -> None:
        cancelled = self._scope.cancelled_caught
        status = "completed"
        reason = None
        if cancelled or "cut" in question:
            status, reason = "incomplete", "cancelled" if cancelled else "max_output_tokens"
        elif "fail" in question:
            status = "failed"
        self.conversation = [
            *self.conversation,
            {"type": "message", "role": "assistant", "content": self._text},
        ]
        self._ended = True
        failure = {"code": "batch_failed", "message": "The batch of this step failed."}
        usage = {
            "input_tokens": 1000,
            "input_tokens_details": {"cached_tokens": 250},
            "output_tokens": self._tokens,
            "output_tokens_details": {"reasoning_tokens": self._reasoning_tokens},
        }
        self.emit(
            f"response.{status}",
            response={
                "id": self.id,
                "status": status,
                "error": failure if status == "failed" else None,
                "incomplete_details": reason and {"reason": reason},
                "usage": usage,
                "ds4trio": FIGURES,
            },
        )
