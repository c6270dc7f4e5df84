"""Grammars of calls and reasoning: what they let through is what the parsers read."""

from __future__ import annotations

import functools
import json
import random

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer

from ds4trio.chat.formats import JsonSchema
from ds4trio.chat.grammar import compile_grammar, compose, why_not
from ds4trio.chat.grammar_tokens import make_grammar_tokens
from ds4trio.chat.output import CallArguments, CallBegun, Piece, ReasoningText, Text
from ds4trio.chat.tool import Tool
from ds4trio.request import Tools
from tests.chat.dialects import TEMPLATES, TOOLS, dialect, merged, tokenizer, tokens_of, told

FAMILIES = sorted(TEMPLATES)
THINKING = [
    "Qwen3",
    "Magistral",
    "DeepSeek",
    "Gemma 4",
    "Seed",
    "gpt-oss",
    "Granite",
    "SmolLM3",
]
END = 2
TOWNS = {
    "type": "object",
    "properties": {"city": {"enum": ["Köln"]}},
    "required": ["city"],
    "additionalProperties": False,
}
NOTHING = {"type": "object", "additionalProperties": False}
ANSWER = JsonSchema(
    {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
)


@functools.cache
def vocabulary(family: str) -> LLTokenizer:
    return make_grammar_tokens(tokenizer(family), size=tokenizer(family).vocab_size, ends=[END])


def matcher(
    family: str, tools: Tools, answer: JsonSchema | None = None, tail: str = ""
) -> LLMatcher:
    rules = dialect(family).grammar_rules(tools, answer, tail)
    assert rules is not None
    compiled = compile_grammar(compose(rules[0], param=None, **rules[1]), vocabulary(family))
    assert why_not(compiled) is None
    return compiled


def accepts(compiled: LLMatcher, tokens: list[int]) -> bool:
    return bool(compiled.consume_tokens(tokens)) and compiled.is_accepting()


def drawn(compiled: LLMatcher, family: str, seed: int, *, most: int = 2_000) -> list[int]:
    """Tokens at random, of those that are allowed; the shorter a text the likelier."""
    choose = random.Random(seed)
    tokens: list[int] = []
    known = tokenizer(family)
    closing = [
        token for token in range(known.vocab_size) if known.token_bytes(token) in (b'"', b"}")
    ]
    while len(tokens) < most and not compiled.is_stopped():
        bits = compiled.compute_bitmask()
        allowed = [
            token for token in range(known.vocab_size) if bits[token // 8] >> (token % 8) & 1
        ]
        assert allowed
        if END in allowed and choose.random() < 0.5:
            break
        control = [token for token in allowed if known.is_control(token) and token != END]
        ending = [token for token in closing if token in allowed]
        pool = next((each for each in (control, ending) if each and choose.random() < 0.4), allowed)
        tokens.append(choose.choice([token for token in pool if token != END] or pool))
        if tokens[-1] == END:
            tokens.pop()
            break
        assert compiled.consume_token(tokens[-1])
    return tokens


def one_call(family: str, name: str) -> list[int]:
    """The tokens of a call in the form that the family is made to use."""
    tools = Tools(
        (Tool("weather", "", TOWNS), Tool("mail", "", NOTHING)), "required", (name,), False
    )
    for seed in range(20):
        compiled = matcher(family, tools)
        tokens = drawn(compiled, family, seed)
        text = as_text(family, tokens)
        plain = not any(each in text for each in ("think", "THINK", "thought", "analysis"))
        if compiled.is_accepting() and plain:
            return tokens
    raise AssertionError("no seed draws a call alone")


def as_text(family: str, tokens: list[int]) -> str:
    return tokenizer(family).decode(tokens)


def calls_in(pieces: list[Piece]) -> list[tuple[str, str]]:
    calls: list[tuple[str, str]] = []
    for piece in pieces:
        if isinstance(piece, CallBegun):
            calls.append((piece.name, ""))
        elif isinstance(piece, CallArguments):
            name, arguments = calls.pop()
            calls.append((name, arguments + piece.text))
    return calls


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("parallel", [True, False])
def test_what_must_be_a_call_is_one_that_fits(family: str, parallel: bool) -> None:
    tools = Tools(TOOLS, "required", ("weather",), parallel)
    finished = 0
    for seed in range(6):
        compiled = matcher(family, tools)
        tokens = drawn(compiled, family, seed)
        if not compiled.is_accepting():
            continue  # a long one
        finished += 1
        pieces = merged(told(family, tokens, "", tools.callable))
        calls = calls_in(pieces)
        assert len(calls) >= 1 if parallel else len(calls) == 1
        assert not [piece for piece in pieces if isinstance(piece, Text)]
        for name, arguments in calls:
            assert name == "weather"
            jsonschema.validate(json.loads(arguments), dict(TOOLS[0].parameters))
    assert finished


@pytest.mark.parametrize("family", FAMILIES)
def test_strict_tools_leave_the_answer_free(family: str) -> None:
    strict = Tool("weather", "", TOOLS[0].parameters, strict=True)
    tools = Tools((strict, Tool("mail")))
    speaks = "<|channel|>final<|message|>" if family == "gpt-oss" else ""
    text = tokens_of(family, f"{speaks}It rains.\n")
    assert accepts(matcher(family, tools), text)
    assert dialect(family).grammar_rules(Tools((Tool("mail"),))) is None


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("spoken", ["", "It is so.\n"])
def test_a_strict_call_that_is_wrong_cannot_be_written(family: str, spoken: str) -> None:
    tools = Tools((Tool("weather", "", TOWNS, strict=True), Tool("mail")))
    right = as_text(family, one_call(family, "weather"))
    if family in ("Llama 3", "gpt-oss"):
        spoken = ""  # their calls stand at the beginning
    wrong = tokens_of(family, spoken + right.replace('"Köln"', "7"))
    assert wrong != tokens_of(family, spoken + right)
    assert accepts(matcher(family, tools), tokens_of(family, spoken + right))
    compiled = matcher(family, tools)
    assert not all(compiled.try_consume_tokens([token]) for token in wrong)


@pytest.mark.parametrize("family", FAMILIES)
def test_one_call_at_most(family: str) -> None:
    tools = Tools(TOOLS, parallel=False)
    speaks = "<|channel|>final<|message|>" if family == "gpt-oss" else ""
    assert accepts(matcher(family, tools), tokens_of(family, f"{speaks}It rains."))
    single = one_call(family, "mail")
    assert accepts(matcher(family, tools), single)
    for seed in range(4):
        compiled = matcher(family, tools)
        assert all(compiled.try_consume_tokens([token]) for token in single)
        more = drawn(compiled, family, seed, most=40)
        calls = calls_in(merged(told(family, [*single, *more], "", TOOLS)))
        assert [name for name, _ in calls] == ["mail"]
    assert not accepts(matcher(family, tools), [*single, *single])


def test_what_rules_cannot_watch_is_no_call() -> None:
    """A brace at the beginning is a call for models that are told of tools in words."""
    strict = (Tool("weather", "", TOWNS, strict=True),)
    bad = tokens_of("plain", '\x1c {"name": "weather", "arguments": {}}')
    assert not accepts(matcher("plain", Tools(strict)), bad)
    # Another family's call is text where the rules are this family's.
    answer = '<tool_call>{"name": "weather", "arguments": {}}</tool_call>'
    tokens = tokens_of("Mistral", answer)
    assert accepts(matcher("Mistral", Tools(strict)), tokens)
    assert merged(told("Mistral", tokens, "", strict)) == [Text(answer)]
    loose = (Tool("weather", "", TOWNS),)
    assert calls_in(merged(told("Mistral", tokens, "", loose))) == [("weather", "{}")]


@pytest.mark.parametrize("family", THINKING)
def test_reasoning_comes_before_a_format(family: str) -> None:
    harmony = family == "gpt-oss"
    own = dialect(family)
    begin = "<|channel|>analysis<|message|>" if harmony else own.reasoning_begin
    end = own.reasoning_end
    speaks = "<|channel|>final<|message|>" if harmony else ""
    answer = '{"ok": true}'
    thought = tokens_of(family, f'{begin}So {{"it" is.{end}{answer}')
    assert accepts(matcher(family, Tools(), ANSWER), thought)
    assert accepts(matcher(family, Tools(), ANSWER), tokens_of(family, f"{speaks}{answer}"))
    begun = tokens_of(family, f"So it is.{end}{answer}")
    tail = begin if harmony else f"{begin}\n"
    assert accepts(matcher(family, Tools(), ANSWER, tail), begun)
    assert not accepts(
        matcher(family, Tools(), ANSWER), tokens_of(family, f"{begin}So{end}no format")
    )
    assert merged(told(family, thought, "", TOOLS)) == [
        ReasoningText('So {"it" is.'),
        Text(answer),
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_format_or_a_call(family: str) -> None:
    tools = Tools(TOOLS)
    speaks = "<|channel|>final<|message|>" if family == "gpt-oss" else ""
    right, wrong = (tokens_of(family, f"{speaks}{text}") for text in ('{"ok": true}', '{"ok": 1}'))
    assert accepts(matcher(family, tools, ANSWER), right)
    assert not accepts(matcher(family, tools, ANSWER), wrong)
    forced = drawn(matcher(family, Tools(TOOLS, "required", ("mail",), False)), family, 3)
    if family == "Llama 3":  # elsewhere a marker says that it is a call
        forced = [*tokens_of(family, "<|python_tag|>"), *forced]
    assert matcher(family, tools, ANSWER).consume_tokens(forced)
