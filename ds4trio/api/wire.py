"""JSON in and out, and errors in the shape that the client reads: OpenAI's, or Anthropic's."""

from __future__ import annotations

import logging
import re
from typing import Any, TypeVar

import msgspec
from quart import Response, has_request_context, request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from ds4trio.api.anthropic.errors import anthropic_error, speaks_anthropic
from ds4trio.api.valid_values import valid_values
from ds4trio.errors import InternalError, InvalidRequest, PayloadTooLarge, WireError

__all__ = [
    "convert",
    "decode",
    "encode",
    "error_body",
    "error_response",
    "handle_errors",
    "json_response",
]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

encode = msgspec.json.encode


def decode(data: bytes | str, kind: type[_T]) -> _T:
    """JSON text as ``kind``.

    Raises:
        InvalidRequest: it is not JSON, or not of this kind; ``param`` names the field at fault.
    """
    if not data:
        raise InvalidRequest("the body is empty, where JSON is expected", code="invalid_json")
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise _validation_error(error, kind) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise InvalidRequest(f"this is not valid JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise InvalidRequest("the JSON is nested too deeply", code="invalid_json") from None


def convert(value: Any, kind: type[_T], at: str) -> _T:
    """A part of a request that was decoded, as ``kind``; ``at`` says where it is.

    Raises:
        InvalidRequest: it is not of this kind; ``param`` names the field at fault.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        refusal = _validation_error(error, kind)
    inner = refusal.param or ""
    refusal.param = f"{at}{inner}" if inner.startswith("[") else f"{at}.{inner}".rstrip(".")
    refusal.message = f"in {at}: {refusal.message}"
    raise refusal


def _validation_error(error: msgspec.ValidationError, kind: Any) -> InvalidRequest:
    message, found, path = str(error).rpartition(" - at ")
    if not found:
        message, path = path, ""
    message, path = message[:300], path.removeprefix("`key` in ")[:200]
    unknown = re.search(r"unknown field `(.*)`$", message)
    param = path.strip("`").removeprefix("$").lstrip(".") or None
    if unknown:
        field = ".".join(filter(None, [param, unknown.group(1)]))
        return InvalidRequest(
            f"{field[:200]} is not a parameter that this server knows",
            param=field[:200],
            code="unknown_parameter",
        )
    missing = re.search(r"missing required field `(.*)`$", message)
    if missing:
        field = ".".join(filter(None, [param, missing.group(1)]))
        return InvalidRequest(f"{field} is missing", param=field, code="missing_parameter")
    if wrong := re.fullmatch(r"Invalid (?:enum )?value (.*)", message, re.DOTALL):
        message = f"{wrong.group(1)} is not valid"
        if values := valid_values(kind, path.strip("`")):
            message += f"; it can be {', '.join(values)}"
    return InvalidRequest(f"{param or 'the request'}: {message}", param=param)


def error_body(error: WireError) -> dict[str, Any]:
    """The ``error`` object that OpenAI's clients read."""
    return {
        "message": error.message,
        "type": error.type,
        "param": error.param,
        "code": error.code,
    }


def json_response(value: Any, status: int = 200) -> Response:
    return Response(encode(value), status=status, content_type="application/json")


def _refusal(body: dict[str, Any], status: int) -> Response:
    """An error for the client of the present request, by its object in OpenAI's shape."""
    if has_request_context() and speaks_anthropic(request):
        return json_response(*anthropic_error(body, status))
    return json_response({"error": body}, status)


def error_response(error: WireError) -> Response:
    response = _refusal(error_body(error), error.status)
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(error.retry_after)
    if error.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


_NOT_SERVED = {
    404: "there is nothing at this path; GET /docs shows what there is, GET / is a page to chat",
    405: "this path is not served with this method",
}


def handle_errors(app: QuartTrio) -> None:
    """Make every failure of a request an error that its client can read, never a traceback."""

    @app.errorhandler(WireError)
    async def _wire(error: WireError) -> Response:
        return error_response(error)

    @app.errorhandler(HTTPException)
    async def _http(error: HTTPException) -> Response:
        if isinstance(error, RequestEntityTooLarge):
            return error_response(PayloadTooLarge("the request body is too large"))
        body = {
            "message": _NOT_SERVED.get(error.code or 0, error.description or error.name),
            "type": "invalid_request_error",
            "param": None,
            "code": error.name.lower().replace(" ", "_"),
        }
        response = _refusal(body, error.code or 500)
        for name, value in error.get_headers():
            if name.lower() not in ("content-type", "content-length"):
                response.headers[name] = value
        return response

    @app.errorhandler(Exception)
    async def _defect(error: Exception) -> Response:
        _log.error("a request failed for a reason that is ours", exc_info=error)
        return error_response(InternalError("the server failed; its log says why"))
