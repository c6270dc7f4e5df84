"""The models that are served, in the shape of Anthropic's API."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ds4trio.api.service import Served, Service
from ds4trio.errors import InvalidRequest

__all__ = ["anthropic_model", "anthropic_models"]

MOST, USUAL = 1000, 20
"""Models on a page, at most and by default, as at Anthropic."""


def anthropic_model(service: Service, served: Served) -> dict[str, Any]:
    """One model.

    Raises:
        ServerLoading, ServerStopping: there is none.
    """
    length = service.generator.coalescer.info.longest_sequence
    created = datetime.fromtimestamp(service.created, UTC)
    return {
        "type": "model",
        "id": served.name,
        "display_name": served.name,
        "created_at": created.isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": length,
        "max_tokens": length,
    }


def anthropic_models(service: Service, query: Mapping[str, str]) -> dict[str, Any]:
    """A page of the list.

    Args:
        query: may have ``limit``, and ``after_id`` or ``before_id``.

    Raises:
        InvalidRequest: the query has something else there.
        ServerLoading, ServerStopping: there are none.
    """
    _ = service.generator
    names = [served.name for served in service.models]
    limit = _limit(query.get("limit", str(USUAL)))
    first, last = 0, len(names)
    if "after_id" in query:
        first = _place(names, query["after_id"], "after_id") + 1
    if "before_id" in query:
        last = _place(names, query["before_id"], "before_id")
    backwards = "before_id" in query and "after_id" not in query
    more = last - first > limit
    page = slice(max(last - limit, first), last) if backwards else slice(first, first + limit)
    data = [anthropic_model(service, served) for served in service.models[:last][page]]
    return {
        "data": data,
        "has_more": more,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
    }


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 5 and 1 <= int(text) <= MOST):
        raise InvalidRequest(f"limit must be from 1 to {MOST}", param="limit")
    return int(text)


def _place(names: list[str], name: str, param: str) -> int:
    if name not in names:
        raise InvalidRequest(f"{param} names no model that is served here", param=param)
    return names.index(name)
