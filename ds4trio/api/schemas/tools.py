"""Wire types of functions to call and of forced formats, as Chat Completions writes them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

__all__ = [
    "AllowedTools",
    "Function",
    "FunctionTool",
    "JsonSchemaFormat",
    "NamedFunction",
    "NamedTool",
    "ResponseFormat",
    "Schema",
    "StructuredOutputs",
    "ToolChoiceObject",
]

FunctionName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}\Z")]

Schema = dict[str, Any] | bool
"""A JSON schema. What it may say is for the waist to judge."""

NOTHING: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))
"""Fields of this type are refused unless empty, so what they hold is not decoded."""


class Function(msgspec.Struct, forbid_unknown_fields=True):
    """A function that the model may call; ``parameters`` is a JSON schema of an object."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(msgspec.Struct, forbid_unknown_fields=True):
    """A tool. Only those of type ``function`` are served."""

    type: str
    function: Function | None = None
    custom: msgspec.Raw = NOTHING


class NamedFunction(msgspec.Struct, forbid_unknown_fields=True):
    """One of the request's functions."""

    name: str


class NamedTool(msgspec.Struct, forbid_unknown_fields=True):
    """One of the request's functions, inside of ``allowed_tools``."""

    type: str
    function: NamedFunction | None = None


class AllowedTools(msgspec.Struct, forbid_unknown_fields=True):
    """The tools that one answer may call: ``mode`` is ``auto`` or ``required``."""

    mode: str
    tools: Annotated[list[NamedTool], Meta(min_length=1, max_length=128)]


class ToolChoiceObject(msgspec.Struct, forbid_unknown_fields=True):
    """``tool_choice`` where it is no word: ``function`` or ``allowed_tools``, as ``type`` says."""

    type: str
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None
    custom: msgspec.Raw = NOTHING


class JsonSchemaFormat(msgspec.Struct, forbid_unknown_fields=True):
    """A schema with a name for it."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")] | None = None
    description: str | None = None
    schema: Schema | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, forbid_unknown_fields=True):
    """``text``, ``json_object`` (with llama.cpp's ``schema`` beside it) or ``json_schema``."""

    type: str
    json_schema: JsonSchemaFormat | None = None
    schema: Schema | None = None


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True):
    """vLLM's way to ask for a format: exactly one of these."""

    json: Schema | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: (
        Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1, max_length=1000)]
        | None
    ) = None
    grammar: str | None = None
