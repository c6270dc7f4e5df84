"""Objects of a schema have the keys that it names, unless it says something else."""

from __future__ import annotations

from typing import Any

import pytest

from ds4trio.chat.closed_schema import closed

A = {"a": {"type": "string"}}
OBJECT: dict[str, Any] = {"type": "object", "properties": A}
CLOSED: dict[str, Any] = {**OBJECT, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (OBJECT, CLOSED),
        ({**OBJECT, "required": ["a"]}, {**CLOSED, "required": ["a"]}),
        ({"properties": {}}, {"properties": {}, "additionalProperties": False}),
        ({"type": "array", "items": OBJECT}, {"type": "array", "items": CLOSED}),
        ({"anyOf": [OBJECT, {"type": "null"}]}, {"anyOf": [CLOSED, {"type": "null"}]}),
        (
            {"properties": {"allOf": OBJECT}},
            {"properties": {"allOf": CLOSED}, "additionalProperties": False},
        ),
        (
            {"$defs": {"x": OBJECT}, "properties": {"x": {"$ref": "#/$defs/x"}}},
            {
                "$defs": {"x": CLOSED},
                "properties": {"x": {"$ref": "#/$defs/x"}},
                "additionalProperties": False,
            },
        ),
        (
            {"type": "object", "additionalProperties": OBJECT},
            {"type": "object", "additionalProperties": CLOSED},
        ),
    ],
)
def test_other_keys_are_closed_out(schema: Any, expected: Any) -> None:
    before = repr(schema)
    assert closed(schema) == expected
    assert repr(schema) == before


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {**OBJECT, "additionalProperties": True},
        {**OBJECT, "additionalProperties": {"type": "integer"}},
        {**OBJECT, "patternProperties": {"^x": {}}},
        {**OBJECT, "minProperties": 2},
        {**OBJECT, "required": ["b"]},
        {"allOf": [OBJECT, {"properties": {"b": {}}}]},
        {**OBJECT, "anyOf": [{"properties": {"b": {}}, "required": ["b"]}]},
        {**OBJECT, "$ref": "#/$defs/x", "$defs": {"x": {"properties": {"b": {}}}}},
        {"$defs": {"x": OBJECT}, "anyOf": [{"$ref": "#/$defs/x", "required": ["b"]}]},
        {"properties": {"deep": {"items": {"if": OBJECT, "then": {"required": ["b"]}}}}},
        {"properties": 3, "required": "a", "items": [1], "anyOf": None, "$defs": []},
    ],
)
def test_what_speaks_of_other_keys_or_combines_schemas_stays(schema: Any) -> None:
    assert closed(schema) == schema
