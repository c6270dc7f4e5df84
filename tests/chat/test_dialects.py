"""How each family calls functions and reasons."""

from __future__ import annotations

import json

import pytest

from ds4trio.chat.output import CallArguments, CallBegun, CallEnded, Piece, ReasoningText, Text
from tests.chat.dialects import TOOLS, call, dialect, merged, pieces_of, tokens_of, told

KOELN = '{"city": "Köln 🌦", "days": 2}'
ONE = call("weather", KOELN)
TWO = [*ONE, *call("mail", "{}")]
V3 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>%s\n```json\n%s\n```<｜tool▁call▁end｜>"
V31 = "<｜tool▁call▁begin｜>%s<｜tool▁sep｜>%s<｜tool▁call▁end｜>"
KIMI = "<|tool_call_begin|>functions.%s:%d<|tool_call_argument_begin|>%s<|tool_call_end|>"
SECTION = "<｜tool▁calls▁begin｜>%s<｜tool▁calls▁end｜>"
DSML = (
    '<｜DSML｜invoke name="weather">\n'
    '<｜DSML｜parameter name="city" string="true">Köln 🌦</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n"
)
FUNCTION = (
    "<function=weather>\n<parameter=city>\nKöln 🌦\n</parameter>\n"
    "<parameter=days>\n2\n</parameter>\n</function>"
)

WRITTEN: list[tuple[str, str, list[Piece]]] = [
    ("Hermes", f'<tool_call>\n{{"name": "weather", "arguments": {KOELN}}}\n</tool_call>', ONE),
    (
        "Hermes",
        f'Let me see.\n<tool_call>{{"arguments": {KOELN}, "name": "weather"}}</tool_call>\n'
        '<tool_call>\n{"name": "mail", "arguments": {}}\n</tool_call>\n\nDone.',
        [Text("Let me see."), *TWO, Text("Done.")],
    ),
    ("Hermes", '<tool_call>{"name": "mail"}</tool_call>', call("mail", "{}")),
    ("Hermes", '<tool_call>{"name": "mail", "arguments": null}</tool_call>', call("mail", "{}")),
    (
        "Hermes",
        '<tool_call>{"name": "mail", "arguments": "{\\"a\\": \\"b\\"}"}</tool_call>',
        call("mail", '{"a": "b"}'),
    ),
    (
        "Hermes",
        '<tool_call>{"type": "function", "function": {"name": "mail", "parameters": {"a": [1]}}}'
        "</tool_call>",
        call("mail", '{"a": [1]}'),
    ),
    (
        "Hermes",
        '<tool_call>[{"name": "mail", "arguments": {}}, {"name": "mail", "arguments": {}}]'
        "</tool_call>",
        call("mail", "{}") * 2,
    ),
    (
        "Hermes",  # braces that a small model forgot, and one too many
        '<tool_call>{"name": "mail", "arguments": {"a": 1}</tool_call>\n'
        '<tool_call>{"name": "mail", "arguments": {"a": 1}}}</tool_call>',
        call("mail", '{"a": 1}') * 2,
    ),
    (
        "Hermes",
        '<tool_call>{"name": "mail", "arguments": {"a": "\n"}}',
        call("mail", '{"a": "\\n"}'),
    ),
    (
        "Hermes",  # a tag within a string is that string
        '<tool_call>{"name": "mail", "arguments": {"a": "</tool_call>"}}</tool_call>',
        call("mail", '{"a": "</tool_call>"}'),
    ),
    ("Qwen3-Coder", f"<tool_call>\n{FUNCTION}\n</tool_call>", ONE),
    ("Qwen3-Coder", f"I look.\n\n{FUNCTION}\n</tool_call>", [Text("I look."), *ONE]),
    (
        "Qwen3-Coder",
        '<tool_call>{"name": "mail", "arguments": {}}</tool_call>',
        call("mail", "{}"),
    ),
    ("Seed", f"<seed:tool_call>\n{FUNCTION}\n</seed:tool_call>", ONE),
    ("Llama 3", f'{{"name": "weather", "parameters": {KOELN}}}', ONE),
    ("Llama 3", f'<|python_tag|>{{"name": "weather", "parameters": {KOELN}}}', ONE),
    (
        "Llama 3",
        f'{{"name": "weather", "parameters": {KOELN}}}; {{"name": "mail", "parameters": {{}}}}',
        TWO,
    ),
    (
        "Mistral",
        f'[TOOL_CALLS][{{"name": "weather", "arguments": {KOELN}, "id": "abc"}}, '
        '{"name": "mail", "arguments": {}}]',
        TWO,
    ),
    ("Magistral", f"[TOOL_CALLS]weather[ARGS]{KOELN}[TOOL_CALLS]mail[ARGS]{{}}", TWO),
    ("Magistral", f"[TOOL_CALLS]weather[CALL_ID]123456789[ARGS]{KOELN}", ONE),
    ("DeepSeek", SECTION % (V3 % ("weather", KOELN) + "\n" + V3 % ("mail", "{}")), TWO),
    ("DeepSeek", "Yes.\n" + SECTION % (V31 % ("weather", KOELN)), [Text("Yes."), *ONE]),
    ("DeepSeek V4", f"\n\n<｜DSML｜tool_calls>\n{DSML}</｜DSML｜tool_calls>", ONE),
    ("DeepSeek V4", f"<｜DSML｜function_calls>\n{DSML * 2}</｜DSML｜function_calls>", ONE * 2),
    (
        "Kimi",
        "<|tool_calls_section_begin|>"
        + KIMI % ("weather", 0, KOELN)
        + KIMI % ("mail", 1, "{}")
        + "<|tool_calls_section_end|>",
        TWO,
    ),
    ("Granite", f'<|tool_call|>[{{"name": "weather", "arguments": {KOELN}}}]', ONE),
    (
        "Granite",
        f'<|tool_call|>[{{"name": "weather", "arguments": {KOELN}}}]<|/tool_call|>',
        ONE,
    ),
    (
        "Phi-4-mini",
        f'<|tool_call|>[{{"name": "weather", "arguments": {KOELN}}}]<|/tool_call|>',
        ONE,
    ),
    ("Phi-4-mini", f'<tool_call>{{"name": "weather", "arguments": {KOELN}}}</tool_call>', ONE),
    (
        "SmolLM3",
        "<think>\nHm.\n</think>\n<tool_call>\n"
        f'{{"name": "weather", "arguments": {KOELN}}}\n</tool_call>',
        [ReasoningText("Hm."), *ONE],
    ),
    ("Gemma 3", f'<tool_call>\n{{"name": "weather", "arguments": {KOELN}}}\n</tool_call>', ONE),
    ("Gemma 3", f'{{"name": "weather", "arguments": {KOELN}}}', ONE),
    ("plain", f'<tool_call>\n{{"name": "weather", "arguments": {KOELN}}}\n</tool_call>', ONE),
    ("plain", f'{{"name": "weather", "arguments": {KOELN}}}', ONE),
    (
        "gpt-oss",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.weather"
        f"<|channel|>commentary json<|message|>{KOELN}<|call|>",
        [ReasoningText("Hm."), *ONE],
    ),
    (
        "gpt-oss",
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary "
        f"to=functions.weather <|constrain|>json<|message|>{KOELN}<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Done.",
        [Text("I look."), *ONE, Text("Done.")],
    ),
    (
        "gpt-oss",
        "<|channel|>commentary to=functions.mail<|message|><|call|>",
        call("mail", "{}"),
    ),
]


