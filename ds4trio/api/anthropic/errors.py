"""What clients of Anthropic's API are told in their own way: errors, a request's identifier."""

from __future__ import annotations

import uuid
from typing import Any

from quart import g
from quart.wrappers.base import BaseRequestWebsocket

from ds4trio.errors import ThreadsUnsupported

__all__ = ["OVERLOADED", "REQUEST_ID", "anthropic_error", "request_id", "speaks_anthropic"]

REQUEST_ID = "request-id"
"""The header with the identifier; the client shows it with every error."""

OVERLOADED = 529
"""What Anthropic's API answers when it has no room. Clients try again, after ``Retry-After``."""

_PATH = "/v1/messages"

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def speaks_anthropic(request: BaseRequestWebsocket) -> bool:
    """Whether the client of a request reads Anthropic's shapes: by the path, else by a header that
    all of its clients send."""
    ours = request.path == _PATH or request.path.startswith(f"{_PATH}/")
    return ours or "anthropic-version" in request.headers


def request_id() -> str:
    """Of the present request."""
    if "request_id" not in g:
        g.request_id = f"req_{uuid.uuid4().hex}"
    identifier: str = g.request_id
    return identifier


def anthropic_error(
    body: dict[str, Any], status: int, identifier: str | None = None
) -> tuple[dict[str, Any], int]:
    """An error in Anthropic's shape, and its status.

    Args:
        body: the ``error`` object in OpenAI's shape.
        identifier: of the request; that of the present one if omitted.
    """
    family = "api_error" if status >= 500 else "invalid_request_error"
    details: dict[str, Any] = {"error_code": body["code"], "param": body["param"]}
    if body["code"] == ThreadsUnsupported.code:
        details["unsupported"] = [body["param"]]
    error = {
        "type": _TYPES.get(status, family),
        "message": body["message"],
        "details": details,
    }
    if body["code"] == "server_busy":
        status = OVERLOADED
    return {"type": "error", "error": error, "request_id": identifier or request_id()}, status
