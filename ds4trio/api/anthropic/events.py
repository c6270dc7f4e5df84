"""From generation events to those of Anthropic's Messages.

A message that is not streamed is put together of the same events (``WholeMessage``), so the two
cannot differ.
"""

from __future__ import annotations

import uuid
from typing import Any, Literal

import msgspec

from ds4trio.events import (
    Finished,
    GenerationEvent,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallEnded,
    Usage,
)

__all__ = ["PING", "SIGNATURE", "MessageEvents", "WholeMessage", "WireEvent"]

WireEvent = dict[str, Any]
"""An event as it is sent; ``type`` is its name too."""

PING: WireEvent = {"type": "ping"}

SIGNATURE = "ds4trio"
"""Of every thinking block. Clients want one to send back; nobody checks it here."""


class MessageEvents:
    """The events of one message.

    Args:
        model: as it is called in the message.
        prompt_tokens: of the prompt.
        max_tokens: that the request allowed; 0 evaluates the prompt and tells nothing of an answer.
        show_thinking: False keeps what was thought, and says only that there was something.
        edits_context: the request had ``context_management``; nothing is ever edited.
    """

    def __init__(
        self,
        model: str,
        *,
        prompt_tokens: int,
        max_tokens: int,
        show_thinking: bool = True,
        edits_context: bool = False,
    ) -> None:
        self._model = model
        self._prompt_tokens = prompt_tokens
        self._max_tokens = max_tokens
        self._show_thinking = show_thinking
        edits: WireEvent = {"context_management": {"applied_edits": []}}
        self._context = edits if edits_context else {}
        self._open: Literal["text", "thinking", "tool_use"] | None = None
        self._index = -1
        self._arguments_sent = 0

    def begin(self) -> list[WireEvent]:
        """Before anything is generated."""
        message: WireEvent = {
            "id": f"msg_{uuid.uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "stop_details": None,
            "usage": {
                **_usage(Usage(self._prompt_tokens, 0)),
                "service_tier": "standard",
            },
        }
        return [{"type": "message_start", "message": message}, PING]

    def take(self, event: GenerationEvent) -> list[WireEvent]:
        """What an event becomes."""
        if isinstance(event, Finished):
            return self._finish(event)
        if not self._max_tokens:
            return []
        match event:
            case TextDelta(text=text) if text:
                return [*self._in_text(), self._delta("text_delta", text=text)]
            case ReasoningDelta(text=text) if text:
                return self._thinking(text)
            case ToolCallBegun():
                return [*self._close(), self._start("tool_use", _tool_use(event))]
            case ToolCallArguments(text=text) if text:
                return [self._arguments(text)]
            case ToolCallEnded(arguments=arguments):
                rest = arguments[self._arguments_sent :]
                return [*([self._arguments(rest)] if rest else ()), *self._close()]
            case _:
                return []

    def _in_text(self) -> list[WireEvent]:
        if self._open == "text":
            return []
        return [*self._close(), self._start("text", {"text": ""})]

    def _thinking(self, text: str) -> list[WireEvent]:
        events: list[WireEvent] = []
        if self._open != "thinking":
            empty = {"thinking": "", "signature": ""}
            events = [*self._close(), self._start("thinking", empty)]
        if self._show_thinking:
            events.append(self._delta("thinking_delta", thinking=text))
        return events

    def _arguments(self, text: str) -> WireEvent:
        self._arguments_sent += len(text)
        return self._delta("input_json_delta", partial_json=text)

    def _start(
        self, kind: Literal["text", "thinking", "tool_use"], block: dict[str, Any]
    ) -> WireEvent:
        self._open = kind
        self._index += 1
        self._arguments_sent = 0
        return {
            "type": "content_block_start",
            "index": self._index,
            "content_block": {"type": kind, **block},
        }

    def _delta(self, kind: str, **fields: str) -> WireEvent:
        return {
            "type": "content_block_delta",
            "index": self._index,
            "delta": {"type": kind, **fields},
        }

    def _close(self) -> list[WireEvent]:
        if self._open is None:
            return []
        signed = [self._delta("signature_delta", signature=SIGNATURE)]
        events = signed if self._open == "thinking" else []
        self._open = None
        return [*events, {"type": "content_block_stop", "index": self._index}]

    def _finish(self, finished: Finished) -> list[WireEvent]:
        usage = finished.usage
        if not self._max_tokens:
            usage = Usage(usage.input_tokens, 0, usage.cached_tokens)
        delta = {
            "type": "message_delta",
            "delta": {
                "stop_reason": self._stop_reason(finished),
                "stop_sequence": finished.stop,
                "stop_details": None,
            },
            "usage": _usage(usage),
            **self._context,
            "ds4trio": finished.timings,
        }
        return [*self._close(), delta, {"type": "message_stop"}]

    def _stop_reason(self, finished: Finished) -> str:
        if not self._max_tokens:
            return "max_tokens"
        if finished.stop is not None:
            return "stop_sequence"
        if finished.reason == "length":
            full = finished.usage.output_tokens < self._max_tokens
            return "model_context_window_exceeded" if full else "max_tokens"
        return "tool_use" if finished.reason == "tool_calls" else "end_turn"


class WholeMessage:
    """A message out of its events."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {}
        self._parts: list[str] = []

    def add(self, event: WireEvent) -> None:
        """The next event, in the order in which they would be sent."""
        content = self._message.get("content", ())
        match event["type"]:
            case "message_start":
                self._message = event["message"]
            case "content_block_start":
                content.append(event["content_block"])
                self._parts = []
            case "content_block_delta":
                self._take(content[-1], event["delta"])
            case "content_block_stop":
                self._settle(content[-1])
            case "message_delta":
                self._message["usage"].update(event["usage"])
                self._message.update(event["delta"])
                beyond = ("context_management", "ds4trio")
                self._message.update({name: event[name] for name in beyond if name in event})

    def message(self) -> dict[str, Any]:
        """The message, once all events are there."""
        return self._message

    def _take(self, block: dict[str, Any], delta: dict[str, Any]) -> None:
        kind, text = (value for value in delta.values())
        if kind == "signature_delta":
            block["signature"] = text
        else:
            self._parts.append(text)

    def _settle(self, block: dict[str, Any]) -> None:
        text = "".join(self._parts)
        if block["type"] == "tool_use":
            block["input"] = _object(text)
        else:
            block[block["type"]] = text


def _object(arguments: str) -> dict[str, Any]:
    """The arguments of a call; those that a limit has cut are none."""
    try:
        return msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        return {}


def _tool_use(event: ToolCallBegun) -> dict[str, Any]:
    # an identifier of the kind that clients know; they send it back as it is
    return {"id": f"toolu_{event.id.removeprefix('call_')}", "name": event.name, "input": {}}


def _usage(usage: Usage) -> dict[str, Any]:
    """Anthropic counts what was found in the cache apart from the rest of the prompt."""
    return {
        "input_tokens": usage.input_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }
