"""Wire types of the Responses API, over HTTP and its WebSocket. Fields not listed are refused by
name. Items of the input are in ``response_items.py``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ds4trio.api.schemas.chat import NOTHING, StopText
from ds4trio.api.schemas.response_items import Part

__all__ = [
    "AllowedTools",
    "ClientEvent",
    "FunctionTool",
    "InputTokens",
    "JsonSchemaFormat",
    "NamedTool",
    "PatternFormat",
    "PlainFormat",
    "ReasoningConfig",
    "ResponseCancel",
    "ResponseCreate",
    "ResponseSteer",
    "SteerMessage",
    "TextConfig",
]

Metadata = dict[
    Annotated[str, Meta(max_length=64)],
    Annotated[str, Meta(max_length=512)],
]

Items = Annotated[list[dict[str, Any]], Meta(max_length=10_000)]

FunctionName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]


class FunctionTool(msgspec.Struct, forbid_unknown_fields=True):
    """A function that the model may call."""

    type: str
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    output_schema: dict[str, Any] | None = None
    allowed_callers: list[Literal["direct"]] | None = None
    defer_loading: Literal[False] | None = None
    asynchronous: Literal[False] | None = msgspec.field(default=None, name="async")


class NamedTool(msgspec.Struct, forbid_unknown_fields=True):
    """``tool_choice`` that names a function, which must then be called."""

    type: str
    name: str


class AllowedTools(msgspec.Struct, forbid_unknown_fields=True):
    """``tool_choice`` that leaves some of the functions."""

    type: str
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Meta(min_length=1, max_length=128)]


class PlainFormat(msgspec.Struct, forbid_unknown_fields=True):
    """``text``, or ``json_object`` for any JSON object."""

    type: str


class JsonSchemaFormat(msgspec.Struct, forbid_unknown_fields=True):
    """JSON that fits a schema. It always does, with ``strict`` or without."""

    type: str
    schema: dict[str, Any]
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class PatternFormat(msgspec.Struct, forbid_unknown_fields=True):
    """Beyond OpenAI: ``regex`` with a ``pattern``, ``grammar`` with a ``grammar``."""

    type: str
    pattern: str | None = None
    grammar: str | None = None


class TextConfig(msgspec.Struct, forbid_unknown_fields=True):
    """``text``: the format of the answer."""

    format: dict[str, Any] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningConfig(msgspec.Struct, forbid_unknown_fields=True):
    """``reasoning``: how much the model may think. ``max_tokens`` is beyond OpenAI."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: str | None = None


class PromptCacheOptions(msgspec.Struct, forbid_unknown_fields=True):
    """``prewarm`` is ``generate: false`` by another name; the rest is OpenAI's cache's."""

    prewarm: bool | None = None
    mode: str | None = None
    ttl: str | None = None
    comparison_response_id: str | None = None


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Obfuscation pads events at OpenAI; here nothing is padded."""

    include_obfuscation: bool | None = None


class ResponseCreate(
    msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="response.create"
):
    """Ask for a response; also the body of ``POST /v1/responses``. OpenAI's fields and some beyond
    them."""

    input: str | Items = ""
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    background: bool | None = None
    generate: bool | None = None
    stream_id: str | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    include: Annotated[list[str], Meta(max_length=32)] | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=128)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    metadata: Annotated[Metadata, Meta(max_length=16)] | None = None

    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    cache_salt: Annotated[str, Meta(max_length=1000)] | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=16)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    return_progress: bool | None = None

    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None
    user: str | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_retention: str | None = None
    stream_options: StreamOptions | None = None

    access_programs: msgspec.Raw = NOTHING
    background_options: msgspec.Raw = NOTHING
    conversation: msgspec.Raw = NOTHING
    context_management: msgspec.Raw = NOTHING
    image: msgspec.Raw = NOTHING
    moderation: msgspec.Raw = NOTHING
    prompt: msgspec.Raw = NOTHING

    @property
    def only_warms(self) -> bool:
        """The prompt is evaluated for the cache, and nothing is generated."""
        options = self.prompt_cache_options
        return self.generate is False or (options is not None and options.prewarm is True)


class InputTokens(msgspec.Struct, forbid_unknown_fields=True):
    """The body of ``POST /v1/responses/input_tokens``: what of a request makes its prompt."""

    input: str | Items | None = None
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    truncation: Literal["auto", "disabled"] | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=128)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    conversation: msgspec.Raw = NOTHING
    personality: msgspec.Raw = NOTHING


class ResponseCancel(
    msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="response.cancel"
):
    """End a response with what there is of it: the one of this id, or the first one of a lane."""

    response_id: str | None = None
    stream_id: str | None = None


class SteerMessage(msgspec.Struct, forbid_unknown_fields=True):
    """What a user says to a response that runs."""

    role: Literal["user"]
    content: Annotated[str, Meta(min_length=1)] | Annotated[list[Part], Meta(min_length=1)]
    type: Literal["message"] = "message"


class ResponseSteer(
    msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="response.steer"
):
    """User input for a response that runs: a text or a list of messages of the user."""

    previous_response_id: str
    input: msgspec.Raw  # read later, since what is wrong with it has an event of its own


ClientEvent = ResponseCreate | ResponseCancel | ResponseSteer
