"""``response.steer``: user input for a response that runs (OpenAI's Responses WebSocket events).

The input is queued. The response goes on to the end of the item that it is writing and ends there;
then another one follows by itself, which continues it with the input and has the same settings. If
the response has called functions, its results are the client's to send: the input waits for the
request that brings them.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import structs

from ds4trio.api.requests import joined_text
from ds4trio.api.schemas.responses import ResponseCreate, ResponseSteer, SteerMessage
from ds4trio.api.wire import decode
from ds4trio.errors import InvalidRequest
from ds4trio.generate import (
    GenerationEvent,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallEnded,
)

__all__ = [
    "FailureCode",
    "Items",
    "Steer",
    "accepted",
    "failed",
    "pending",
    "read_steer",
    "with_steers",
]

Event = dict[str, Any]

FailureCode: TypeAlias = Literal[
    "invalid_input",
    "response_already_completed",
    "response_not_active",
    "response_not_found",
    "steering_not_supported",
    "successor_creation_failed",
    "too_many_pending_steers",
]


@dataclass(frozen=True, slots=True)
class Steer:
    """Input that was accepted.

    Attributes:
        response_id: of the response that it steers.
        input: as the client wrote it.
        items: the same as items of a request's input.
    """

    response_id: str
    input: msgspec.Raw
    items: list[dict[str, Any]]
    id: str = field(default_factory=lambda: f"steer_{uuid.uuid4().hex}")

    @property
    def size(self) -> int:
        """Bytes of the input."""
        return len(bytes(self.input))


def read_steer(event: ResponseSteer) -> list[dict[str, Any]]:
    """The items of a steering event: messages of the user.

    Raises:
        InvalidRequest: it is not a text or a list of such messages, or is empty.
    """
    kinds: Any = str | list[SteerMessage]
    wanted: str | list[SteerMessage] = decode(bytes(event.input), kinds)
    if not wanted:
        raise InvalidRequest("input must not be empty", param="input")
    if isinstance(wanted, str):
        return [{"type": "message", "role": "user", "content": wanted}]
    for index, message in enumerate(wanted):
        joined_text(message.content, f"input[{index}].content", kinds=("input_text",))
    items: list[dict[str, Any]] = msgspec.json.decode(bytes(event.input))
    return items


def with_steers(
    wanted: ResponseCreate, steers: Sequence[Steer], *, follows: str | None = None
) -> ResponseCreate:
    """A request with steering input.

    Args:
        follows: the response that it continues with nothing but that input. Without it the input
            comes before the request's own, but after the results of calls, which the model is to
            find right behind them.
    """
    steering = [item for steer in steers for item in steer.items]
    if follows is not None:
        return structs.replace(wanted, previous_response_id=follows, input=steering)
    if not steering:
        return wanted
    own = wanted.input
    items = [{"type": "message", "role": "user", "content": own}] if isinstance(own, str) else own
    results = list(itertools.takewhile(_is_result, items))
    return structs.replace(wanted, input=[*results, *steering, *items[len(results) :]])


def _is_result(item: Mapping[str, Any]) -> bool:
    return item.get("type") == "function_call_output"


def accepted(steer: Steer) -> Event:
    """The input is the server's now; nothing has come of it yet."""
    return {"type": "response.steer.accepted", "steer": _named(steer)}


def pending(steer: Steer, calls: Sequence[tuple[str, str]]) -> Event:
    """The response has ended with calls, each an id and a name; the input waits for the results."""
    return {
        "type": "response.steer.pending",
        "steer": _named(steer),
        "reason": "waiting_for_required_input",
        "required_input": [
            {"type": "function_call_output", "call_id": call_id, "name": name}
            for call_id, name in calls
        ],
    }


def failed(steer: Steer | ResponseSteer, code: FailureCode, message: str) -> Event:
    """Nothing will come of the input: it goes back to the client."""
    if isinstance(steer, Steer):
        named = _named(steer)
    else:
        named = {"previous_response_id": steer.previous_response_id}
    return {
        "type": "response.steer.failed",
        "error": {"type": "invalid_request_error", "code": code, "message": message},
        "steer": {**named, "input": steer.input},
    }


def _named(steer: Steer) -> dict[str, Any]:
    return {"id": steer.id, "previous_response_id": steer.response_id}


class Items:
    """Which item of a response is being written.

    Attributes:
        begun: there is one.
        calls: id and name of each function that was called.
    """

    def __init__(self) -> None:
        self.begun = False
        self.calls: list[tuple[str, str]] = []
        self._kind = ""

    def ended_by(self, event: GenerationEvent) -> bool:
        """Whether this begins another item, so that the one before is complete."""
        kind = _kind(event)
        return self.begun and kind not in ("", self._kind)

    def take(self, event: GenerationEvent) -> None:
        """The event is put out."""
        kind = _kind(event)
        if kind:
            self.begun, self._kind = True, kind
        if isinstance(event, ToolCallBegun):
            self.calls.append((event.id, event.name))


def _kind(event: GenerationEvent) -> str:
    match event:
        case TextDelta(text) if text:
            return "message"
        case ReasoningDelta(text) if text:
            return "reasoning"
        case ToolCallBegun(index) | ToolCallArguments(index) | ToolCallEnded(index):
            return f"call {index}"
    return ""
