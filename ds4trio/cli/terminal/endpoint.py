"""Where a server's Responses WebSocket is, from what people type."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, urlsplit

__all__ = ["Endpoint"]

_WEBSOCKET_SCHEMES: Final = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9._:%-]+")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server's Responses WebSocket is.

    Attributes:
        url: ``ws://`` or ``wss://``, path included.
        api_key: sent as a bearer token (RFC 6750).
    """

    url: str
    api_key: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, url: str, api_key: str | None = None) -> Endpoint:
        """From what people type: a scheme is optional, and so is ``/v1/responses``.

        Raises:
            ValueError: not a URL, or a key that cannot stand in a header; one line says which.
        """
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            host, port = parts.hostname, parts.port
        except ValueError:
            raise ValueError(f"{url!r} is not a URL") from None
        scheme = _WEBSOCKET_SCHEMES.get(parts.scheme)
        if scheme is None:
            raise ValueError(f"{url!r} does not start with http://, https://, ws:// or wss://")
        if parts.username is not None:
            raise ValueError("a URL is no place for a password; give a key with --api-key")
        if host is None or not _HOST_NAME.fullmatch(host):
            raise ValueError(f"{url!r} names no host")
        if api_key is not None and not re.fullmatch(r"[!-~]+", api_key):
            raise ValueError("an API key is printable ASCII without spaces")
        path = quote(parts.path.rstrip("/"), safe="/%:@!$&'()*+,;=~")
        if not path.endswith("/v1/responses"):
            path += "/responses" if path.endswith("/v1") else "/v1/responses"
        place = f"[{host}]" if ":" in host else host
        return cls(f"{scheme}://{place}{f':{port}' if port else ''}{path}", api_key)

    @property
    def origin(self) -> str:
        """The endpoint as people know it, for messages: ``http://127.0.0.1:8000``."""
        parts = urlsplit(self.url)
        return f"{'https' if parts.scheme == 'wss' else 'http'}://{parts.netloc}"

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        if self.api_key is None:
            return []
        return [(b"authorization", b"Bearer " + self.api_key.encode("ascii"))]
