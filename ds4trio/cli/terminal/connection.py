"""A client's WebSocket to the Responses endpoint: opening it, and noticing its end.

Nothing here knows what is said over the connection.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final
from urllib.parse import urlsplit

import msgspec
import trio
from trio_websocket import (
    ConnectionClosed,
    ConnectionRejected,
    WebSocketConnection,
    wrap_client_stream,
)
from wsproto.utilities import ProtocolError

from ds4trio.cli.terminal.endpoint import Endpoint
from ds4trio.cli.terminal.wire import ErrorBody, ErrorEvent
from ds4trio.errors import Ds4TrioError

__all__ = [
    "ChatError",
    "ServerNotReady",
    "ServerRefused",
    "ServerUnreachable",
    "dial",
    "drop",
    "open_connection",
]

CONNECT_SECONDS: Final = 10.0
"""For name lookup, TCP, TLS and the upgrade together."""
GOODBYE_SECONDS: Final = 2.0
"""For the server's half of the closing handshake."""
LOADING_PATIENCE: Final = 600.0
"""How long a server may go on saying that its model is still being loaded."""
RECONNECT_PATIENCE: Final = 20.0
"""How long a server that was there may be unreachable, while it restarts for instance."""
PING_EVERY: Final = 30.0
PONG_WITHIN: Final = 20.0
LARGEST_MESSAGE: Final = 16 * 2**20
"""Bytes. The last event of a response repeats its whole text."""


class ChatError(Ds4TrioError):
    """Something a person at a client must be told. The message is one line."""


class ServerUnreachable(ChatError):
    """Nothing at the endpoint answers as a Responses WebSocket would."""


class ServerRefused(ChatError):
    """The server turned the connection down.

    Attributes:
        status: HTTP status of the refused upgrade.
    """

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class ServerNotReady(ServerRefused):
    """The server is there, and still loads its model."""


@asynccontextmanager
async def open_connection(
    endpoint: Endpoint, *, on_wait: Callable[[str], None], reconnecting: bool = False
) -> AsyncIterator[WebSocketConnection]:
    """Connect, keep watch over the peer while inside, and say goodbye on the way out.

    A peer that stops answering pings has its connection dropped: reads and writes then raise
    ``trio_websocket.ConnectionClosed``, as they do when it closes in good order.

    Args:
        on_wait: told, once per reason, why entering takes long.
        reconnecting: the server was there a moment ago, so give it time to come back.

    Raises:
        ServerUnreachable, ServerRefused: on entering; the latter is ServerNotReady when
            the server still loads after ``LOADING_PATIENCE`` seconds.
    """
    async with AsyncExitStack() as stack:
        websocket = await _connect_patiently(stack, endpoint, on_wait, reconnecting)
        yield websocket


async def drop(websocket: WebSocketConnection) -> None:
    """End a connection now, without the closing handshake."""
    with trio.CancelScope() as scope:
        scope.cancel()
        await websocket.aclose()


async def _drop_when_silent(websocket: WebSocketConnection) -> None:
    while True:
        await trio.sleep(PING_EVERY)
        with trio.move_on_after(PONG_WITHIN) as scope:
            try:
                await websocket.ping()
            except ConnectionClosed:
                return
        if scope.cancelled_caught:
            await drop(websocket)
            return


async def _connect_patiently(
    stack: AsyncExitStack,
    endpoint: Endpoint,
    on_wait: Callable[[str], None],
    reconnecting: bool,
) -> WebSocketConnection:
    started = trio.current_time()
    told: set[type[ChatError]] = set()
    pause = 0.25
    while True:
        try:
            return await stack.enter_async_context(_connected(endpoint))
        except (ServerNotReady, ServerUnreachable) as error:
            if isinstance(error, ServerNotReady):
                patience, news = LOADING_PATIENCE, "the model is still being loaded; waiting"
            else:
                patience = RECONNECT_PATIENCE if reconnecting else 0.0
                news = f"{error}; trying again"
            if trio.current_time() + pause > started + patience:
                raise
            if type(error) not in told:
                told.add(type(error))
                on_wait(news)
        await trio.sleep(pause)
        pause = min(2 * pause, 4.0)


