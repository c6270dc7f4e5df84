"""Objects of a schema have the keys that it names, where it leaves open which others they have.

JSON Schema allows any others. A small model writes them, and a function that is called with them
fails; a grammar cannot tell either that one of them has come twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["closed"]

COMBINING = frozenset(("allOf", "if", "then", "else", "not", "dependentSchemas", "$dynamicRef"))
"""What lays several schemas over one object: closed, each would forbid the keys of the others."""

OVERLAYS = frozenset(("anyOf", "oneOf", "$ref"))
"""The same, beside ``properties`` or ``required``."""

OPENING = frozenset(
    (
        "additionalProperties",
        "unevaluatedProperties",
        "patternProperties",
        "propertyNames",
        "minProperties",
    )
)
"""What says something about other keys, or counts them."""

NAMED = ("properties", "$defs", "definitions")
LISTED = ("anyOf", "oneOf", "prefixItems")
SINGLE = ("items", "additionalProperties")


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with ``additionalProperties: false`` where that narrows what it allows and leaves
    something to allow. One that combines schemas anywhere is returned as it is.

    Args:
        schema: of bounded depth.
    """
    return _closed(schema) if not _combines(schema) else dict(schema)


def _combines(schema: Any) -> bool:
    if not isinstance(schema, Mapping):
        return False
    if not COMBINING.isdisjoint(schema):
        return True
    if not {"properties", "required"}.isdisjoint(schema) and not OVERLAYS.isdisjoint(schema):
        return True
    return any(map(_combines, _parts(schema)))


def _parts(schema: Mapping[str, Any]) -> list[Any]:
    parts = [schema[key] for key in SINGLE if key in schema]
    for key in LISTED:
        parts += schema[key] if isinstance(schema.get(key), list) else []
    for key in NAMED:
        parts += schema[key].values() if isinstance(schema.get(key), Mapping) else []
    return parts


def _closed(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    inner = dict(schema)
    for key in SINGLE:
        if key in inner:
            inner[key] = _closed(inner[key])
    for key in LISTED:
        if isinstance(inner.get(key), list):
            inner[key] = [_closed(part) for part in inner[key]]
    for key in NAMED:
        if isinstance(inner.get(key), Mapping):
            inner[key] = {name: _closed(part) for name, part in inner[key].items()}
    properties, required = inner.get("properties"), inner.get("required", [])
    if (
        isinstance(properties, Mapping)
        and OPENING.isdisjoint(inner)
        and isinstance(required, list)
        and all(isinstance(name, str) and name in properties for name in required)
    ):
        inner["additionalProperties"] = False
    return inner
