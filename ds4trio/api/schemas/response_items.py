"""Wire types of the items of the Responses API: what its input is made of.

An item is decoded by its ``type``, so that one of another kind is refused for its kind and not for
a field of it. Fields not listed are refused by name; ``Nothing`` is one that must be empty.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

__all__ = [
    "FunctionCall",
    "FunctionCallOutput",
    "ItemReference",
    "Message",
    "Part",
    "Reasoning",
    "ReasoningPart",
]

Id = Annotated[str, Meta(min_length=1, max_length=200)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Status = Literal["in_progress", "completed", "incomplete"] | None


class Part(msgspec.Struct, forbid_unknown_fields=True):
    """A part of a message: ``input_text``, or ``output_text`` and ``refusal`` of an answer.

    What only parts of other types have is listed so that those are refused for their type.
    """

    type: str
    text: str | None = None
    refusal: str | None = None
    annotations: Any = None
    logprobs: Any = None
    prompt_cache_breakpoint: Any = None
    image_url: Any = None
    file_id: Any = None
    file_data: Any = None
    file_url: Any = None
    filename: Any = None
    detail: Any = None
    input_audio: Any = None


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """What somebody said."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Part]
    type: str = "message"
    id: Id | None = None
    status: Status = None
    phase: str | None = None


class FunctionCall(msgspec.Struct, forbid_unknown_fields=True):
    """A function that the model called."""

    type: str
    call_id: Id
    name: Name
    arguments: str
    id: Id | None = None
    status: Status = None
    namespace: None = None
    caller: Any = None
    created_by: Any = None
    asynchronous: Literal[False] | None = msgspec.field(default=None, name="async")


class FunctionCallOutput(msgspec.Struct, forbid_unknown_fields=True):
    """What came of it."""

    type: str
    call_id: Id
    output: str | list[Part]
    id: Id | None = None
    status: Status = None
    name: str | None = None
    namespace: None = None
    caller: Any = None
    created_by: Any = None


class ReasoningPart(msgspec.Struct, forbid_unknown_fields=True):
    """A part of what the model thought, or of its summary."""

    type: Literal["reasoning_text", "summary_text"]
    text: str


class Reasoning(msgspec.Struct, forbid_unknown_fields=True):
    """What the model thought before it answered."""

    type: str
    summary: list[ReasoningPart] = []
    content: list[ReasoningPart] | None = None
    encrypted_content: str | None = None
    id: Id | None = None
    status: Status = None


class ItemReference(msgspec.Struct, forbid_unknown_fields=True):
    """An item that the server keeps, by its id."""

    id: Id
    type: str = "item_reference"
