"""Wire types of the doors to the tokenizer and the template. Fields not listed are refused."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ds4trio.api.schemas.chat import NOTHING, Message
from ds4trio.api.schemas.tools import FunctionTool

__all__ = ["ApplyTemplateRequest", "DetokenizeRequest", "TokenizeRequest"]

Conversation = Annotated[list[Message], Meta(min_length=1, max_length=10_000)]


class TokenizeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of ``POST /tokenize``, for clients of llama.cpp's server (``content``) and of vLLM
    (``prompt``, ``messages``). Exactly one of these three is there."""

    content: str | None = None
    prompt: str | None = None
    messages: Conversation | None = None
    model: str | None = None
    add_special: bool | None = None
    add_special_tokens: bool | None = None
    parse_special: bool = True
    with_pieces: bool = False
    return_token_strs: bool | None = None

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    tools: Annotated[list[FunctionTool], Meta(max_length=128)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template: msgspec.Raw = NOTHING
    mm_processor_kwargs: msgspec.Raw = NOTHING


class DetokenizeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of ``POST /detokenize``, of both kinds of clients."""

    tokens: list[int]
    model: str | None = None


class ApplyTemplateRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of ``POST /apply-template``: the conversation of a chat completion."""

    messages: Conversation
    model: str | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    tools: Annotated[list[FunctionTool], Meta(max_length=128)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template: msgspec.Raw = NOTHING
