"""Calls as JSON: ``{"name": …, "arguments": {…}}``, alone or in a list.

Hermes and Qwen write them between ``<tool_call>`` and ``</tool_call>``, Granite and Phi-4-mini
behind ``<|tool_call|>``, Mistral behind ``[TOOL_CALLS]``, Llama 3 behind ``<|python_tag|>`` or
alone. Keys come in any order. The text of the arguments is passed on as it is written, broken or
not, except that line breaks within strings become escapes: small models forget them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from ds4trio.chat.dialects.reading import (
    Ended,
    NotACall,
    Reader,
    Reading,
    Sink,
    escaped,
    is_sign,
    one_of,
    space,
)

__all__ = ["calls", "value"]

NAMES = frozenset({"name", "tool_name"})
ARGUMENTS = frozenset({"arguments", "parameters"})
OTHERS = frozenset({"type", "id", "function", "tool_call_id", "index"})
EMPTY = "{}"
LONGEST_ESCAPE = 14
"""Characters that a cut may leave of the last one: two escapes of six, and what begins it."""


def calls(first: str, sink: Sink, closers: Sequence[str] = (), *, alone: bool = False) -> Reader:
    """Read an object or a list of them, and what closes it.

    Args:
        first: the character that was read: ``{`` or ``[``.
        closers: a marker that may follow; none of them begins another.
        alone: nothing stood before it that says that it is a call, so it must have a name and
            arguments.
    """
    if first not in ("{", "["):
        raise NotACall
    character = first
    listed = first == "["
    if listed:
        character = yield from space()
    while True:
        if character != "{":
            raise NotACall
        yield from _call(sink, alone)
        try:
            character = yield from space()
            while character == "}" and closers:  # one too many
                character = yield from space()
            if listed and character == "]":
                character = yield from space()
                break
            # Llama separates calls by semicolons, and others forget the brackets.
            if character not in (",", ";") or (character == ";" and listed):
                break
            character = yield from space()
        except Ended:
            return ""
    if not closers:
        return character
    _, unread = yield from one_of(character, closers)
    return unread


def _call(sink: Sink, alone: bool) -> Reading:
    """One object, whose bracket was read."""
    name: str | None = None
    held: list[str] = []
    given = False
    wrapped = 0
    try:
        character = yield from space()
        while True:
            if character == "}":
                if not wrapped:
                    break
                wrapped -= 1
                character = yield from space()
                if character == ",":
                    character = yield from space()
                continue
            if character != '"':
                raise NotACall
            key = yield from _string()
            if (yield from space()) != ":":
                raise NotACall
            character = yield from space()
            if key in NAMES and name is None and character == '"':
                name = sink.known((yield from _string()))
                if given or not alone:
                    sink.begin(name)
                    _tell(held, sink)
                character = yield from space()
            elif key in ARGUMENTS and not given:
                given = True
                if name is not None and not sink.live:
                    sink.begin(name)
                if name is None or character not in ("{", "["):
                    character = yield from value(character, held.append)
                    if name is not None:
                        _tell(held, sink)
                else:
                    character = yield from value(character, sink.arguments)
            elif key == "function" and character == "{":
                wrapped += 1
                character = yield from space()
                continue
            elif name is None and key not in OTHERS:
                raise NotACall
            else:
                character = yield from value(character, _drop)
            if character == ",":
                character = yield from space()
    except (NotACall, Ended):
        if sink.live:
            if held and held[0] == '"':
                _tell(held, sink)
            sink.end()
        raise
    if not sink.live:
        raise NotACall
    if not given:
        sink.arguments(EMPTY)
    sink.end()


def _tell(held: list[str], sink: Sink) -> None:
    """Arguments that came before the name, or as JSON in a string."""
    text = "".join(held)
    held.clear()
    if text.startswith('"'):
        text = _decoded(text)
    sink.arguments(EMPTY if text == "null" else text)


def _decoded(text: str) -> str:
    """What a string says, as far as it goes if the answer was cut within it."""
    for missing in range(LONGEST_ESCAPE):
        whole = text if not missing else f'{text[: len(text) + 1 - missing]}"'
        try:
            # A lone surrogate could not be sent.
            return str(json.loads(whole)).encode("utf-8", "replace").decode()
        except ValueError:
            continue
    return ""


def _drop(text: str) -> None:
    pass


def _string() -> Reading:
    """A string whose first quotation mark was read, decoded."""
    written: list[str] = ['"']
    yield from _rest_of_string(written.append)
    try:
        return json.loads("".join(written))
    except ValueError:
        raise NotACall from None


def _rest_of_string(out: Callable[[str], object]) -> Reading:
    backslash = False
    while True:
        character = yield
        if not character:
            raise Ended
        if is_sign(character):
            raise NotACall
        out(escaped(character) if character < " " else character)
        if backslash:
            backslash = False
        elif character == "\\":
            backslash = True
        elif character == '"':
            return


def value(first: str, out: Callable[[str], object]) -> Reading:
    """A JSON value whose first character was read; ``out`` gets its text.

    Brackets and strings are followed, and nothing else is checked.

    Returns:
        The first character behind it that is no space.

    Raises:
        Ended, NotACall: it does not end, or a marker ends it.
    """
    if first == '"':
        out(first)
        yield from _rest_of_string(out)
        return (yield from space())
    if first not in ("{", "["):
        character = first
        while character not in (",", "}", "]") and not character.isspace():
            if is_sign(character) or character == "<":
                raise NotACall
            out(character)
            character = yield
            if not character:
                raise Ended
        return (yield from space()) if character.isspace() else character
    depth = 0
    character = first
    while True:
        if is_sign(character) or character == "<":
            raise NotACall
        out(character)
        if character == '"':
            yield from _rest_of_string(out)
        elif character in "{[":
            depth += 1
        elif character in "}]":
            depth -= 1
            if depth == 0:
                return (yield from space())
        character = yield
        if not character:
            raise Ended
