"""From ``response.create`` to what the generator asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ds4trio.api.requests import asks, joined_text, refuse_unsupported
from ds4trio.api.schemas.responses import InputItem, ResponseCreate
from ds4trio.errors import InvalidRequest
from ds4trio.generate import GenerationRequest, Sampling

__all__ = ["PARAMS", "Messages", "generation_request", "input_messages"]

PARAMS: dict[str | None, str] = {"messages": "input", "max_tokens": "max_output_tokens"}
"""What this API calls the fields that the generator complains about."""

_TEXT_PARTS = ("input_text", "output_text", "text")

Messages = tuple[dict[str, Any], ...]
"""A conversation as the chat template takes it; shared between responses, never changed."""


def input_messages(wanted: ResponseCreate) -> Messages:
    """The new messages of a request.

    Raises:
        InvalidRequest: an item is not a text message, or there is nothing at all.
    """
    if isinstance(wanted.input, str):
        if not wanted.input:
            raise InvalidRequest("input must not be empty", param="input")
        return ({"role": "user", "content": wanted.input},)
    if not wanted.input:
        raise InvalidRequest("input needs at least one item", param="input")
    return tuple(_message(item, f"input[{index}]") for index, item in enumerate(wanted.input))


def generation_request(
    wanted: ResponseCreate, conversation: Sequence[Any], adapter: str, cache_salt: str, user: str
) -> GenerationRequest:
    """The request for a conversation that already ends with the new messages.

    Instructions come first and hold for this response alone, as in OpenAI's API.

    Raises:
        InvalidRequest: a field asks for what this server does not do.
    """
    refuse_unsupported(_asks_too_much(wanted))
    messages = list(conversation)
    if wanted.instructions:
        messages.insert(0, {"role": "system", "content": wanted.instructions})
    return GenerationRequest(
        messages=messages,
        sampling=Sampling.of(wanted),
        max_tokens=wanted.max_output_tokens,
        stop=(wanted.stop,) if isinstance(wanted.stop, str) else tuple(wanted.stop or ()),
        cache_salt=cache_salt,
        user=user,
        adapter=adapter,
    )


def _message(item: InputItem, param: str) -> dict[str, Any]:
    if item.type != "message":
        raise InvalidRequest(
            f"items of type {item.type[:100]!r} are not supported by this server",
            param=f"{param}.type",
            code="unsupported_content",
        )
    if item.role is None or item.content is None:
        raise InvalidRequest("a message needs role and content", param=param)
    role = "system" if item.role == "developer" else item.role
    return {
        "role": role,
        "content": joined_text(item.content, f"{param}.content", kinds=_TEXT_PARTS),
    }


def _asks_too_much(wanted: ResponseCreate) -> dict[str, bool]:
    text = wanted.text
    return {
        "background": bool(wanted.background),
        "conversation": asks(wanted.conversation),
        "context_management": asks(wanted.context_management),
        "generate": wanted.generate is False,
        "include": bool(wanted.include),
        "max_tool_calls": wanted.max_tool_calls is not None,
        "moderation": asks(wanted.moderation),
        "prompt": asks(wanted.prompt),
        "reasoning": asks(wanted.reasoning),
        "stream_id": wanted.stream_id is not None,
        "text.format": text is not None and text.format is not None and text.format.type != "text",
        "text.verbosity": text is not None and text.verbosity not in (None, "medium"),
        "tool_choice": asks(wanted.tool_choice),
        "tools": asks(wanted.tools),
        "top_logprobs": bool(wanted.top_logprobs),
        "truncation": wanted.truncation not in (None, "disabled"),
    }
