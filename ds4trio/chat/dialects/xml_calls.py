"""Calls as tags, one for each argument.

- Qwen3-Coder and later Qwens: ``<function=NAME>``, ``<parameter=KEY>``, the value on lines of its
  own, ``</parameter>``, ``</function>``, all within ``<tool_call>``.
- DeepSeek V4: ``<｜DSML｜invoke name="NAME">``, ``<｜DSML｜parameter name="KEY" string="true">``.

The arguments become JSON. A value is a string where the tag or the schema says so, and otherwise
what it is as JSON; what is no JSON is a string after all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ds4trio.chat.dialects.reading import (
    Ended,
    NotACall,
    Reading,
    Sink,
    escaped,
    is_sign,
    name_until,
    one_of,
    space,
    until,
)

__all__ = ["DSML", "FUNCTION", "Tags", "tagged_call"]

PYTHON = {"True": "true", "False": "false", "None": "null"}
ATTRIBUTES = re.compile(r'\s*name="([^"]*)"(?:\s+string="(true|false)")?\s*')


@dataclass(frozen=True, slots=True)
class Tags:
    """How a call is written; each tag is spelled up to what differs.

    Attributes:
        call: followed by the name, and ``>``.
        parameter: followed by the key, and ``>``.
        quoted: name and key are attributes.
    """

    call: str
    call_end: str
    parameter: str
    parameter_end: str
    quoted: bool = False

    def spelled(self, spell: Callable[[str], str]) -> Tags:
        return Tags(
            spell(self.call),
            spell(self.call_end),
            spell(self.parameter),
            spell(self.parameter_end),
            self.quoted,
        )

    def head(self, written: str) -> tuple[str, bool | None]:
        """A name, and whether its value is a string, where the tag says so."""
        if not self.quoted:
            return written.strip().strip("\"'"), None
        match = ATTRIBUTES.fullmatch(written)
        if match is None:
            raise NotACall
        return match[1], None if match[2] is None else match[2] == "true"


FUNCTION = Tags("<function=", "</function>", "<parameter=", "</parameter>")
DSML = Tags(
    "<｜DSML｜invoke",
    "</｜DSML｜invoke>",
    "<｜DSML｜parameter",
    "</｜DSML｜parameter>",
    quoted=True,
)


def tagged_call(tags: Tags, sink: Sink) -> Reading:
    """A call whose first tag was read, without what differs.

    Returns:
        The first character behind it that is no space, or what was read in place of its end.
    """
    written, _ = yield from name_until([">"])
    name = sink.known(tags.head(written)[0])
    sink.begin(name)
    properties = _properties(sink.tools[name].parameters)
    try:
        sink.arguments("{")
        first = True
        while True:
            character = yield from space()
            found, unread = yield from one_of(character, [tags.parameter, tags.call_end])
            if found != tags.parameter:
                if unread and any(
                    tag.startswith(unread) for tag in (tags.parameter, tags.call_end)
                ):
                    raise Ended
                break
            written, _ = yield from name_until([">"])
            key, is_string = tags.head(written)
            sink.arguments(f"{'' if first else ', '}{json.dumps(key, ensure_ascii=False)}: ")
            first = False
            if is_string is None:
                is_string = _is_string(properties.get(key))
            yield from _value(tags.parameter_end, sink, is_string)
        sink.arguments("}")
    except (NotACall, Ended):
        sink.end()
        raise
    sink.end()
    return unread


def _properties(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = parameters.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _is_string(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "string"


def _value(end: str, sink: Sink, is_string: bool) -> Reading:
    """A value up to its tag, told as JSON; one line break on each side is not part of it."""
    told = _Lines(lambda character: sink.arguments(escaped(character)))
    held: list[str] = []
    kept = _Lines(held.append)
    if is_string:
        sink.arguments('"')
    yield from until([end], told if is_string else kept)
    sink.arguments('"' if is_string else _as_json("".join(held)))


class _Lines:
    """Passes characters on without a line break at the beginning, and one at the end."""

    def __init__(self, out: Callable[[str], object]) -> None:
        self._out = out
        self._begun = False
        self._held = False

    def __call__(self, character: str) -> None:
        if is_sign(character):
            return
        if self._held:
            self._out("\n")
            self._held = False
        if character == "\n":
            self._held = self._begun
        else:
            self._out(character)
        self._begun = True


def _as_json(written: str) -> str:
    bare = written.strip()
    bare = PYTHON.get(bare, bare)
    try:
        json.loads(bare, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return json.dumps(written, ensure_ascii=False)
    return bare


def _refuse(name: str) -> None:
    raise ValueError(name)
