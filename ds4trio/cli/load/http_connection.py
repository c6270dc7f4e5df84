"""HTTP/1.1 over one connection that is kept: a request at a time, its body read as it comes."""

from __future__ import annotations

from typing import Final, Self
from urllib.parse import urlsplit

import h11
import trio

from ds4trio.cli.load.client import RequestFailed
from ds4trio.cli.terminal.connection import dial
from ds4trio.cli.terminal.endpoint import Endpoint

__all__ = ["HttpConnection"]

RECEIVE_BYTES: Final = 65536


class HttpConnection:
    """One connection. Its methods raise RequestFailed where it breaks or makes no sense."""

    def __init__(self, stream: trio.abc.Stream, endpoint: Endpoint) -> None:
        self._stream = stream
        self._protocol = h11.Connection(h11.CLIENT)
        self._headers = [
            (b"host", urlsplit(endpoint.url).netloc.encode("ascii")),
            (b"user-agent", b"ds4trio-bench"),
            (b"accept", b"application/json, text/event-stream"),
            *endpoint.headers,
        ]

    @classmethod
    async def open(cls, endpoint: Endpoint) -> Self:
        """Connect to where an endpoint is.

        Raises:
            ServerUnreachable: nothing listens, or not as expected.
        """
        return cls(await dial(endpoint), endpoint)

    async def aclose(self) -> None:
        """At once: a TLS goodbye would wait for a server that no one has more to say to."""
        await trio.aclose_forcefully(self._stream)

    @property
    def reusable(self) -> bool:
        """Another request can follow."""
        return self._protocol.our_state is h11.IDLE

    async def request(self, method: str, path: str, body: bytes = b"") -> int:
        """Send a request, wait for the head of the response, and return its status."""
        headers = [*self._headers, (b"content-length", b"%d" % len(body))]
        if body:
            headers.append((b"content-type", b"application/json"))
        head = h11.Request(method=method, target=path, headers=headers)
        data = self._protocol.send(head) or b""
        data += self._protocol.send(h11.Data(data=body)) or b""
        data += self._protocol.send(h11.EndOfMessage()) or b""
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise _closed() from None
        while True:
            event = await self._event()
            if isinstance(event, h11.Response):
                return event.status_code
            if isinstance(event, h11.ConnectionClosed):
                raise _closed()

    async def chunk(self) -> bytes | None:
        """The next bytes of the response's body; None at its end."""
        event = await self._event()
        if isinstance(event, h11.Data):
            return bytes(event.data)
        if isinstance(event, h11.ConnectionClosed):
            raise _closed()
        if self._protocol.our_state is h11.DONE and self._protocol.their_state is h11.DONE:
            self._protocol.start_next_cycle()
        return None

    async def whole(self, limit: int = 2**20) -> bytes:
        """The rest of the body, cut off after so many bytes (the connection is then spent)."""
        body = bytearray()
        while (data := await self.chunk()) is not None:
            body += data
            if len(body) > limit:
                break
        return bytes(body)

    async def _event(self) -> object:
        try:
            while (event := self._protocol.next_event()) is h11.NEED_DATA:
                self._protocol.receive_data(bytes(await self._stream.receive_some(RECEIVE_BYTES)))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise _closed() from None
        except h11.RemoteProtocolError as error:
            raise RequestFailed(
                f"the server broke HTTP: {error}", code="connection_closed", lost=True
            ) from None
        return event


def _closed() -> RequestFailed:
    return RequestFailed("the connection was closed", code="connection_closed", lost=True)
