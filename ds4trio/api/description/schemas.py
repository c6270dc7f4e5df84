"""JSON schemas of the wire types, and of answers, which have none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ds4trio.api.description.fields import with_descriptions

__all__ = ["COUNT", "TEXT", "Schema", "a_list", "an_object", "wire_schemas"]

Schema = Mapping[str, Any]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}


def an_object(*required: str, **known: Schema) -> Schema:
    """An object that always has these fields; those that are ``known`` with their types."""
    properties: dict[str, Any] = {name: {} for name in required} | {
        name: dict(kind) for name, kind in known.items()
    }
    return {
        "type": "object",
        "required": [*required, *(name for name in known if name not in required)],
        "properties": properties,
    }


def a_list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def wire_schemas(kinds: Iterable[Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A reference for each of the wire types, and the components that these name, with what is
    documented of their fields.

    Args:
        kinds: msgspec structs, or unions of them.
    """
    references, components = msgspec.json.schema_components(
        list(kinds), ref_template="#/components/schemas/{name}"
    )
    for schema in components.values():
        if "description" in schema:
            schema["description"] = " ".join(schema["description"].replace("``", "`").split())
    described = {name: with_descriptions(name, schema) for name, schema in components.items()}
    return list(references), described
