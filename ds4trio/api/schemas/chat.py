"""Wire types of Chat Completions. A field that is not here is refused by name."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

__all__ = ["ChatRequest", "ContentPart", "Message", "StreamOptions"]

Metadata = dict[str, str] | None

StopText = Annotated[str, Meta(max_length=1000)]

NOTHING: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))
"""Fields of this type are refused unless empty, so what they hold is not decoded."""


class ContentPart(msgspec.Struct, forbid_unknown_fields=True):
    """A part of a message. Only text parts can be answered by a text model."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: msgspec.Raw = NOTHING
    input_audio: msgspec.Raw = NOTHING
    file: msgspec.Raw = NOTHING


class FunctionCall(msgspec.Struct, forbid_unknown_fields=True):
    """What a tool call of an earlier answer called."""

    name: str
    arguments: str = ""


class ToolCall(msgspec.Struct, forbid_unknown_fields=True):
    """A tool call of an earlier answer, for the template to render."""

    function: FunctionCall
    id: str | None = None
    type: str = "function"
    index: int | None = None


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """One message of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=128)] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    audio: msgspec.Raw = NOTHING
    annotations: msgspec.Raw = NOTHING
    function_call: msgspec.Raw = NOTHING


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """``include_usage``: send one more chunk with the usage and no choices."""

    include_usage: bool = False
    include_obfuscation: bool = False


class ResponseFormat(msgspec.Struct):
    """Only ``text`` is served so far."""

    type: str


class ChatRequest(msgspec.Struct, forbid_unknown_fields=True):
    """``POST /v1/chat/completions``. The second group goes beyond OpenAI's fields.

    The third group is accepted and has no effect on the answer: it concerns accounting, storage or
    routing at OpenAI. The last group is refused unless it asks for what happens anyway.
    """

    messages: Annotated[list[Message], Meta(min_length=1, max_length=10_000)]
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    seed: int | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=16)] | None = None

    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    cache_salt: Annotated[str, Meta(max_length=1000)] | None = None

    user: str | None = None
    metadata: Metadata = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None

    n: int | None = None
    response_format: ResponseFormat | None = None
    tools: msgspec.Raw = NOTHING
    tool_choice: msgspec.Raw = NOTHING
    parallel_tool_calls: bool | None = None
    functions: msgspec.Raw = NOTHING
    function_call: msgspec.Raw = NOTHING
    modalities: list[str] | None = None
    audio: msgspec.Raw = NOTHING
    prediction: msgspec.Raw = NOTHING
    reasoning_effort: str | None = None
    verbosity: str | None = None
    web_search_options: msgspec.Raw = NOTHING
