"""What a grammar may be like before the library that compiles it sees it.

The library limits the work that it does, but not how deep it goes into itself: where rules or
references follow one another for thousands of levels, its process dies. Levels are therefore
counted here, rather too high than too low.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from ds4trio.errors import InvalidRequest

__all__ = ["check_rules", "check_schema"]

LONGEST_SCHEMA = 256 * 1024
LONGEST_RULES = 32 * 1024
"""Bytes."""

DEEPEST_SCHEMA = 100
"""Levels of one schema, references not counted. JSON of more than 128 the library cannot read."""

MOST_PARTS = 8000
"""Objects and arrays of a schema, and MOST_KEYS the names of one object in it: compiling takes the
square of either, four seconds and more beyond these."""
MOST_KEYS = 2000

MOST_PATTERNS = 8
"""Patterns that one text is to fit. Whether any text does takes twice as long with each further
one, and nothing ends it: 12 take a second, 30 have no end."""

MOST_JOINED = 100
"""Schemas that hold at one place, by ``allOf`` and references."""

MOST_SCHEMA_LEVELS = 800
MOST_RULE_LEVELS = 1200
"""All definitions one inside the other. A stack of 8 MiB, which threads have, holds twice that."""

DEEPEST_RULE = 40
"""The library refuses deeper brackets by itself."""

MOST_OPTIONAL = 4000
"""Places in a text of rules where something may be left out. Where they follow one another the
library's work grows with their square, past its own limits: 15,000 take it 450 MB."""

OPTIONAL = re.compile(r"[?*]|\{\s*[0,]|\(\s*\||\|\s*\)")
INLINE_SCHEMA = re.compile(r"%json\b\s*")


def check_schema(schema: Mapping[str, Any] | bool, *, param: str | None) -> None:
    """Refuse a schema that is too large, or brings orders for the library.

    Raises:
        InvalidRequest: that it is.
    """
    # What is far too large is found out fast, not by looking at a million parts of it.
    with contextlib.suppress(TypeError, ValueError, OverflowError, RecursionError):
        _check_size(len(msgspec.json.encode(schema)), param)
    heights = _heights(schema, param)
    _check_patterns(schema, param)
    if _levels(schema, heights) > MOST_SCHEMA_LEVELS:
        raise InvalidRequest(
            f"the schema's definitions make more than {MOST_SCHEMA_LEVELS} levels, which is more "
            "than this server compiles",
            param=param,
        )
    if isinstance(schema, Mapping) and "x-guidance" in schema:
        raise InvalidRequest("the schema keyword 'x-guidance' is not supported here", param=param)
    try:
        _check_size(len(json.dumps(schema, ensure_ascii=False, allow_nan=False).encode()), param)
    except (TypeError, ValueError) as error:  # no JSON, or lone surrogates
        raise InvalidRequest(
            f"the schema cannot be written as JSON: {error}", param=param
        ) from error


def _check_size(size: int, param: str | None) -> None:
    if size > LONGEST_SCHEMA:
        raise InvalidRequest(
            f"the schema has {size} bytes, and this server compiles at most {LONGEST_SCHEMA}",
            param=param,
        )


def check_rules(text: str, *, param: str | None) -> None:
    """Refuse the text of a grammar, or of an expression, that is too large.

    Raises:
        InvalidRequest: that it is.
    """
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequest("the grammar has half a surrogate pair in it", param=param) from error
    if size > LONGEST_RULES:
        raise InvalidRequest(
            f"the grammar has {size} bytes, and this server compiles at most {LONGEST_RULES}",
            param=param,
        )
    if sum(1 for _ in OPTIONAL.finditer(text)) > MOST_OPTIONAL:
        raise InvalidRequest(
            f"the grammar can leave out something in more than {MOST_OPTIONAL} places, which is "
            "more than this server compiles",
            param=param,
        )
    levels = text.count("~") + text.count("%")
    for rule in text.split(":"):
        levels += 1 + min(rule.count("(") + rule.count("["), DEEPEST_RULE)
    if levels > MOST_RULE_LEVELS:
        raise InvalidRequest(
            f"the grammar's rules and brackets make more than {MOST_RULE_LEVELS} levels, which is "
            "more than this server compiles",
            param=param,
        )
    for schema in _inline_schemas(text, param):
        check_schema(schema, param=param)


def _inline_schemas(text: str, param: str | None) -> Iterator[Any]:
    for found in INLINE_SCHEMA.finditer(text):
        try:
            schema, _ = json.JSONDecoder().raw_decode(text, found.end())
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"what follows %json is no JSON: {error}", param=param) from error
        yield schema


