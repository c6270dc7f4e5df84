"""The table of how models write calls: which marker opens one, and what reads what follows."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, replace

from ds4trio.chat.dialects import json_calls, named_calls
from ds4trio.chat.dialects.reading import Ended, NotACall, Reader, Sink, one_of, space
from ds4trio.chat.dialects.xml_calls import DSML, FUNCTION, tagged_call

__all__ = ["HERMES", "PHI", "STYLES", "Style", "bare", "style_of"]

Spell = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Style:
    """One way to write calls.

    Attributes:
        name: in the documentation.
        sign: what a template has in it whose model writes so.
        openers: markers, each with its reader.
        closers: markers that may stand behind calls. After a call they are never text.
        inner: further markers within calls.
        bare: a call may begin the answer with no marker at all.
    """

    name: str
    sign: str
    openers: tuple[tuple[str, Callable[[Spell, Sink], Reader]], ...]
    closers: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    bare: bool = False

    @property
    def markers(self) -> list[str]:
        """All of them."""
        return [*(marker for marker, _ in self.openers), *self.closers, *self.inner]

    def only(self, openers: Container[str]) -> Style:
        """The same, but calls begin with these markers alone."""
        return replace(self, openers=tuple(each for each in self.openers if each[0] in openers))


def _json(*closers: str) -> Callable[[Spell, Sink], Reader]:
    def read(spell: Spell, sink: Sink) -> Reader:
        character = yield from space()
        spelled = [spell(closer) for closer in closers]
        return (yield from json_calls.calls(character, sink, spelled))

    return read


def _json_or_tags(*closers: str) -> Callable[[Spell, Sink], Reader]:
    """Behind ``<tool_call>`` models of one vocabulary write either."""

    def read(spell: Spell, sink: Sink) -> Reader:
        spelled = [spell(closer) for closer in closers]
        tags = FUNCTION.spelled(spell)
        character = yield from space()
        if character in ("{", "["):
            return (yield from json_calls.calls(character, sink, spelled))
        found, _ = yield from one_of(character, [tags.call])
        if not found:
            raise NotACall
        unread = yield from tagged_call(tags, sink)
        return (yield from _closed(unread, spelled))

    return read


def _function(*closers: str) -> Callable[[Spell, Sink], Reader]:
    """Behind ``<function=``, whose outer tag was forgotten."""

    def read(spell: Spell, sink: Sink) -> Reader:
        unread = yield from tagged_call(FUNCTION.spelled(spell), sink)
        return (yield from _closed(unread, [spell(closer) for closer in closers]))

    return read


def _closed(unread: str, closers: list[str]) -> Reader:
    """What may close a call, where nothing of it was read, or its beginning."""
    try:
        character = unread or (yield from space())
    except Ended:
        return ""
    if len(character) > 1:
        return character
    _, unread = yield from one_of(character, closers)
    return unread


def _invocations(closer: str) -> Callable[[Spell, Sink], Reader]:
    def read(spell: Spell, sink: Sink) -> Reader:
        tags = DSML.spelled(spell)
        before = sink.calls
        unread = ""
        while True:
            try:
                character = unread or (yield from space())
            except Ended:
                if sink.calls == before:
                    raise
                return ""
            if len(character) > 1:
                return character
            found, unread = yield from one_of(character, [tags.call, spell(closer)])
            if found != tags.call:
                if sink.calls == before:
                    raise NotACall
                return unread
            unread = yield from tagged_call(tags, sink)

    return read


def bare(spell: Spell, sink: Sink) -> Reader:
    """A call that begins the answer."""
    character = yield from space()
    return (yield from json_calls.calls(character, sink, alone=True))


HERMES = Style(
    "Hermes",
    "<tool_call>",
    (("<tool_call>", _json_or_tags("</tool_call>")),),
    ("</tool_call>",),
)
PHI = Style(
    "Granite, Phi",
    "<|tool_call|>",
    (("<|tool_call|>", _json("<|/tool_call|>")),),
    ("<|/tool_call|>",),
)

STYLES = (
    Style(
        "DeepSeek V4",
        "｜DSML｜",
        (
            ("<｜DSML｜tool_calls>", _invocations("</｜DSML｜tool_calls>")),
            ("<｜DSML｜function_calls>", _invocations("</｜DSML｜function_calls>")),
        ),
        ("</｜DSML｜tool_calls>", "</｜DSML｜function_calls>"),
    ),
    Style(
        "DeepSeek",
        "<｜tool▁calls▁begin｜>",
        (
            (
                "<｜tool▁calls▁begin｜>",
                lambda spell, sink: named_calls.deepseek(spell, sink, begun=False),
            ),
            (
                "<｜tool▁call▁begin｜>",
                lambda spell, sink: named_calls.deepseek(spell, sink, begun=True),
            ),
        ),
        ("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
        ("<｜tool▁sep｜>",),
    ),
    Style(
        "Kimi",
        "<|tool_calls_section_begin|>",
        (
            (
                "<|tool_calls_section_begin|>",
                lambda spell, sink: named_calls.kimi(spell, sink, begun=False),
            ),
            ("<|tool_call_begin|>", lambda spell, sink: named_calls.kimi(spell, sink, begun=True)),
        ),
        ("<|tool_call_end|>", "<|tool_calls_section_end|>"),
        ("<|tool_call_argument_begin|>",),
    ),
    Style(
        "Mistral",
        "[TOOL_CALLS]",
        (("[TOOL_CALLS]", named_calls.mistral),),
        inner=("[ARGS]", "[CALL_ID]"),
    ),
    Style(
        "Seed",
        "<seed:tool_call>",
        (
            ("<seed:tool_call>", _json_or_tags("</seed:tool_call>")),
            ("<function=", _function("</seed:tool_call>")),
        ),
        ("</seed:tool_call>", "</function>"),
    ),
    Style(
        "Qwen3-Coder",
        "<function=",
        (
            ("<tool_call>", _json_or_tags("</tool_call>")),
            ("<function=", _function("</tool_call>")),
        ),
        ("</tool_call>", "</function>"),
    ),
    PHI,
    Style(
        "Apriel", "<tool_calls>", (("<tool_calls>", _json("</tool_calls>")),), ("</tool_calls>",)
    ),
    HERMES,
    Style("Llama 3", "<|python_tag|>", (("<|python_tag|>", _json()),), bare=True),
)
"""In the order in which they are looked for: what is more particular comes first."""

LLAMA = STYLES[-1]


def style_of(written: str) -> Style | None:
    """The style of a model whose template has these texts in it; None where none is known."""
    for style in STYLES:
        if style.sign in written:
            return style
    # Later templates of Llama 3 name only the keys.
    return LLAMA if '"parameters": ' in written and '"name": ' in written else None
