"""What an answer must look like, as the text of an llguidance grammar.

A grammar text is a JSON list of grammars, of which the first one is where an answer begins; it is
what ``SamplingParams.grammar`` takes. ``compose`` makes it of rules around formats, so that an
answer may be a tool call, or reasoning and then JSON; ``check`` compiles it as the engine will.
"""

from __future__ import annotations

import json
import re
import time

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, regex_to_lark
from llguidance.gbnf_to_lark import gbnf_to_lark, is_lark_syntax

from ds4trio.chat.closed_schema import closed
from ds4trio.chat.formats import Choice, Format, JsonObject, JsonSchema, Lark, Regex
from ds4trio.chat.grammar_limits import LONGEST_SCHEMA, check_rules, check_schema
from ds4trio.errors import InvalidRequest

__all__ = ["LIMITS", "check", "compile_grammar", "compose", "why_not"]

SPACES = r" |\n(?: {0,20}|\t{0,8})"
"""White space in JSON, at most once in each place: a blank, or a new line and what indents it.
Without a bound small models write blanks until the answer ends by its length."""

SLOWEST = 1.0
"""Seconds of a processor that compiling may take: rows that want to draw wait for it."""

LIMITS = LLParserLimits(
    initial_lexer_fuel=400_000,
    step_lexer_fuel=100_000,
    step_max_items=25_000,
    max_lexer_states=30_000,
    max_grammar_size=200_000,
    verbose_errors=False,  # they quote the grammar and the answer
)
"""What keeps a mask to some milliseconds and a grammar to some tens of megabytes."""

NAME = re.compile(r"[a-z_][a-z0-9_]*")


def compose(start_rules: str, *, param: str | None = None, **formats: Format) -> str:
    """A grammar whose rules name formats.

    Args:
        start_rules: in llguidance's form of Lark's language, ``start`` among them. ``@answer`` is
            the format that is given as ``answer=``; ``<[7]>`` is the token 7, which text cannot
            stand for if it is a control token. White space is not ignored.
        param: the request's field, for errors.
        formats: by lower-case names.

    Returns:
        Its text, not compiled yet.

    Raises:
        InvalidRequest: a format is too large, or is not what it says.
    """
    grammars: list[dict[str, object]] = [{"lark_grammar": start_rules}]
    for name, wanted in formats.items():
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot name a grammar")
        grammars.append({"name": name, **_one(wanted, param)})
    return json.dumps({"grammars": grammars}, ensure_ascii=False)


def check(grammar: str, tokens: LLTokenizer, *, param: str | None) -> None:
    """Compile a grammar and find its first tokens. Blocks, mostly without the interpreter's lock;
    for worker threads.

    Args:
        grammar: what ``compose`` returned.
        tokens: the model's, of ``make_grammar_tokens``.
        param: the request's field, for errors.

    Raises:
        InvalidRequest: it has a fault, asks for what cannot be held, matches nothing, or is too
            large or too slow.
    """
    began = time.thread_time()
    matcher = compile_grammar(grammar, tokens)
    error = why_not(matcher)
    if error is None:
        matcher.compute_bitmask()
        error = why_not(matcher)
    if error is None and matcher.is_stopped() and not matcher.is_accepting():
        error = "it matches no text"
    if error is None and time.thread_time() - began > SLOWEST:
        error = "it takes too long to compile"
    if error is not None:
        raise InvalidRequest(f"the format of the answer cannot be held: {error}", param=param)


def compile_grammar(grammar: str, tokens: LLTokenizer) -> LLMatcher:
    """A matcher at the beginning of an answer; ``why_not`` says whether it is of any use."""
    return LLMatcher(tokens, grammar, log_level=0, limits=LIMITS)


def why_not(matcher: LLMatcher) -> str | None:
    """What is wrong with a matcher, in one line; None if it can go on."""
    if not matcher.is_error():
        return None
    error = matcher.get_error()
    if error.startswith("panic"):
        return "it is too large"
    if error.startswith("NoExtension"):
        return "it matches no text"
    line = " ".join(error.split("<state>")[0].replace("<non-verbose/>", "").split())
    return line if len(line) <= 400 else line[:400] + "..."


def _one(wanted: Format, param: str | None) -> dict[str, object]:
    match wanted:
        case JsonObject():
            return _json({"type": "object"}, param)
        case JsonSchema(schema):
            return _json(schema, param)
        case Regex(pattern):
            check_rules(pattern, param=param)
            return {"lark_grammar": f"start: /{regex_to_lark(pattern, '')}/"}
        case Choice(texts):
            return _choice(texts, param)
        case Lark(text):
            check_rules(text, param=param)
            return {"lark_grammar": _lark(text, param)}


def _json(schema: object, param: str | None) -> dict[str, object]:
    if schema is False:
        raise InvalidRequest("nothing fits the schema false", param=param)
    if schema is not True and not isinstance(schema, dict):
        raise InvalidRequest("a schema is an object, true or false", param=param)
    whole = {} if schema is True else schema
    check_schema(whole, param=param)
    return {"json_schema": {"x-guidance": {"whitespace_pattern": SPACES}, **closed(whole)}}


def _choice(texts: tuple[str, ...], param: str | None) -> dict[str, object]:
    if not texts:
        raise InvalidRequest("there must be at least one text to choose", param=param)
    written = " | ".join(map(_literal, texts))
    if len(written) > LONGEST_SCHEMA:
        raise InvalidRequest("the texts to choose from are too long", param=param)
    if any("\ud800" <= character <= "\udfff" for character in written):
        raise InvalidRequest("a text to choose has half a surrogate pair in it", param=param)
    # One terminal: as rules they would be too many soon.
    return {"lark_grammar": f"start: TEXT\nTEXT: {written}"}


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _lark(text: str, param: str | None) -> str:
    if is_lark_syntax(text):
        return text
    try:
        return gbnf_to_lark(text)
    except Exception as error:  # it has no type of its own
        reason = str(error) or type(error).__name__
        raise InvalidRequest(
            f"the grammar is neither Lark (it has no rule 'start') nor GBNF: {reason}", param=param
        ) from error
