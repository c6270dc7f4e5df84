"""Generation events to events of the Responses API, once for every door that speaks it."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from ds4trio.api.responses.items import Item, new_id
from ds4trio.api.responses.object import response_object, usage_object
from ds4trio.api.responses.open_item import OpenItem
from ds4trio.api.responses.request import wants_logprobs
from ds4trio.api.schemas.responses import ResponseCreate
from ds4trio.errors import WireError
from ds4trio.generate import (
    Finished,
    GenerationEvent,
    PrefillProgress,
    PromptLogprobs,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    TokenText,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallEnded,
    Usage,
)

__all__ = ["Event", "ResponseEvents"]

Event = dict[str, Any]


class ResponseEvents:
    """The events of one response, in order, their sequence numbers rising by one from zero.

    Call ``begin`` once, ``take`` for each event of the generator (its ``Finished`` ends the
    response), and if none ends it, exactly one of ``cut`` and ``failed``.

    Args:
        model: its name in the response.
        stored: what the response says of that.
        stream_id: of the lane, echoed on every event.

    Attributes:
        id: of the response.
        response: the object as it is now; the final one when the response has ended. It is
            replaced and never changed.
        output_tokens, reasoning_tokens: how many have come.
    """

    def __init__(
        self,
        wanted: ResponseCreate,
        model: str,
        *,
        stored: bool = False,
        stream_id: str | None = None,
    ) -> None:
        self.id = new_id("resp")
        self.response = response_object(self.id, wanted, model, stored=stored)
        self.output_tokens = 0
        self.reasoning_tokens = 0
        self._stream_id = stream_id
        self._logprobs = wants_logprobs(wanted)
        self._sequence_number = 0
        self._output: list[Item] = []
        self._open: OpenItem | None = None
        self._unsaid: list[dict[str, Any]] = []  # log-probabilities of tokens without text yet

    @property
    def ended(self) -> bool:
        """The response has had its last event."""
        return self.response["status"] not in ("queued", "in_progress")

    def begin(self, *, queued: bool = False) -> list[Event]:
        """Created, and in progress; or queued, and ``started`` must follow."""
        if queued:
            self._update(status="queued")
        kind = "response.queued" if queued else "response.in_progress"
        return [
            self._event("response.created", response=self.response),
            self._event(kind, response=self.response),
        ]

    def started(self) -> list[Event]:
        """A response that was queued is in progress now."""
        self._update(status="in_progress")
        return [self._event("response.in_progress", response=self.response)]

    def take(self, event: GenerationEvent) -> list[Event]:
        """What the generator has told; nothing while a character is incomplete."""
        match event:
            case TextDelta():
                return self._text(event)
            case ReasoningDelta():
                self.output_tokens += event.tokens
                self.reasoning_tokens += event.tokens
                return self._delta("reasoning", event.text, _extra(event)) if event.text else []
            case ToolCallBegun():
                events = self._close("completed")
                self._unsaid = []
                return [*events, *self._add_call(event)]
            case ToolCallArguments():
                self.output_tokens += event.tokens
                return self._delta("function_call", event.text, _extra(event))
            case ToolCallEnded():
                # What is no JSON may have been cut by a limit, which only Finished tells.
                return self._close("completed") if _is_json(event.arguments) else []
            case PrefillProgress():
                return [self._event("response.ds4trio.prefill", **_progress(event))]
            case Finished():
                return self.finish(event)
            case PromptLogprobs():
                return []  # this API has no place for them, and asks for none

    def finish(self, finished: Finished) -> list[Event]:
        """The end that the model or a limit of tokens made."""
        usage = usage_object(finished.usage)
        self._update(usage=usage, ds4trio=msgspec.to_builtins(finished.timings))
        if finished.reason == "length":
            return self._end("incomplete", reason="max_output_tokens")
        return self._end("completed")

    def cut(
        self, reason: str, input_tokens: int, *, cached_tokens: int = 0, status: str = "incomplete"
    ) -> list[Event]:
        """The end that a client made: ``cancelled``, ``steered``."""
        used = Usage(input_tokens, self.output_tokens, cached_tokens, self.reasoning_tokens)
        self._update(usage=usage_object(used))
        return self._end(status, reason=reason)

    def warmed(self, usage: Usage) -> list[Event]:
        """The end of a response that was to generate nothing."""
        self._update(status="completed", completed_at=int(time.time()), usage=usage_object(usage))
        return [self._event("response.completed", response=self.response)]

    def failed(self, error: WireError) -> list[Event]:
        """The end that a fault made. What was written is in the response, as incomplete."""
        events = self._close("incomplete")
        self._update(
            status="failed",
            error={"code": error.code, "message": error.message},
            output=list(self._output),
        )
        return [*events, self._event("response.failed", response=self.response)]

    def unstored(self, last: list[Event]) -> list[Event]:
        """The same last events, of a response that could not be stored after all."""
        self._update(store=False)
        return [
            {**event, "response": self.response} if "response" in event else event for event in last
        ]

    # -- items

    def _text(self, event: TextDelta) -> list[Event]:
        self.output_tokens += event.tokens
        if self._logprobs:
            self._unsaid += map(_logprob, event.logprobs)
        return self._delta("message", event.text, _extra(event)) if event.text else []

    def _delta(self, kind: str, text: str, extra: dict[str, Any]) -> list[Event]:
        """More text of an item, which begins with it if another kind of item is open."""
        events: list[Event] = []
        if self._open is None or self._open.kind != kind:
            events = [*self._close("completed"), *self._add(kind)]
        assert self._open is not None
        self._open.texts.append(text)
        fields: dict[str, Any] = {"delta": text, "ds4trio": extra}
        if kind == "message":
            fields["logprobs"] = self._said_logprobs()
        return [*events, self._of_item(f"{_TEXT_EVENTS[kind]}.delta", **fields)]

    def _said_logprobs(self) -> list[dict[str, Any]]:
        assert self._open is not None
        said, self._unsaid = self._unsaid, []
        self._open.logprobs += said
        return said

    def _add(self, kind: str) -> list[Event]:
        self._open = OpenItem(kind, len(self._output))
        return [
            self._item_event("added", self._open.item("in_progress", empty=True)),
            self._of_item("response.content_part.added", part=self._open.part("", [])),
        ]

    def _add_call(self, call: ToolCallBegun) -> list[Event]:
        self._open = OpenItem("function_call", len(self._output), call.id, call.name)
        return [self._item_event("added", self._open.item("in_progress"))]

    def _close(self, status: str) -> list[Event]:
        """The item that is open ends."""
        item = self._open
        if item is None:
            return []
        text = "".join(item.texts)
        events: list[Event] = []
        if item.kind == "function_call":
            events.append(
                self._of_item(
                    "response.function_call_arguments.done", name=item.name, arguments=text
                )
            )
        else:
            fields: dict[str, Any] = {"text": text}
            if item.kind == "message":
                if self._unsaid:  # tokens at the end that had no text, such as a stop text's
                    unsaid = self._said_logprobs()
                    kind = "response.output_text.delta"
                    events.append(self._of_item(kind, delta="", logprobs=unsaid))
                fields["logprobs"] = item.logprobs
            events += [
                self._of_item(f"{_TEXT_EVENTS[item.kind]}.done", **fields),
                self._of_item("response.content_part.done", part=item.part(text, item.logprobs)),
            ]
        done = item.item(status)
        self._output.append(done)
        events.append(self._item_event("done", done))
        self._open = None
        return events

    def _end(self, status: str, *, reason: str | None = None) -> list[Event]:
        events = []
        steered = reason == "steered"  # which happens between items, or before the first
        if self._open is None and not self._output and not steered:
            events = self._add("message")  # every answer has an item
        events += self._close("incomplete" if reason and not steered else "completed")
        self._update(status=status, output=list(self._output))
        if reason:
            self._update(incomplete_details={"reason": reason})
        else:
            self._update(completed_at=int(time.time()))
        kind = "response.incomplete" if reason else "response.completed"
        return [*events, self._event(kind, response=self.response)]

    # -- events

    def _update(self, **fields: Any) -> None:
        self.response = {**self.response, **fields}

    def _item_event(self, what: str, item: Item) -> Event:
        assert self._open is not None
        return self._event(
            f"response.output_item.{what}", output_index=self._open.output_index, item=item
        )

    def _of_item(self, kind: str, **fields: Any) -> Event:
        assert self._open is not None
        place: dict[str, Any] = {"item_id": self._open.id, "output_index": self._open.output_index}
        if self._open.kind != "function_call":
            place["content_index"] = 0
        return self._event(kind, **place, **fields)

    def _event(self, kind: str, **fields: Any) -> Event:
        event = {"type": kind, "sequence_number": self._sequence_number, **fields}
        if self._stream_id is not None:
            event["stream_id"] = self._stream_id
        self._sequence_number += 1
        return event


_TEXT_EVENTS = {
    "message": "response.output_text",
    "reasoning": "response.reasoning_text",
    "function_call": "response.function_call_arguments",
}


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return True


def _progress(event: PrefillProgress) -> dict[str, Any]:
    return {"processed": event.evaluated, "cached": event.cached, "total": event.total}


def _extra(event: TextDelta | ReasoningDelta | ToolCallArguments) -> dict[str, Any]:
    return {"tokens": event.tokens, "batch_size": event.batch_size}


def _logprob(logprob: TokenLogprob) -> dict[str, Any]:
    return {**_token(logprob.token), "top_logprobs": [_token(top) for top in logprob.top]}


def _token(token: TokenText) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.bytes)}
