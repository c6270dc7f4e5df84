"""Who may use the server: API keys, and the origins of pages in a browser.

Both are checked before anything else happens, for WebSockets before they are accepted. The page's
own files and ``/health`` need no key: the page must load before it can ask for one.
"""

from __future__ import annotations

import hmac
import ipaddress
from urllib.parse import urlsplit

from quart import Response, request, websocket
from quart.wrappers.base import BaseRequestWebsocket
from quart_trio import QuartTrio

from ds4trio.api.wire import error_response
from ds4trio.errors import InvalidApiKey, OriginNotAllowed, WireError
from ds4trio.settings import Settings

__all__ = ["KEY_SUBPROTOCOL", "SUBPROTOCOL", "guard", "tenant", "user"]

SUBPROTOCOL = "realtime"
KEY_SUBPROTOCOL = "openai-insecure-api-key."
"""A browser cannot set headers on a WebSocket. OpenAI's convention: the key is offered as a
subprotocol with this prefix, beside ``realtime``, which the server then selects."""

KEY_HEADER = "x-api-key"
"""Where clients of Anthropic's API put the key, if not where OpenAI's do."""

_GUARDED = ("/v1/", "/metrics", "/tokenize", "/detokenize", "/apply-template")


def guard(app: QuartTrio, settings: Settings) -> None:
    """Check every request and every WebSocket of ``app`` before its handler runs."""

    @app.before_request
    async def _check_request() -> Response | None:
        origin = request.headers.get("Origin")
        preflight = (
            request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers
        )
        if preflight and origin in settings.allow_origin:
            return Response(b"", status=204)
        refusal = _refusal(request, settings)
        return error_response(refusal) if refusal else None

    @app.before_websocket
    async def _check_websocket() -> Response | None:
        refusal = _refusal(websocket, settings)
        return error_response(refusal) if refusal else None

    @app.after_request
    async def _allow_origin(response: Response) -> Response:
        origin = request.headers.get("Origin")
        if origin is not None and origin in settings.allow_origin:
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Allow-Methods"] = "GET, POST, DELETE, OPTIONS"
            # official clients in a browser add headers of their own, which mean nothing here
            response.headers["Access-Control-Allow-Headers"] = request.headers.get(
                "Access-Control-Request-Headers", "authorization, content-type, x-api-key"
            )
            response.headers["Access-Control-Expose-Headers"] = "request-id, retry-after"
            response.headers["Access-Control-Max-Age"] = "600"
        if settings.allow_origin:
            response.headers.add("Vary", "Origin")
        return response


def tenant(connection: BaseRequestWebsocket, cache_salt: str | None) -> str:
    """Whose cached beginnings a request may share: its key's, and within that its own salt's."""
    parts = [*_offered_keys(connection), cache_salt or ""]
    return "".join(f"{len(part)}:{part}" for part in parts)  # no part can pass for another


def user(connection: BaseRequestWebsocket, settings: Settings) -> str:
    """Who is served in turn with others: a key, else an address, else a connection.

    A single key tells nobody from anybody. Nor does a loopback address, which is this machine's
    programs or a proxy with everybody behind it; there each connection counts.
    """
    if len(settings.api_key) > 1:
        offered = _offered_keys(connection)
        right = [n for n, key in enumerate(settings.api_key) if _one_is_right(offered, (key,))]
        return f"key {right[0]}" if right else ""
    host, port = connection.scope.get("client") or ("", 0)
    return f"{host} {port}" if _is_loopback(host) else host


def _refusal(connection: BaseRequestWebsocket, settings: Settings) -> WireError | None:
    if not connection.path.startswith(_GUARDED):
        return None
    if not _origin_allowed(connection, settings):
        return OriginNotAllowed(
            "pages of this origin may not use this server; "
            "its operator can name the origin with --allow-origin"
        )
    offered = _offered_keys(connection)
    if settings.api_key and not offered:
        return InvalidApiKey(
            "this server needs an API key: Authorization: Bearer KEY, or x-api-key: KEY"
        )
    if settings.api_key and not _one_is_right(offered, settings.api_key):
        return InvalidApiKey("this API key is not one of this server's")
    return None


def _origin_allowed(connection: BaseRequestWebsocket, settings: Settings) -> bool:
    origin = connection.headers.get("Origin")
    if origin is None or origin in settings.allow_origin:
        return True
    host = connection.headers.get("Host", "")
    scheme = "https" if connection.scheme in ("https", "wss") else "http"
    return origin == f"{scheme}://{host}" and _host_is_ours(connection, host)


def _host_is_ours(connection: BaseRequestWebsocket, host: str) -> bool:
    """Over the loopback interface the host must be a name of this machine.

    Otherwise any page could have its own name resolve to 127.0.0.1, and would then be of the same
    origin as this server (DNS rebinding).
    """
    server = connection.scope.get("server")
    if not server or not _is_loopback(server[0]):
        return True
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return name == "localhost" or _is_loopback(name)


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _offered_keys(connection: BaseRequestWebsocket) -> list[str]:
    protocols = connection.headers.get("Sec-WebSocket-Protocol", "").split(",")
    offered = [
        protocol.removeprefix(KEY_SUBPROTOCOL)
        for protocol in map(str.strip, protocols)
        if protocol.startswith(KEY_SUBPROTOCOL)
    ]
    kind, _, key = connection.headers.get("Authorization", "").partition(" ")
    if kind.lower() == "bearer":
        offered.append(key.strip())
    if KEY_HEADER in connection.headers:
        offered.append(connection.headers[KEY_HEADER].strip())
    return offered


def _one_is_right(offered: list[str], keys: tuple[str, ...]) -> bool:
    # every pair is compared, so that the time says nothing about which one matched
    matches = [
        hmac.compare_digest(one.encode("utf-8", "surrogateescape"), other.encode())
        for one in offered
        for other in keys
    ]
    return any(matches)
