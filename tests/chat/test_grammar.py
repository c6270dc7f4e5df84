"""Grammars of answers: what they let through, and what is refused before anything is generated."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from llguidance import LLTokenizer

from ds4trio.chat.formats import Choice, Format, JsonObject, JsonSchema, Lark, Regex
from ds4trio.chat.grammar import check, compile_grammar, compose
from ds4trio.chat.grammar_tokens import make_grammar_tokens
from ds4trio.chat.tokenizer import Tokenizer
from ds4trio.errors import InvalidRequest
from tests.tiny import make_tiny_tokenizer

BEGIN, END = 1, 2
SIZE = 320
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(make_tiny_tokenizer().to_str())


@pytest.fixture(scope="module")
def tokens(tokenizer: Tokenizer) -> LLTokenizer:
    return make_grammar_tokens(tokenizer, size=SIZE, ends={END})


@pytest.fixture(scope="module")
def fits(tokenizer: Tokenizer, tokens: LLTokenizer) -> Callable[[str, str], bool]:
    """Whether an answer may be this text, and end there."""

    def whether(grammar: str, text: str) -> bool:
        check(grammar, tokens, param="format")
        matcher = compile_grammar(grammar, tokens)
        ids = tokenizer.encode(text, special=True, begins=False)
        return matcher.try_consume_tokens([*ids, END]) >= len(ids) and matcher.is_accepting()

    return whether


def alone(wanted: Format) -> str:
    return compose("start: @answer", answer=wanted)


@pytest.mark.parametrize(
    ("wanted", "good", "bad"),
    [
        (JsonObject(), '{"a": [1, {"b": null}]}', "[1]"),
        (JsonSchema(PERSON), '{"name": "Ada", "age": 36}', '{"name": "Ada"}'),
        (
            JsonSchema(PERSON),
            '{\n  "name": "Adá\\n",\n  "age": 36\n}',
            '{"name":  "A", "age": 3}',
        ),
        (JsonSchema(True), "[1.5, true]", "[1.5, tru]"),
        (Regex("^[0-9]{3}/(a|b)+$"), "123/abba", "123/"),
        (Regex("a\nb"), "a\nb", "a b"),
        (Choice(("yes", 'no "\\\x7f\n', "😀")), 'no "\\\x7f\n', "no"),
        (Choice(("a", "ab")), "ab", "abc"),
        (Lark('start: "x" y?\ny: /[0-9]+/'), "x12", "xy"),
        (Lark('root ::= "x" y?\ny ::= [0-9]+'), "x12", "xy"),
    ],
)
def test_a_format_lets_through_what_it_means(
    fits: Callable[[str, str], bool], wanted: Format, good: str, bad: str
) -> None:
    assert fits(alone(wanted), good)
    assert not fits(alone(wanted), bad)


def test_white_space_in_json_ends(fits: Callable[[str, str], bool]) -> None:
    grammar = alone(JsonSchema({"type": "array", "items": {"type": "integer"}}))
    assert fits(grammar, "[1, 2,\n" + " " * 20 + "3]")
    assert not fits(grammar, "[1,  2]")
    assert not fits(grammar, "[1,\n\n2]")
    assert not fits(grammar, "[1]\n")


def test_rules_around_formats(fits: Callable[[str, str], bool]) -> None:
    grammar = compose(
        f'start: (THINK <[{BEGIN}]>)? answer\nTHINK: /[^{{]*/\nanswer: @answer | "call:" @call',
        answer=JsonSchema(PERSON),
        call=JsonObject(),
    )
    assert fits(grammar, 'hm...<|im_start|>call:{"x": 1}')
    assert fits(grammar, '{"name": "A", "age": 1}')
    assert not fits(grammar, 'hm...call:{"x": 1}')


def test_text_that_looks_like_a_control_token_is_text(
    tokenizer: Tokenizer, tokens: LLTokenizer
) -> None:
    grammar = compose(f'start: "a" <[{BEGIN}]> "b"')
    matcher = compile_grammar(grammar, tokens)
    typed = tokenizer.encode("a<|im_start|>b", special=False)
    assert matcher.try_consume_tokens(typed) == 1


def nested(levels: int, inner: Any) -> Any:
    for _ in range(levels):
        inner = {"type": "array", "items": inner}
    return inner


def chain(count: int, link: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """Definitions that each refer to the next one."""
    definitions = {f"d{i}": link({"$ref": f"#/$defs/d{i + 1}"}) for i in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{count}": {"type": "string"}}}


def rules(count: int, rule: str, last: str = '"a"') -> Lark:
    """``rule`` over and over, with ``{0}`` its own number and ``{1}`` the next."""
    lines = [rule.format(i, i + 1) for i in range(count)]
    return Lark("start: a0 | A0\n" + "\n".join(lines) + f"\na{count}: {last}\nA{count}: {last}")


HOSTILE: dict[str, tuple[Format, str]] = {
    "not": (JsonSchema({"not": {"type": "string"}}), "not"),
    "unique": (JsonSchema({"type": "array", "uniqueItems": True}), "uniqueItems"),
    "condition": (JsonSchema({"if": {}, "then": {}}), "if"),
    "few keys": (JsonSchema({"type": "object", "minProperties": 3}), "minProperties"),
    "lenient": (JsonSchema({"x-guidance": {"lenient": True}, "not": {}}), "x-guidance"),
    "false": (JsonSchema(False), "nothing"),
    "type": (JsonSchema({"type": "text"}), "text"),
    "remote": (JsonSchema({"$ref": "http://example.com/schema"}), "example.com"),
    "missing": (JsonSchema({"$ref": "#/$defs/nowhere"}), "nowhere"),
    "circle": (JsonSchema({"$ref": "#/a", "a": {"$ref": "#/b"}, "b": {"$ref": "#/a"}}), "level"),
    "range": (JsonSchema({"type": "integer", "minimum": 5, "maximum": 3}), "Unsatisfiable"),
    "pattern": (JsonSchema({"type": "string", "pattern": "(?=a)"}), "look-around"),
    "deep": (JsonSchema(nested(101, True)), "100 levels"),
    "very deep": (JsonSchema(nested(100_000, True)), "100 levels"),
    "long chain": (JsonSchema(chain(2000, lambda ref: ref)), "100 schemas"),
    "deep chain": (JsonSchema(chain(100, lambda ref: nested(50, ref))), "levels"),
    "infinite": (JsonSchema({"type": "number", "minimum": float("inf")}), "JSON"),
    "surrogate": (JsonSchema({"const": "\ud800"}), "JSON"),
    "patterns": (
        JsonSchema(
            {"allOf": [{"type": "string", "pattern": f".*a.{{{i}}}b.*"} for i in range(30)]}
        ),
        "8 patterns",
    ),
    "referred patterns": (
        JsonSchema(
            {
                "allOf": [{"$ref": f"#/$defs/{i}"} for i in range(30)],
                "$defs": {
                    str(i): {"type": "string", "pattern": f".*a.{{{i}}}b"} for i in range(30)
                },
            }
        ),
        "8 patterns",
    ),
    "properties": (JsonSchema({"properties": {str(i): {} for i in range(2001)}}), "2000 prop"),
    "required": (JsonSchema({"required": [str(i) for i in range(2001)]}), "2000 req"),
    "parts": (JsonSchema({"enum": [[[]]] * 5000}), "8000 objects"),
    "huge": (JsonSchema({"enum": ["x" * 300_000]}), "bytes"),
    "crossed": (
        JsonSchema(
            {
                "allOf": [
                    {"anyOf": [{"properties": {f"{i}{j}": {}}} for j in range(10)]}
                    for i in range(10)
                ]
            }
        ),
        "too large",
    ),
    "open bracket": (Regex("(a"), "regex"),
    "10 MB": (Regex("a" * 10_000_000), "bytes"),
    "nested regex": (Regex("(" * 16_000 + ")" * 16_000), "regex"),
    "regex surrogate": (Regex("\udfff"), "surrogate"),
    "no choice": (Choice(()), "at least one"),
    "choice surrogate": (Choice(("\ud83d",)), "surrogate"),
    "many choices": (Choice(("ab",) * 100_000), "too long"),
    "no rules": (Lark("hello"), "GBNF"),
    "unknown rule": (Lark("start: other"), "other"),
    "unknown token": (Lark("start: <[99999]>"), "99999"),
    "unknown grammar": (Lark("start: @other"), "other"),
    "left": (Lark("start: s\ns: s"), "no text"),
    "left out": (Regex("a?" * 4001), "4000 places"),
    "alternatives": (Regex("(|a)" * 4001), "4000 places"),
    "rules": (rules(1100, "a{0}: a{1}\nA{0}: A{1}"), "levels"),
    "brackets": (rules(300, "a{0}: ((((((((((((a{1}))))))))))))\nA{0}: A{1}"), "levels"),
    "doubled": (rules(60, "a{0}: a{1}\nA{0}: A{1} A{1}"), "too big"),
    "inline": (Lark('start: %json {"not": {}}'), "not"),
    "inline lenient": (Lark('start: %json {"x-guidance": {"lenient": true}}'), "x-guidance"),
    "inline deep": (Lark("start: %json " + "[" * 20_000), "JSON"),
    "gbnf nested": (Lark("root ::= " + "(" * 15_000 + ")" * 15_000), "GBNF"),
    "gbnf open": (Lark('root ::= "'), "GBNF"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_cannot_be_held_is_refused_at_once(tokens: LLTokenizer, name: str) -> None:
    wanted, reason = HOSTILE[name]
    began = time.thread_time()
    with pytest.raises(InvalidRequest, match=reason) as caught:
        check(compose("start: @answer", param="schema", answer=wanted), tokens, param="schema")
    assert caught.value.param == "schema"
    assert len(caught.value.message) < 600
    assert time.thread_time() - began < 5.0


def test_large_but_honest_schemas_compile(tokens: LLTokenizer) -> None:
    many = {f"field_{i}": {"type": "string", "maxLength": 200} for i in range(200)}
    words = {"enum": [f"value number {i}" for i in range(5000)]}
    tree = chain(60, lambda ref: {"type": "object", "properties": {"next": ref, "n": {}}})
    for schema in ({"type": "object", "properties": many}, words, tree):
        check(alone(JsonSchema(schema)), tokens, param=None)


def test_a_name_that_rules_cannot_refer_to_is_a_fault_of_ours() -> None:
    with pytest.raises(ValueError, match="Answer"):
        compose("start: @Answer", Answer=JsonObject())


def test_a_grammar_is_json(tokens: LLTokenizer) -> None:
    written = json.loads(alone(JsonSchema(PERSON)))
    assert [part.get("name") for part in written["grammars"]] == [None, "answer"]
