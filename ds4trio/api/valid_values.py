"""Which values a place in a request can have, for an error that names the place.

msgspec says of a value that is none of a few only that it is wrong, and where.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import msgspec.inspect as inspect

__all__ = ["valid_values"]

_described = functools.cache(inspect.type_info)

_STEP = re.compile(r"\.(?P<field>\w+)|\[(?P<inside>[^\]]*)\]")


def valid_values(kind: Any, path: str) -> list[str]:
    """What the type allows at a path as msgspec writes it, such as ``$.messages[0].role``.

    Empty where that is not a choice among a few, or depends on what else the request says.
    """
    places = list(_alternatives(_described(kind)))
    for step in _STEP.finditer(path.removeprefix("$")):
        if step["inside"] is None:
            tags = [str(one.tag) for one in _structs(places) if one.tag_field == step["field"]]
            if tags:
                return tags
        inside = [part for place in places for part in _parts(place, step)]
        places = [found for part in inside for found in _alternatives(part)]
    choices = {
        tuple(map(str, place.values)) for place in places if isinstance(place, inspect.LiteralType)
    }
    return list(choices.pop()) if len(choices) == 1 else []


def _structs(places: list[inspect.Type]) -> Iterator[inspect.StructType]:
    return (place for place in places if isinstance(place, inspect.StructType))


def _alternatives(kind: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from _alternatives(one)
    elif isinstance(kind, inspect.Metadata):
        yield from _alternatives(kind.type)
    else:
        yield kind


def _parts(place: inspect.Type, step: re.Match[str]) -> Iterator[inspect.Type]:
    """What is one step further inside."""
    if isinstance(place, inspect.StructType) and step["inside"] is None:
        yield from (one.type for one in place.fields if one.encode_name == step["field"])
    elif isinstance(place, inspect.CollectionType) and step["inside"] is not None:
        yield place.item_type
    elif isinstance(place, inspect.DictType) and step["inside"] is not None:
        yield place.value_type