def _heights(schema: Any, param: str | None) -> dict[int, int]:
    """How many levels of objects and arrays each one of them has, itself included, by its id."""
    order: list[tuple[Any, int]] = [(schema, 1)]
    for part, depth in order:  # grows meanwhile
        if depth > DEEPEST_SCHEMA:
            raise InvalidRequest(
                f"the schema is nested deeper than {DEEPEST_SCHEMA} levels", param=param
            )
        _check_counts(part, param)
        order.extend((inner, depth + 1) for inner in _inside(part) if _holds(inner))
        if len(order) > MOST_PARTS:
            raise InvalidRequest(
                f"the schema has more than {MOST_PARTS} objects and arrays, which is more than "
                "this server compiles",
                param=param,
            )
    heights: dict[int, int] = {}
    for part, _ in reversed(order):
        heights[id(part)] = 1 + max((heights.get(id(p), 0) for p in _inside(part)), default=0)
    return heights


def _check_counts(part: Any, param: str | None) -> None:
    """A grammar does not remember which further keys an object has, so one key given twice would
    count as two."""
    for name in ("properties", "required", "patternProperties"):
        keys = part.get(name) if isinstance(part, Mapping) else None
        if isinstance(keys, Mapping | list) and len(keys) > MOST_KEYS:
            raise InvalidRequest(
                f"the schema has an object of more than {MOST_KEYS} {name}, which is more than "
                "this server compiles",
                param=param,
            )
    least = part.get("minProperties") if isinstance(part, Mapping) else None
    if isinstance(least, int) and least > 1:
        required = part.get("required")
        if least > (len(required) if isinstance(required, list) else 0):
            raise InvalidRequest(
                "the schema keyword 'minProperties' is not supported above 1 beyond what is "
                "'required'",
                param=param,
            )


def _check_patterns(schema: Any, param: str | None) -> None:
    """Refuse what makes one text fit many patterns, by way of ``allOf`` and references."""
    if not isinstance(schema, Mapping):
        return
    waiting: list[Any] = [schema]
    for part in waiting:  # grows meanwhile
        waiting.extend(inner for inner in _inside(part) if _holds(inner))
        joins = isinstance(part, Mapping) and ("allOf" in part or "$ref" in part)
        if joins and _patterns_at(schema, part) > MOST_PATTERNS:
            raise InvalidRequest(
                f"the schema wants one text to fit more than {MOST_PATTERNS} patterns, or more "
                f"than {MOST_JOINED} schemas at once, which is more than this server compiles",
                param=param,
            )


def _patterns_at(schema: Any, part: Any) -> int:
    """Patterns and formats that hold where ``part`` does, too many where too many schemas do."""
    found = 0
    seen: set[int] = set()
    waiting = [part]
    for one in waiting:  # grows meanwhile
        if not isinstance(one, Mapping) or id(one) in seen:
            continue
        seen.add(id(one))
        found += sum(isinstance(one.get(name), str) for name in ("pattern", "format"))
        if len(seen) > MOST_JOINED:
            return MOST_PATTERNS + 1
        joined = one.get("allOf")
        waiting.extend(joined if isinstance(joined, list) else ())
        if isinstance(target := one.get("$ref"), str):
            waiting.append(_pointed_at(schema, target))
    return found


def _levels(schema: Any, heights: dict[int, int]) -> int:
    """At most how many levels there are when every reference leads to all others."""
    whole = heights[id(schema)]
    targets: dict[str, int] = {}
    waiting = [schema]
    for part in waiting:  # grows meanwhile
        waiting.extend(inner for inner in _inside(part) if _holds(inner))
        target = part.get("$ref") if isinstance(part, Mapping) else None
        if isinstance(target, str) and target not in targets:
            targets[target] = heights.get(id(_pointed_at(schema, target)), whole)
    return whole + sum(targets.values())


def _pointed_at(schema: Any, reference: str) -> Any:
    """What a JSON pointer (RFC 6901) of this schema leads to; None where it is none."""
    if not reference.startswith("#/"):
        return None
    part = schema
    for name in reference[2:].split("/"):
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(part, Mapping):
            part = part.get(name)
        elif isinstance(part, list) and name.isdecimal() and int(name) < len(part):
            part = part[int(name)]
        else:
            return None
    return part


def _holds(part: Any) -> bool:
    return isinstance(part, Mapping | list)


def _inside(part: Any) -> Iterator[Any]:
    if isinstance(part, Mapping):
        yield from part.values()
    elif isinstance(part, list):
        yield from part
