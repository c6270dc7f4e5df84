"""Calls as a name between markers, then the arguments as JSON.

- DeepSeek V2, V3, R1: ``<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME``, a
  line break, and a fenced block; V3.1 has the name before the separator, and no fence.
- Kimi K2: ``<|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0``
  ``<|tool_call_argument_begin|>{…}<|tool_call_end|>``.
- Mistral since late 2024: ``[TOOL_CALLS]NAME[ARGS]{…}``, some with ``[CALL_ID]…`` before the
  arguments; before that ``[TOOL_CALLS]`` and a list in JSON.
"""

from __future__ import annotations

from collections.abc import Callable

from ds4trio.chat.dialects.json_calls import calls, value
from ds4trio.chat.dialects.reading import (
    Ended,
    NotACall,
    Reader,
    Reading,
    Sink,
    name_until,
    one_of,
    space,
)

__all__ = ["deepseek", "kimi", "mistral"]

Spell = Callable[[str], str]

FENCE = "```"


def deepseek(spell: Spell, sink: Sink, *, begun: bool) -> Reader:
    """Behind the marker of a section, or of a call if one has begun."""
    begin, separator = spell("<｜tool▁call▁begin｜>"), spell("<｜tool▁sep｜>")
    end, closer = spell("<｜tool▁call▁end｜>"), spell("<｜tool▁calls▁end｜>")

    def name() -> Reading:
        before, _ = yield from name_until([separator])
        if before.strip() in sink.tools:
            return before.strip()
        behind, _ = yield from name_until(["\n"])
        return sink.known(behind)

    return (yield from _section(sink, begin, name, end, closer, begun=begun))


def kimi(spell: Spell, sink: Sink, *, begun: bool) -> Reader:
    """Behind the marker of a section, or of a call if one has begun."""
    begin, separator = spell("<|tool_call_begin|>"), spell("<|tool_call_argument_begin|>")
    end, closer = spell("<|tool_call_end|>"), spell("<|tool_calls_section_end|>")

    def name() -> Reading:
        written, _ = yield from name_until([separator])
        before, colon, number = written.strip().rpartition(":")
        return sink.known(before if colon and number.isdecimal() else written)

    return (yield from _section(sink, begin, name, end, closer, begun=begun))


def _section(
    sink: Sink,
    begin: str,
    name: Callable[[], Reading],
    end: str,
    closer: str,
    *,
    begun: bool,
) -> Reader:
    """Calls, each between two markers, and a marker behind the last."""
    calls_before = sink.calls
    while True:
        try:
            if not begun:
                character = yield from space()
                found, unread = yield from one_of(character, [begin, closer])
                if found != begin:
                    if sink.calls == calls_before:
                        raise NotACall
                    return unread
            begun = False
            called = yield from name()
            character = yield from space()
            if character == FENCE[0]:
                yield from name_until(["\n"])
                character = yield from space()
            if character != "{":
                raise NotACall
        except Ended:
            if sink.calls > calls_before:
                return ""
            raise
        sink.begin(called)
        try:
            character = yield from value(character, sink.arguments)
        except (NotACall, Ended):
            sink.end()
            raise
        sink.end()
        try:
            if character == FENCE[0]:
                _, unread = yield from one_of(character, [FENCE])
                if unread:
                    return unread
                character = yield from space()
            found, unread = yield from one_of(character, [end, closer])
        except Ended:
            return ""
        if found != end:
            return unread


def mistral(spell: Spell, sink: Sink) -> Reader:
    """Behind ``[TOOL_CALLS]``."""
    arguments, number = spell("[ARGS]"), spell("[CALL_ID]")
    character = yield from space()
    if character in ("[", "{"):
        return (yield from calls(character, sink))
    written = [character]
    rest, mark = yield from name_until([arguments, number, "{"])
    called = sink.known("".join([*written, rest]))
    if mark == number:
        _, mark = yield from name_until([arguments, "{"])
    character = mark if mark == "{" else (yield from space())
    if character != "{":
        raise NotACall
    sink.begin(called)
    try:
        behind: str = yield from value(character, sink.arguments)
    except (NotACall, Ended):
        sink.end()
        raise
    sink.end()
    return behind
