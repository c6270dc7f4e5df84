"""Wire types of Chat Completions. A field that is not here is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ds4trio.api.schemas.drawing import DrawingFields, StopText, StreamOptions
from ds4trio.api.schemas.tools import NOTHING, FunctionTool, ToolChoiceObject

__all__ = [
    "NOTHING",
    "ChatRequest",
    "ContentPart",
    "Effort",
    "Message",
    "ReasoningOptions",
    "StopText",
    "StreamOptions",
]

Metadata = dict[str, str] | None

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""``max`` is the same as ``xhigh``."""


class ContentPart(msgspec.Struct, forbid_unknown_fields=True):
    """A part of a message. Only text parts can be answered by a text model."""

    type: str
    text: str | None = None
    refusal: str | None = None
    prompt_cache_breakpoint: msgspec.Raw = NOTHING  # every beginning is cached
    image_url: msgspec.Raw = NOTHING
    input_audio: msgspec.Raw = NOTHING
    file: msgspec.Raw = NOTHING


class FunctionCall(msgspec.Struct, forbid_unknown_fields=True):
    """What a tool call of an earlier answer called."""

    name: str
    arguments: str = ""
    parsed_arguments: msgspec.Raw = NOTHING  # the official client's, which sends it back


class ToolCall(msgspec.Struct, forbid_unknown_fields=True):
    """A tool call of an earlier answer, for the template to render."""

    function: FunctionCall
    id: str | None = None
    type: Literal["function"] = "function"
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
    parsed: msgspec.Raw = NOTHING  # the official client's, which sends it back
    function_call: msgspec.Raw = NOTHING


class ReasoningOptions(msgspec.Struct, forbid_unknown_fields=True):
    """How much the model may think: by word, or in tokens."""

    effort: Effort | None = None
    max_tokens: Annotated[int, Meta(ge=0)] | None = None


class ChatRequest(DrawingFields, kw_only=True, forbid_unknown_fields=True):
    """The body of ``POST /v1/chat/completions``: OpenAI's fields and some beyond them.

    Those that concern accounting, storage or routing at OpenAI are accepted without effect on the
    answer. Those that ask for what this server does not do are refused.
    """

    messages: Annotated[list[Message], Meta(min_length=1, max_length=10_000)]
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: Annotated[list[FunctionTool], Meta(max_length=128)] | None = None
    tool_choice: str | ToolChoiceObject | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None

    reasoning: ReasoningOptions | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Meta(max_length=100)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    metadata: Metadata = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: msgspec.Raw = NOTHING
    prompt_cache_retention: str | None = None

    functions: msgspec.Raw = NOTHING
    function_call: msgspec.Raw = NOTHING
    modalities: list[str] | None = None
    audio: msgspec.Raw = NOTHING
    prediction: msgspec.Raw = NOTHING
    moderation: msgspec.Raw = NOTHING
    verbosity: str | None = None
    web_search_options: msgspec.Raw = NOTHING