@pytest.mark.parametrize(("family", "answer", "expected"), WRITTEN)
def test_calls_are_told(family: str, answer: str, expected: list[Piece]) -> None:
    assert pieces_of(family, answer) == expected


@pytest.mark.parametrize(("family", "answer", "expected"), WRITTEN)
def test_a_cut_answer_loses_nothing_that_was_told(
    family: str, answer: str, expected: list[Piece]
) -> None:
    """Wherever the limit of tokens falls, calls end, and arguments are a beginning of the whole."""
    tokens = tokens_of(family, answer)
    whole = "".join(piece.text for piece in expected if isinstance(piece, CallArguments))
    for size in range(len(tokens)):
        pieces = told(family, tokens[:size], "", TOOLS)
        begun = sum(isinstance(piece, CallBegun) for piece in pieces)
        assert begun == sum(isinstance(piece, CallEnded) for piece in pieces)
        arguments = "".join(piece.text for piece in pieces if isinstance(piece, CallArguments))
        # The token that ends a call of gpt-oss is not told, so no arguments may be all of them.
        assert whole.startswith(arguments) or (family == "gpt-oss" and arguments == "{}")


def test_arguments_are_told_as_they_come() -> None:
    answer = f'<tool_call>\n{{"name": "weather", "arguments": {KOELN}}}\n</tool_call>'
    pieces = told("Hermes", tokens_of("Hermes", answer), "", TOOLS)
    assert pieces[0] == CallBegun("weather")
    assert sum(isinstance(piece, CallArguments) for piece in pieces) > 10
    tagged = told("Qwen3-Coder", tokens_of("Qwen3-Coder", FUNCTION), "", TOOLS)
    assert sum(isinstance(piece, CallArguments) for piece in tagged) > 10


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("7", 7),
        ("True", True),
        ("None", None),
        ('{"a": [1]}', {"a": [1]}),
        ("NaN", "NaN"),
        ("two words", "two words"),
        ("\nlines\n\n", "lines\n"),
        ("", ""),
    ],
)
def test_values_of_tags_are_what_they_look_like(value: str, expected: object) -> None:
    answer = f"<tool_call><function=mail><parameter=x>{value}</parameter></function></tool_call>"
    written = "".join(
        piece.text for piece in pieces_of("Qwen3-Coder", answer) if isinstance(piece, CallArguments)
    )
    given = json.loads(written)["x"]
    assert given == expected


