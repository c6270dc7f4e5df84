"""The answers to a chat completion on their way out: one object, or chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from ds4trio.api.accounts import timings_object, total_usage, usage_object
from ds4trio.events import (
    Finished,
    GenerationEvent,
    PrefillProgress,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    TokenText,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallEnded,
)

__all__ = ["ChatAnswer"]


class ChatAnswer:
    """The choices of one chat completion.

    Args:
        model: to answer with its name.
        choices: how many.
        logprobs: they were asked for.
        may_call: the model may call tools, so that an answer may have no text at all.
        with_usage: a stream's last chunk tells the usage.
    """

    def __init__(
        self, model: str, choices: int, *, logprobs: bool, may_call: bool, with_usage: bool
    ) -> None:
        self._head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }
        self._logprobs_asked = logprobs
        self._may_call = may_call
        self._with_usage = with_usage
        self._choices = [_Choice() for _ in range(choices)]
        self._began = time.monotonic()

    # -- not streamed

    def take(self, index: int, event: GenerationEvent) -> None:
        """More of a choice."""
        self._choices[index].take(event)

    def whole(self) -> dict[str, Any]:
        """The ``chat.completion``, once every choice is finished."""
        first = self._choices[0].finished
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [
                {
                    "index": index,
                    "message": choice.message(),
                    "logprobs": self._logprobs(choice.logprobs),
                    "finish_reason": choice.finished.reason,
                }
                for index, choice in enumerate(self._choices)
            ],
            "usage": self._usage(),
            "timings": timings_object(first),
            "ds4trio": first.timings,
        }

    # -- streamed

    def begin(self) -> Iterator[dict[str, Any]]:
        """The chunks that say who speaks."""
        delta = {"role": "assistant", "content": None if self._may_call else ""}
        for index in range(len(self._choices)):
            yield self._chunk(index, delta)

    def chunk(self, index: int, event: GenerationEvent) -> dict[str, Any] | None:
        """What a client is told of an event, if anything.

        The deltas of a choice joined are its message in ``whole``.
        """
        choice = self._choices[index]
        match event:
            case TextDelta():
                if not event.text and not event.logprobs:
                    return None
                choice.has_text = choice.has_text or bool(event.text)
                delta = {"content": event.text} if event.text else {}
                return self._chunk(index, delta, logprobs=self._logprobs(event.logprobs))
            case ReasoningDelta() if event.text:
                return self._chunk(index, {"reasoning_content": event.text})
            case ToolCallBegun():
                choice.calls += 1
                function = {"name": event.name, "arguments": ""}
                return self._call(index, event.index, id=event.id, function=function)
            case ToolCallArguments() if event.text:
                return self._call(index, event.index, function={"arguments": event.text})
            case PrefillProgress():
                return {**self._chunk(index, {}), "prompt_progress": self._progress(event)}
            case Finished():
                choice.finished = event
                # An answer that could have been calls, and became neither these nor text.
                silent = self._may_call and not choice.calls and not choice.has_text
                delta = {"content": ""} if silent else {}
                last = self._chunk(index, delta, finish_reason=event.reason)
                return {**last, "timings": timings_object(event)}
        return None

    def end(self) -> Iterator[dict[str, Any]]:
        """The chunk behind the choices, if the usage was asked for."""
        if self._with_usage:
            yield {
                **self._head,
                "object": "chat.completion.chunk",
                "choices": [],
                "usage": self._usage(),
                "ds4trio": self._choices[0].finished.timings,
            }

    def _call(self, index: int, number: int, **fields: Any) -> dict[str, Any]:
        kind = {"type": "function"} if "id" in fields else {}
        return self._chunk(index, {"tool_calls": [{"index": number, **kind, **fields}]})

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        *,
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> dict[str, Any]:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": [choice]}
        if self._with_usage:
            chunk["usage"] = None
        return chunk

    def _progress(self, event: PrefillProgress) -> dict[str, Any]:
        return {
            "total": event.total,
            "cache": event.cached,
            "processed": event.evaluated,
            "time_ms": int((time.monotonic() - self._began) * 1000),
        }

    # -- both

    def _usage(self) -> dict[str, Any]:
        return usage_object(total_usage([[choice.finished.usage for choice in self._choices]]))

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        if not self._logprobs_asked:
            return None
        return {
            "content": [
                {**_token(item.token), "top_logprobs": [_token(top) for top in item.top]}
                for item in tokens
            ],
            "refusal": None,
        }


class _Choice:
    """One answer: all of it, or, streamed, what has to be remembered of it."""

    def __init__(self) -> None:
        self.finished: Finished
        self.logprobs: list[TokenLogprob] = []
        self.has_text = False
        self.calls = 0
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._tool_calls: list[dict[str, Any]] = []

    def take(self, event: GenerationEvent) -> None:
        match event:
            case TextDelta():
                self._text.append(event.text)
                self.logprobs.extend(event.logprobs)
            case ReasoningDelta():
                self._reasoning.append(event.text)
            case ToolCallBegun():
                function = {"name": event.name, "arguments": ""}
                call = {"id": event.id, "type": "function", "function": function}
                self._tool_calls.append(call)
            case ToolCallEnded():
                self._tool_calls[event.index]["function"]["arguments"] = event.arguments
            case Finished():
                self.finished = event

    def message(self) -> dict[str, Any]:
        text = "".join(self._text)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if self._tool_calls and not text else text,
            "refusal": None,
        }
        if reasoning := "".join(self._reasoning):
            message["reasoning_content"] = reasoning
        if self._tool_calls:
            message["tool_calls"] = self._tool_calls
        return message


def _token(token: TokenText) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.bytes)}
