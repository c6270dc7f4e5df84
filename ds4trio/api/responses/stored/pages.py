"""What queries of stored responses say: numbers, truths, and a page of a list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ds4trio.errors import InvalidRequest

__all__ = ["know", "number_of", "page_of", "truth_of"]

Query = Mapping[str, str]


def know(query: Query, *names: str) -> None:
    """Refuse what nobody reads.

    Raises:
        InvalidRequest: a query has another name than these.
    """
    for name in query:
        if name.removesuffix("[]") not in names:
            raise InvalidRequest(
                f"{name[:100]} is not a parameter that this server knows",
                param=name[:100],
                code="unknown_parameter",
            )


def number_of(query: Query, name: str, default: int, *, least: int = -1, most: int = 2**53) -> int:
    """A whole number of a query.

    Raises:
        InvalidRequest: it is none, or out of range.
    """
    text = query.get(name)
    if text is None:
        return default
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()):
        raise InvalidRequest(f"{name} must be a whole number", param=name)
    number = int(text) if len(text) <= 20 else most + 1
    if not least <= number <= most:
        raise InvalidRequest(f"{name} must be from {least} to {most}", param=name)
    return number


def truth_of(query: Query, name: str) -> bool:
    """A truth of a query, false where it is left out.

    Raises:
        InvalidRequest: it is neither ``true`` nor ``false``.
    """
    text = query.get(name, "false").lower()
    if text not in ("true", "false", "1", "0"):
        raise InvalidRequest(f"{name} must be true or false", param=name)
    return text in ("true", "1")


def page_of(items: Sequence[Mapping[str, Any]], query: Query) -> dict[str, Any]:
    """One page of a list of items, by ``limit``, ``order``, ``after`` and ``before``.

    Raises:
        InvalidRequest: a value is out of range, or names no item.
    """
    limit = number_of(query, "limit", 20, least=1, most=100)
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest("order must be asc or desc", param="order")
    ordered = list(items) if order == "asc" else list(reversed(items))
    ids = [item["id"] for item in ordered]
    start = _place(ids, query, "after") + 1
    end = _place(ids, query, "before", len(ids))
    page = ordered[start : min(start + limit, end)]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": start + limit < end,
    }


def _place(ids: Sequence[str], query: Query, name: str, default: int = -1) -> int:
    wanted = query.get(name)
    if wanted is None:
        return default
    if wanted not in ids:
        raise InvalidRequest(f"{name} names no item of this list", param=name)
    return ids.index(wanted)
