"""Wire types of Anthropic's Messages. A field that is not here is refused by name.

Those of the ``anthropic`` package 2.14, and what older ones had.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ds4trio.api.schemas.chat import NOTHING, StopText

__all__ = [
    "AnyChoice",
    "AutoChoice",
    "Block",
    "CountTokensRequest",
    "CustomTool",
    "DocumentBlock",
    "ImageBlock",
    "InputMessage",
    "MessageRequest",
    "NoChoice",
    "RedactedThinkingBlock",
    "SearchResultBlock",
    "TextBlock",
    "Thinking",
    "ThinkingAdaptive",
    "ThinkingBlock",
    "ThinkingDisabled",
    "ThinkingEnabled",
    "ToolChoice",
    "ToolNamed",
    "ToolResultBlock",
    "ToolUseBlock",
]

CacheControl = dict[str, Any] | None
"""Has no effect, so what it holds is the client's business: every beginning is cached."""


class TextBlock(msgspec.Struct, forbid_unknown_fields=True, tag="text"):
    """A text."""

    text: str
    cache_control: CacheControl = None
    citations: msgspec.Raw = NOTHING


class ThinkingBlock(msgspec.Struct, forbid_unknown_fields=True, tag="thinking"):
    """What an earlier answer had thought."""

    thinking: str
    signature: str = ""


class RedactedThinkingBlock(msgspec.Struct, forbid_unknown_fields=True, tag="redacted_thinking"):
    """What an earlier answer had thought, in a form that only Anthropic can read."""

    data: str


class ToolUseBlock(msgspec.Struct, forbid_unknown_fields=True, tag="tool_use"):
    """A tool call of an earlier answer."""

    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheControl = None
    caller: msgspec.Raw = NOTHING
    toolset_name: str | None = None


class ImageBlock(msgspec.Struct, tag="image"):
    """Refused, whatever it holds."""


class DocumentBlock(msgspec.Struct, tag="document"):
    """Refused, whatever it holds."""


class SearchResultBlock(msgspec.Struct, tag="search_result"):
    """Refused, whatever it holds."""


class ToolResultBlock(msgspec.Struct, forbid_unknown_fields=True, tag="tool_result"):
    """What came of a tool call."""

    tool_use_id: str
    content: str | list[TextBlock | ImageBlock | DocumentBlock | SearchResultBlock] | None = None
    is_error: bool | None = None
    cache_control: CacheControl = None
    toolset_name: str | None = None


Block = (
    TextBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
)


class InputMessage(msgspec.Struct, forbid_unknown_fields=True):
    """One message of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class CustomTool(msgspec.Struct, forbid_unknown_fields=True):
    """A tool of the client's. Others have another ``type``, and no ``input_schema``."""

    name: Annotated[str, Meta(pattern=r"\A[a-zA-Z0-9_.-]{1,128}\Z")]
    input_schema: dict[str, Any] | None = None
    description: str | None = None
    type: str | None = None
    strict: bool | None = None
    cache_control: CacheControl = None
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None
    eager_input_streaming: bool | None = None
    input_examples: list[dict[str, Any]] | None = None


class AutoChoice(msgspec.Struct, forbid_unknown_fields=True, tag="auto"):
    """The model decides."""

    disable_parallel_tool_use: bool = False


class AnyChoice(msgspec.Struct, forbid_unknown_fields=True, tag="any"):
    """The answer is a call."""

    disable_parallel_tool_use: bool = False


class ToolNamed(msgspec.Struct, forbid_unknown_fields=True, tag="tool"):
    """The answer is a call of this tool."""

    name: str
    disable_parallel_tool_use: bool = False


class NoChoice(msgspec.Struct, forbid_unknown_fields=True, tag="none"):
    """Nothing is called."""


ToolChoice = AutoChoice | AnyChoice | ToolNamed | NoChoice

Display = Literal["summarized", "omitted"] | None


class ThinkingEnabled(msgspec.Struct, forbid_unknown_fields=True, tag="enabled"):
    """Think for so many tokens at most."""

    budget_tokens: Annotated[int, Meta(ge=1)]
    display: Display = None


class ThinkingAdaptive(msgspec.Struct, forbid_unknown_fields=True, tag="adaptive"):
    """Think as the model sees fit."""

    display: Display = None


class ThinkingDisabled(msgspec.Struct, forbid_unknown_fields=True, tag="disabled"):
    """Do not think."""


Thinking = ThinkingEnabled | ThinkingAdaptive | ThinkingDisabled


class OutputFormat(msgspec.Struct, forbid_unknown_fields=True, tag="json_schema"):
    """The answer is JSON that fits the schema."""

    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, forbid_unknown_fields=True):
    """How much effort, and the form of the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None
    task_budget: dict[str, Any] | None = None


class Metadata(msgspec.Struct, forbid_unknown_fields=True):
    """Whose request it is, at the client."""

    user_id: str | None = None


class ContextEdit(msgspec.Struct):
    """What to clear out of a long conversation; nothing is."""

    type: str


class ContextManagement(msgspec.Struct, forbid_unknown_fields=True):
    """When to clear what out of a long conversation."""

    edits: Annotated[list[ContextEdit], Meta(max_length=100)] | None = None


class CountTokensRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /v1/messages/count_tokens``: what of a request makes its prompt."""

    messages: Annotated[list[InputMessage], Meta(min_length=1, max_length=10_000)]
    model: str
    system: str | list[TextBlock] | None = None
    tools: Annotated[list[CustomTool], Meta(max_length=1000)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None

    cache_control: CacheControl = None
    context_management: ContextManagement | None = None
    speed: str | None = None
    billing_policy: msgspec.Raw = NOTHING

    compaction: msgspec.Raw = NOTHING
    mcp_servers: msgspec.Raw = NOTHING


class MessageRequest(CountTokensRequest, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /v1/messages``: Anthropic's fields and some beyond them."""

    max_tokens: Annotated[int, Meta(ge=0)]
    stop_sequences: Annotated[list[StopText], Meta(max_length=16)] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None

    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    cache_salt: Annotated[str, Meta(max_length=1000)] | None = None

    metadata: Metadata | None = None
    service_tier: str | None = None
    inference_geo: str | None = None
    diagnostics: msgspec.Raw = NOTHING
    user_profile_id: str | None = None

    container: msgspec.Raw = NOTHING
    fallbacks: msgspec.Raw = NOTHING
    fallback_credit_token: msgspec.Raw = NOTHING
    thread: msgspec.Raw = NOTHING
