"""What an answer may be made to look like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Choice", "Format", "JsonObject", "JsonSchema", "Lark", "Regex"]


@dataclass(frozen=True, slots=True)
class JsonObject:
    """Any JSON object."""


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """JSON that fits a schema (https://json-schema.org/draft/2020-12)."""

    schema: Mapping[str, Any] | bool


@dataclass(frozen=True, slots=True)
class Regex:
    """A text that a regular expression matches as a whole."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Choice:
    """One of these texts."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Lark:
    """A text of a context-free grammar, in llguidance's form of Lark's language
    (https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md), or in llama.cpp's GBNF."""

    grammar: str


Format = JsonObject | JsonSchema | Regex | Choice | Lark
