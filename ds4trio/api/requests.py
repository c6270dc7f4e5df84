"""What the doors have in common when they read a request."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from ds4trio.errors import InvalidRequest, WireError

__all__ = ["TextPart", "asks", "joined_text", "params_named", "refuse_unsupported", "stop_texts"]


_INSTEAD = {
    "functions": "use tools, the newer name",
    "function_call": "use tool_choice (in a message tool_calls), the newer name",
    "conversation": "use previous_response_id to go on with a response",
    "prompt": "send the text of the prompt in instructions or input",
    "web_search_options": "a client can offer a search of its own in tools",
    "mcp_servers": "a client can offer their tools in tools",
    "chat_template": "the model's own is used; chat_template_kwargs are given to it",
    "best_of": "use n for several answers",
}
"""What to use in place of fields that are refused."""


class TextPart(Protocol):
    """A part of a message's content, in either API."""

    type: str
    text: str | None
    refusal: str | None


def joined_text(
    content: str | Sequence[TextPart], param: str, *, kinds: tuple[str, ...] = ("text",)
) -> str:
    """Content as one text; parts are joined without anything between them.

    Args:
        kinds: the types of parts that carry ``text``. Refusals count as text too.

    Raises:
        InvalidRequest: a part is something else, such as an image.
    """
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for part in content:
        text = part.refusal if part.type == "refusal" else part.text
        if text is None or part.type not in (*kinds, "refusal"):
            raise InvalidRequest(
                f"a content part of type {part.type[:100]!r} is not supported: "
                "this model reads text",
                param=param,
                code="unsupported_content",
            )
        texts.append(text)
    return "".join(texts)


def asks(field: msgspec.Raw) -> bool:
    """Whether a field that is not served asks for anything at all. It is not even decoded."""
    return bytes(field).strip() not in (b"null", b"[]", b"{}", b"false", b'"none"', b'"auto"')


def refuse_unsupported(asks_too_much: Mapping[str, bool]) -> None:
    """Refuse a request that asks for what this server does not do; ignoring it would lie.

    Args:
        asks_too_much: by field, whether its value asks for more than happens anyway.

    Raises:
        InvalidRequest: names the first such field.
    """
    for field, refused in asks_too_much.items():
        if refused:
            instead = _INSTEAD.get(field.rpartition(".")[2])
            raise InvalidRequest(
                f"this server does not support this value of {field}"
                + (f"; {instead}" if instead else ""),
                param=field,
                code="unsupported_parameter",
            )


def stop_texts(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """``stop`` as doors take it, one text or several."""
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


@contextlib.contextmanager
def params_named(names: Mapping[str, str]) -> Iterator[None]:
    """Errors of this block name the fields as the client wrote them.

    Args:
        names: of a door, by what the waist calls the same.
    """
    try:
        yield
    except WireError as error:
        if error.param is not None:
            error.param = names.get(error.param, error.param)
        raise