NO_CALLS = [
    ("Hermes", "Write <tool_call> before and </tool_call> after a call."),
    ("Hermes", '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>'),
    ("Hermes", '<tool_call>{"nothing": 1}</tool_call>'),
    ("Hermes", "<tool_call>[]</tool_call>"),
    ("Hermes", '<tool_call>{"arguments": {"a": 1}}</tool_call>'),
    ("Hermes", "<tool_call"),
    ("Hermes", " \n<tool_call>\n"),
    ("Hermes", "a  b \n\n c\n"),
    ("Hermes", '{"name": "weather", "arguments": {}}'),
    ("Llama 3", '{"name": "Ada", "parameters": {}}'),
    ("Llama 3", '{"name": "weather"}'),
    ("Llama 3", '{"city": "Köln"}'),
    ("Llama 3", '{"name": "weather", "age": {}}'),
    ("Llama 3", "The function <|python_tag|"),
    ("Qwen3-Coder", "<function=unknown>\n</function>"),
    ("Qwen3-Coder", "<tool_call>\n<function=" + "x" * 400),
    ("DeepSeek", "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>"),
    ("DeepSeek", SECTION % (V3 % ("unknown", "{}"))),
    ("DeepSeek V4", '<｜DSML｜tool_calls><｜DSML｜invoke mail="1">'),
    ("Granite", "<|tool_call|>none"),
    ("gpt-oss", "I forgot the channels."),
]


@pytest.mark.parametrize(("family", "answer"), NO_CALLS)
def test_what_is_no_call_is_text(family: str, answer: str) -> None:
    assert pieces_of(family, answer) == [Text(answer)]


@pytest.mark.parametrize(("family", "answer", "expected"), WRITTEN)
def test_without_tools_nothing_is_a_call(family: str, answer: str, expected: list[Piece]) -> None:
    pieces = pieces_of(family, answer, tools=())
    assert all(isinstance(piece, Text | ReasoningText) for piece in pieces)
    text = "".join(piece.text for piece in pieces if isinstance(piece, Text))
    if family not in (
        "gpt-oss",
        "Kimi",
        "Mistral",
        "Magistral",
        "Llama 3",
        "Phi-4-mini",
        "SmolLM3",
    ):
        assert text == answer
    assert "[TOOL_CALLS]" not in text
    assert "<|" not in text or family == "Granite"


def test_text_goes_on_after_a_broken_call() -> None:
    answer = '<tool_call>{"name": "mail", "arguments": {"a": <b>}}</tool_call> and more'
    begun, arguments, ended, text = pieces_of("Hermes", answer)
    assert (begun, ended) == (CallBegun("mail"), CallEnded())
    assert arguments == CallArguments('{"a": ')
    assert text == Text("<b>}} and more")


