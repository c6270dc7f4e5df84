"""Hostile answers, and answers in any pieces."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4trio.chat.output import CallArguments, CallBegun, CallEnded, Piece, ReasoningText, Text
from tests.chat.dialects import CONTROL, TEMPLATES, TOOLS, dialect, merged, tokenizer

FAMILIES = sorted(TEMPLATES)

FRAGMENTS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    '{"name": "mail", "arguments": {"a": "b"}}',
    '{"name": "weather", "parameters": ',
    '"arguments": ',
    "<function=mail>",
    "<function=weather>\n<parameter=city>\n",
    "<parameter=x>",
    "\n</parameter>",
    "</function>",
    "<response>",
    "[THINK]",
    "[/THINK]",
    "[TOOL_CALLS]",
    "[TOOL_CALLS]mail[ARGS]{}",
    "[ARGS]",
    "[CALL_ID]",
    "<|tool_call|>",
    "<|python_tag|>",
    "<seed:think>",
    "</seed:think>",
    "<seed:tool_call>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>mail\n```json\n{}\n```",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
    "<｜DSML｜tool_calls>",
    '<｜DSML｜invoke name="mail">',
    '<｜DSML｜parameter name="x" string="false">',
    "</｜DSML｜parameter>",
    "</｜DSML｜invoke>",
    "</｜DSML｜tool_calls>",
    *CONTROL["Kimi"],
    "functions.mail:0",
    *CONTROL["gpt-oss"],
    "analysis",
    "final",
    " to=functions.mail",
    "<|channel>",
    "thought",
    "<channel|>",
    "{",
    "}",
    "[",
    "]",
    '"',
    "\\",
    ",",
    ":",
    ";",
    "```",
    "`",
    "<",
    ">",
    "\n",
    " ",
    "é日🌦",
    "\U000f0000",
    "words",
)

answers = st.lists(
    st.one_of(
        st.sampled_from(FRAGMENTS),
        st.sampled_from(FRAGMENTS).flatmap(
            lambda fragment: st.integers(0, len(fragment)).map(lambda size: fragment[:size])
        ),
        st.text(max_size=3),
    ),
    max_size=12,
)


def in_pieces(family: str, parts: Sequence[str], tail: str, *, tools: bool) -> list[Piece]:
    """What a parser makes of parts; a part that is a control token comes as that."""
    control = {text: tokenizer(family).token_id(text) for text in CONTROL.get(family, ())}
    parser = dialect(family).parser(tail, tools=TOOLS if tools else ())
    pieces: list[Piece] = []
    for part in parts:
        token = control.get(part)
        pieces += parser.push(5 if token is None else token, part if token is None else "")
        assert parser.inside in ("text", "reasoning", "call")
    return [*pieces, *parser.finish()]


def checked(pieces: Sequence[Piece]) -> list[Piece]:
    """Calls begin, have arguments and end, one after the other; text can be sent."""
    calling = False
    for piece in pieces:
        match piece:
            case CallBegun(name):
                assert not calling
                assert name in ("weather", "mail")
                calling = True
            case CallArguments(text):
                assert calling
                text.encode()
            case CallEnded():
                assert calling
                calling = False
            case Text(text) | ReasoningText(text):
                assert not calling
                text.encode()
    assert not calling
    return merged(pieces)


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(FAMILIES),
    answers,
    st.sampled_from(["", "<think>\n", "</think>\n\n", "[THINK]", "<|start|>assistant"]),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_however_an_answer_is_cut_the_pieces_are_the_same(
    family: str, parts: list[str], tail: str, tools: bool, random: object
) -> None:
    parts = [part.encode("utf-8", "replace").decode() for part in parts]
    whole = checked(in_pieces(family, parts, tail, tools=tools))
    control = CONTROL.get(family, ())
    single: list[str] = []
    for part in parts:
        single += [part] if part in control else list(part)
    assert checked(in_pieces(family, single, tail, tools=tools)) == whole
    cut: list[str] = []
    for part in parts:
        at = random.randint(0, len(part))  # type: ignore[attr-defined]
        cut += [part] if part in control else [part[:at], part[at:]]
    assert checked(in_pieces(family, cut, tail, tools=tools)) == whole


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(FAMILIES), st.text(st.sampled_from("ab<|>{}[]\"'`\n tol_cahink/"), max_size=60)
)
def test_text_without_markers_is_as_it_was(family: str, text: str) -> None:
    markers = ("<think>", "</think>", "<tool_call>", "{", *CONTROL.get(family, ()))
    if family == "gpt-oss" or any(marker in text for marker in markers):
        return
    pieces = checked(in_pieces(family, [text], "", tools=True))
    assert pieces == ([Text(text)] if text else [])


@pytest.mark.parametrize("family", ["Qwen3", "Qwen3-Coder", "DeepSeek", "plain"])
@pytest.mark.parametrize(
    "part",
    [
        "<tool_call>",
        '<tool_call>{"arguments":{',
        '<tool_call>{"arguments":"',
        "<tool_call>[",
        "<｜tool▁calls▁begin｜>",
        "<function=mail><parameter=x>",
        " ",
        "\n<",
        "<think>",
        '{"function":',
        "<function=",
    ],
)
def test_long_answers_take_time_in_proportion(family: str, part: str) -> None:
    parts = list(part) * (15_000 // len(part))
    began = time.process_time()
    checked(in_pieces(family, parts, "", tools=True))
    assert time.process_time() - began < 2