@asynccontextmanager
async def _connected(endpoint: Endpoint) -> AsyncIterator[WebSocketConnection]:
    """One try. It owns the stream: trio-websocket leaves it open where the peer closes first."""
    async with await dial(endpoint) as stream:
        parts = urlsplit(endpoint.url)
        websocket = None
        try:
            async with trio.open_nursery() as nursery:
                with trio.move_on_after(CONNECT_SECONDS):
                    websocket = await wrap_client_stream(
                        nursery,
                        stream,
                        parts.netloc,
                        parts.path,
                        extra_headers=endpoint.headers,
                        max_message_size=LARGEST_MESSAGE,
                    )
                if websocket is not None:
                    nursery.start_soon(_drop_when_silent, websocket)
                    yield websocket
                    with trio.move_on_after(GOODBYE_SECONDS):
                        await websocket.aclose()
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            # trio-websocket's reader raises what it cannot tell by closing the connection.
            rejections = group.subgroup(ConnectionRejected)
            if rejections is not None:
                raise _refusal(_first(rejections), endpoint) from None
            if group.split((ProtocolError, ConnectionClosed))[1] is not None:
                raise
            fault = "broke the WebSocket protocol" if websocket else "does not speak WebSocket"
            raise ServerUnreachable(f"{endpoint.origin} {fault}") from None
        if websocket is None:
            raise ServerUnreachable(_no_answer(endpoint))


async def dial(endpoint: Endpoint) -> trio.SocketStream | trio.SSLStream[trio.SocketStream]:
    """TCP, and TLS where the endpoint wants it.

    Raises:
        ServerUnreachable: nothing listens there, or not as expected, or not in time.
    """
    parts = urlsplit(endpoint.url)
    host = parts.hostname or ""
    try:
        with trio.fail_after(CONNECT_SECONDS):
            if parts.scheme == "ws":
                return await trio.open_tcp_stream(host, parts.port or 80)
            secured = await trio.open_ssl_over_tcp_stream(
                host, parts.port or 443, https_compatible=True
            )
            try:
                await secured.do_handshake()
            except BaseException:
                await trio.aclose_forcefully(secured)
                raise
            return secured
    except trio.TooSlowError:
        reason = f"no answer within {CONNECT_SECONDS:.0f} s"
    except (OSError, trio.BrokenResourceError) as error:
        reason = _reason(error)
    raise ServerUnreachable(f"no server reachable at {endpoint.origin}: {reason}")


def _no_answer(endpoint: Endpoint) -> str:
    return f"{endpoint.origin} opened no WebSocket within {CONNECT_SECONDS:.0f} s"


def _first(group: BaseExceptionGroup[ConnectionRejected]) -> ConnectionRejected:
    found = group.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found


def _reason(error: BaseException) -> str:
    """The innermost cause: trio reports every address it tried as one error over several."""
    if isinstance(error, BaseExceptionGroup):
        return _reason(error.exceptions[0])
    if error.__cause__ is not None:
        return _reason(error.__cause__)
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLCertVerificationError):
        return "it does not speak TLS as expected; is it http:// and not https://?"
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return os.strerror(error.errno)  # trio's own text repeats the address
    said = getattr(error, "verify_message", None) or getattr(error, "strerror", None) or str(error)
    return " ".join(said.split()) or type(error).__name__


def _refusal(rejection: ConnectionRejected, endpoint: Endpoint) -> ServerRefused:
    status = rejection.status_code
    try:
        error = msgspec.json.decode(rejection.body or b"", type=ErrorEvent).error
    except msgspec.MsgspecError:
        error = ErrorBody()
    if status == 401:
        fault = "refused the API key" if endpoint.api_key else "asks for an API key"
        return ServerRefused(f"{endpoint.origin} {fault} (--api-key, DS4TRIO_API_KEY)", status=401)
    if status == 503 and error.code in ("server_loading", None):
        return ServerNotReady(f"{endpoint.origin} is still loading its model", status=503)
    if status == 404:
        return ServerRefused(f"{endpoint.origin} is no Responses server (404)", status=404)
    said = f": {error.message}" if error.message else ""
    return ServerRefused(
        f"{endpoint.origin} refused the connection ({status}){said}", status=status
    )