@pytest.mark.parametrize(
    ("family", "opens", "closes"),
    [
        ("Qwen3", "<think>", "</think>"),
        ("DeepSeek", "<think>", "</think>"),
        ("Magistral", "[THINK]", "[/THINK]"),
        ("SmolLM3", "<think>", "</think>"),
        ("Seed", "<seed:think>", "</seed:think>"),
        ("Gemma 4", "<|channel>thought", "<channel|>"),
    ],
)
def test_reasoning_is_apart(family: str, opens: str, closes: str) -> None:
    assert dialect(family).reasons
    thought = [ReasoningText("So\n\n it is"), Text("Yes.\n\nReally. ")]
    answer = f"So\n\n it is\n{closes}\n\nYes.\n\nReally. "
    assert pieces_of(family, f"{opens}\n{answer}") == thought
    assert pieces_of(family, answer, tail=f"assistant\n{opens}\n") == thought
    assert pieces_of(family, f"{opens}\n{answer}", tail=f"{opens}\n") == thought
    # closed twice, empty, never closed
    assert pieces_of(family, f"{opens}a{closes}\n{closes}\n\nb") == [ReasoningText("a"), Text("b")]
    assert pieces_of(family, f"{opens}a{closes}b{closes}c") == [ReasoningText("a"), Text("bc")]
    assert pieces_of(family, f"{opens}\n\n{closes}\n\nb") == [Text("b")]
    assert pieces_of(family, f"{opens}\nfor ever ") == [ReasoningText("for ever")]
    assert pieces_of(family, "\n\nb", tail=f"{opens}\n\n{closes}\n\n") == [Text("b")]
    assert pieces_of(family, "no reasoning") == [Text("no reasoning")]
    assert pieces_of(family, "") == []


@pytest.mark.parametrize(
    ("family", "opens", "closes"),
    [("Qwen3", "<think>", "</think>"), ("Seed", "<seed:think>", "</seed:think>")],
)
def test_what_a_limit_leaves_of_a_tag_is_dropped(family: str, opens: str, closes: str) -> None:
    def cut(said: str) -> list[Piece]:
        parser = dialect(family).parser("", tools=TOOLS)
        pieces = [piece for letter in said for piece in parser.push(0, letter)]
        return [*pieces, *parser.finish(cut=True)]

    for size in range(1, len(opens)):
        assert cut(opens[:size]) == []
    for size in range(1, len(closes)):
        assert merged(cut(f"{opens}So{closes[:size]}")) == [ReasoningText("So")]


def test_an_answer_may_speak_of_tags() -> None:
    answer = 'It splits at "</think>"; the <think> tag opens, and `<think>` too.'
    assert pieces_of("Qwen3", answer) == [Text(answer)]


def test_calls_follow_reasoning() -> None:
    call_text = '<tool_call>{"name": "mail", "arguments": {}}</tool_call>'
    answer = f"I could write {call_text}.</think>\n\n{call_text}"
    assert pieces_of("Qwen3", answer, tail="<think>\n") == [
        ReasoningText(f"I could write {call_text}."),
        *call("mail", "{}"),
    ]
    # A control token cannot be a quotation.
    answer = "[THINK]I write.[TOOL_CALLS]mail[ARGS]{}"
    assert pieces_of("Magistral", answer) == [ReasoningText("I write."), *call("mail", "{}")]


def test_tags_around_an_answer_are_no_text() -> None:
    answer = "<think>a</think> <response>b</response>"
    assert pieces_of("Granite", answer) == [ReasoningText("a"), Text("b")]


def test_control_tokens_that_are_spelled_are_text() -> None:
    spelled = "[THINK]a[/THINK][TOOL_CALLS]mail[ARGS]{}"
    tokens = [token for each in spelled for token in tokens_of("Magistral", each)]
    assert (
        "".join(
            piece.text for piece in told("Magistral", tokens, "", TOOLS) if isinstance(piece, Text)
        )
        == spelled
    )


@pytest.mark.parametrize(
    ("family", "effort", "expected"),
    [
        ("Qwen3", "none", {"enable_thinking": False}),
        ("Qwen3", "high", {"enable_thinking": True}),
        ("Qwen3", None, {}),
        ("Granite", "none", {"thinking": False}),
        ("gpt-oss", "none", {"reasoning_effort": "low"}),
        ("gpt-oss", "xhigh", {"reasoning_effort": "high"}),
        ("Seed", "none", {"thinking_budget": 0}),
        ("plain", "high", {}),
    ],
)
def test_an_effort_sets_what_the_template_knows(
    family: str, effort: str | None, expected: dict[str, object]
) -> None:
    assert dialect(family).switches(effort) == expected


def test_gpt_oss_goes_on_in_the_channel_of_the_prompt() -> None:
    tail = "<|start|>assistant<|channel|>final<|message|>"
    assert pieces_of("gpt-oss", "Yes.<|return|>", tail=tail) == [Text("Yes.")]
    tail = "<|start|>assistant<|channel|>analysis<|message|>"
    answer = "Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes."
    assert pieces_of("gpt-oss", answer, tail=tail) == [ReasoningText("Hm."), Text("Yes.")]
