"""What docs/api.md says of the fields of requests; the page's build takes it out of the tables."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec

from ds4trio.api.built import built_folder

__all__ = ["documented_fields", "with_descriptions"]


@cache
def documented_fields() -> Mapping[str, Mapping[str, str]]:
    """By the name of a wire type, its fields in the order of the documentation, each with a text
    in Markdown whose links lead into ``/docs``."""
    texts = (built_folder() / "fields.json").read_bytes()
    return msgspec.json.decode(texts, type=dict[str, dict[str, str]])


def with_descriptions(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a wire type with what is documented of its fields, which come in that order:
    those that are honoured, those without effect, those that are refused."""
    described = documented_fields().get(name)
    if described is None:
        return schema
    properties = schema["properties"]
    order = [*described, *(field for field in properties if field not in described)]
    return {
        **schema,
        "properties": {
            field: {**properties[field], "description": described[field]}
            if field in described
            else properties[field]
            for field in order
            if field in properties
        },
    }
