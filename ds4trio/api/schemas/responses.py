"""Wire types of the Responses API over its WebSocket. Fields not listed are refused by name."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ds4trio.api.schemas.chat import NOTHING, StopText

__all__ = [
    "ClientEvent",
    "InputItem",
    "InputPart",
    "ResponseCancel",
    "ResponseCreate",
]


class InputPart(msgspec.Struct, forbid_unknown_fields=True):
    """A part of a message: ``input_text``, or ``output_text`` of an earlier answer."""

    type: str
    text: str | None = None
    refusal: str | None = None
    annotations: msgspec.Raw = NOTHING
    logprobs: msgspec.Raw = NOTHING
    image_url: msgspec.Raw = NOTHING
    file_id: msgspec.Raw = NOTHING
    file_data: msgspec.Raw = NOTHING
    file_url: msgspec.Raw = NOTHING
    filename: msgspec.Raw = NOTHING
    detail: msgspec.Raw = NOTHING


class InputItem(msgspec.Struct):
    """An item of ``input``; messages are the kind that is served so far."""

    type: str = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[InputPart] | None = None
    id: str | None = None
    status: str | None = None


class TextFormat(msgspec.Struct):
    """Only ``text`` is served so far."""

    type: str


class TextConfig(msgspec.Struct, forbid_unknown_fields=True):
    """``text``: the format of the answer."""

    format: TextFormat | None = None
    verbosity: str | None = None


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Obfuscation pads events at OpenAI; here nothing is padded."""

    include_obfuscation: bool | None = None


class ResponseCreate(
    msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="response.create"
):
    """``response.create``: the fields in groups, as in ``ChatRequest``."""

    input: str | Annotated[list[InputItem], Meta(max_length=10_000)] = ""
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    metadata: Annotated[dict[str, str], Meta(max_length=16)] | None = None

    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    cache_salt: Annotated[str, Meta(max_length=1000)] | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=16)] | None = None

    store: bool | None = None
    user: str | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    stream_options: StreamOptions | None = None
    stream: bool | None = None

    background: bool | None = None
    conversation: msgspec.Raw = NOTHING
    generate: bool | None = None
    include: list[str] | None = None
    max_tool_calls: int | None = None
    parallel_tool_calls: bool | None = None
    prompt: msgspec.Raw = NOTHING
    reasoning: msgspec.Raw = NOTHING
    stream_id: str | None = None
    text: TextConfig | None = None
    tool_choice: msgspec.Raw = NOTHING
    tools: msgspec.Raw = NOTHING
    top_logprobs: int | None = None
    truncation: str | None = None
    context_management: msgspec.Raw = NOTHING
    moderation: msgspec.Raw = NOTHING


class ResponseCancel(
    msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="response.cancel"
):
    """``response.cancel``: end the running response with what there is of it."""

    response_id: str | None = None


ClientEvent = ResponseCreate | ResponseCancel
