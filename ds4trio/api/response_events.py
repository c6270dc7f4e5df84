"""Generation events to events of the Responses API, once for every door that speaks it."""

from __future__ import annotations

import time
import uuid
from typing import Any

import msgspec

from ds4trio.api.schemas.responses import ResponseCreate
from ds4trio.errors import WireError
from ds4trio.generate import Finished, TextDelta, Usage

__all__ = ["ResponseEvents"]

Event = dict[str, Any]


class ResponseEvents:
    """The events of one response, in order, their sequence numbers rising by one from zero.

    Call ``begin`` once, ``delta`` for each piece of text, then exactly one of ``finish``,
    ``cancelled`` and ``failed``.

    Attributes:
        id: of the response.
        text: the answer so far.
    """

    def __init__(self, wanted: ResponseCreate, model: str) -> None:
        self.id = f"resp_{uuid.uuid4().hex}"
        self.text = ""
        self._item_id = f"msg_{uuid.uuid4().hex}"
        self._item_open = False
        self._sequence_number = 0
        self._response = _response(self.id, wanted, model)

    def begin(self) -> list[Event]:
        return [
            self._event("response.created", response=dict(self._response)),
            self._event("response.in_progress", response=dict(self._response)),
        ]

    def delta(self, delta: TextDelta) -> list[Event]:
        """The text as an event; nothing while a character is incomplete."""
        if not delta.text:
            return []
        events = self._open_item()
        self.text += delta.text
        events.append(
            self._content_event(
                "response.output_text.delta",
                delta=delta.text,
                logprobs=[],
                ds4trio={"tokens": delta.tokens, "batch_size": delta.batch_size},
            )
        )
        return events

    def finish(self, finished: Finished) -> list[Event]:
        self._response["usage"] = _usage(finished.usage)
        self._response["ds4trio"] = msgspec.to_builtins(finished.timings)
        if finished.reason == "length":
            return self._end("incomplete", incomplete_details={"reason": "max_output_tokens"})
        return self._end("completed")

    def cancelled(self, usage: Usage) -> list[Event]:
        self._response["usage"] = _usage(usage)
        return self._end("incomplete", incomplete_details={"reason": "cancelled"})

    def failed(self, error: WireError) -> list[Event]:
        self._response |= {
            "status": "failed",
            "error": {"code": error.code, "message": error.message},
        }
        return [self._event("response.failed", response=dict(self._response))]

    def _open_item(self) -> list[Event]:
        if self._item_open:
            return []
        self._item_open = True
        return [
            self._event(
                "response.output_item.added",
                output_index=0,
                item={**self._item("in_progress"), "content": []},
            ),
            self._content_event("response.content_part.added", part=_part("")),
        ]

    def _end(self, status: str, **fields: Any) -> list[Event]:
        events = self._open_item()
        item = self._item(status)
        events += [
            self._content_event("response.output_text.done", text=self.text, logprobs=[]),
            self._content_event("response.content_part.done", part=_part(self.text)),
            self._event("response.output_item.done", output_index=0, item=item),
        ]
        self._response |= {"status": status, "output": [item], **fields}
        if status == "completed":
            self._response["completed_at"] = int(time.time())
        events.append(self._event(f"response.{status}", response=dict(self._response)))
        return events

    def _item(self, status: str) -> dict[str, Any]:
        return {
            "id": self._item_id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": [_part(self.text)],
        }

    def _content_event(self, kind: str, **fields: Any) -> Event:
        return self._event(kind, item_id=self._item_id, output_index=0, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> Event:
        event = {"type": kind, "sequence_number": self._sequence_number, **fields}
        self._sequence_number += 1
        return event


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _response(response_id: str, wanted: ResponseCreate, model: str) -> dict[str, Any]:
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": wanted.instructions,
        "max_output_tokens": wanted.max_output_tokens,
        "metadata": wanted.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": wanted.previous_response_id,
        "store": bool(wanted.store),
        "temperature": 1.0 if wanted.temperature is None else wanted.temperature,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0 if wanted.top_p is None else wanted.top_p,
        "truncation": "disabled",
        "usage": None,
    }
