"""Hardening of hypercorn's trio worker: no client can hold it, fill it or bring it down.

hypercorn 0.18 runs every connection in one nursery and lets an exception of any of them end the
worker, shields its socket writes without a deadline, and says nothing to WebSockets at shutdown.
``harden_hypercorn`` puts subclasses in the place of three of its classes, whichever way the app is
started. Each subclass says what it adds and why; the protocols themselves stay hypercorn's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

import hypercorn.protocol
import hypercorn.protocol.h2
import hypercorn.protocol.h11
import hypercorn.trio.run
import trio
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.events import Body, Data
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.protocol.ws_stream import WSStream
from hypercorn.trio.tcp_server import TCPServer
from wsproto.frame_protocol import CloseReason

from ds4trio.api.transport.byte_stream import BoundedStream
from ds4trio.api.transport.websocket import GuardedWSStream

__all__ = [
    "GuardedH2Protocol",
    "GuardedTCPServer",
    "Stalled",
    "TransportLimits",
    "harden_hypercorn",
]

logger = logging.getLogger(__name__)

REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\n"
    b"content-length: 0\r\nconnection: close\r\nretry-after: 1\r\n\r\n"
)

PARTING = 0.5
"""``close_timeout`` of a stopping server: a client's pool may not look at its idle connections."""


@dataclass(frozen=True)
class TransportLimits:
    """What one client may cost.

    Attributes:
        send_timeout: seconds that a client may read nothing of what is being sent to it.
        close_timeout: seconds for the parting of both sides, and for the tasks of a connection
            that is over.
        max_connections: connections open at once, all servers of this process together.
        on_stopping: called when the server begins to stop, once for each connection; then the app
            ends its WebSockets itself, within the grace period.
        connections: those that are open.
    """

    send_timeout: float
    close_timeout: float
    max_connections: int
    on_stopping: Callable[[], None] | None
    connections: set[GuardedTCPServer] = field(default_factory=set)


class Stalled(Closed):
    """A protocol's word that the client takes nothing: the connection must go, and its tasks."""


class GuardedTCPServer(TCPServer):
    """One connection, fenced in: it ends alone, and it always ends.

    Args:
        args: as for hypercorn's class, the stream last.
        limits: shared by all connections.
    """

    def __init__(self, *args: Any, limits: TransportLimits) -> None:
        super().__init__(*args)
        self._limits = limits
        self._scope = trio.CancelScope()
        self.stream: BoundedStream = BoundedStream(  # type: ignore[assignment]
            self.stream,
            self._scope,
            send_timeout=limits.send_timeout,
            close_timeout=limits.close_timeout,
        )

    async def run(self) -> None:
        """Serve the connection until it is over. Raises nothing that the client can bring about."""
        if len(self._limits.connections) >= self._limits.max_connections:
            await self._refuse()
            return
        self._limits.connections.add(self)
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._attend_shutdown)
                    await super().run()
                    nursery.cancel_scope.cancel()
        except* Exception as errors:
            # https://github.com/pgjones/hypercorn/issues/225, 203 and 177: whatever a client's
            # bytes raise, here or in h11, h2 and wsproto, ends its connection and not the worker.
            # Cancelled, KeyboardInterrupt and their like pass.
            logger.warning("connection ended by %s", _summary(errors))
            logger.debug("traceback of the above", exc_info=errors)
        finally:
            self._limits.connections.discard(self)

    async def protocol_send(self, event: Event) -> None:
        """Do what the protocol asks of the connection: send, close, or mind that it is idle."""
        if isinstance(event, Stalled):
            self.stream.abort()
        elif isinstance(event, Closed):
            # hypercorn closes at once, and a client that is still sending loses the last words.
            await self.stream.finish()
            await self.protocol.handle(Closed())
        elif isinstance(event, RawData):
            await self._send(event.data)
        elif isinstance(event, Updated):
            # That a connection is idle is said by a task which may be cancelled by then, since its
            # request is over; the timer must start all the same.
            with trio.CancelScope(shield=True):
                await super().protocol_send(event)
        else:
            await super().protocol_send(event)

    async def _send(self, data: bytes) -> None:
        # As hypercorn does it, but what the kernel takes at once costs no lock and no scope: nearly
        # every token of every stream.
        try:
            self.send_lock.acquire_nowait()
        except trio.WouldBlock:
            await self.send_lock.acquire()
        try:
            sent = self.stream.send_at_once(data)
            if sent < len(data):
                with trio.CancelScope(shield=True):  # a frame is sent whole or not at all
                    await self.stream.send_all(data[sent:])
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            await self.protocol.handle(Closed())
        finally:
            self.send_lock.release()
        # An app that only sends lets others run, and can be cancelled.
        await trio.lowlevel.checkpoint()

    async def _read_data(self) -> None:
        await super()._read_data()
        # The idle timer would hold a connection that the client has closed until it runs out.
        await self.idle_task.stop()

    async def _initiate_server_close(self) -> None:
        # Called under a shield, so it must not wait without end for an app that does not read.
        with trio.move_on_after(self._limits.close_timeout):
            await super()._initiate_server_close()
        await self.stream.aclose()

    async def _attend_shutdown(self) -> None:
        # https://github.com/pgjones/hypercorn/issues/106: WebSockets hear of the end, at once. When
        # the grace period is over, the server's cancellation arrives here and the socket goes,
        # which no shield above it can outlast.
        try:
            await self.context.terminated.wait()
            self.stream.hurry(PARTING)
            if self._limits.on_stopping is not None:
                self._limits.on_stopping()
            else:
                for stream in self._websockets():
                    await stream.hang_up(CloseReason.GOING_AWAY)
            await trio.sleep_forever()
        finally:
            self.stream.abort()

    def _websockets(self) -> list[GuardedWSStream]:
        if not hasattr(self, "protocol"):
            return []  # still in the TLS handshake
        protocol = self.protocol.protocol
        streams = (
            [protocol.stream] if isinstance(protocol, H11Protocol) else [*protocol.streams.values()]
        )
        return [stream for stream in streams if isinstance(stream, GuardedWSStream)]

    async def _refuse(self) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError), self._scope:
            if not hasattr(self.stream, "do_handshake"):
                await self.stream.send_all(REFUSAL)
                await self.stream.finish()
                await self.stream.receive_some()
        await self.stream.aclose()


class GuardedH2Protocol(H2Protocol):
    """HTTP/2 in which a client that opens no window counts as one that does not read its socket.

    hypercorn pauses a sender on a full buffer, but wakes it whenever the window let nothing out, so
    that the buffer grows with all that the app has to say. Here each part has left before the next.

    Args:
        args: as for hypercorn's class.
        send_timeout: seconds that a part of a response may wait for the client's window.
    """

    def __init__(self, *args: Any, send_timeout: float) -> None:
        super().__init__(*args)
        self._send_timeout = send_timeout

    async def initiate(
        self, headers: list[tuple[bytes, bytes]] | None = None, settings: bytes | None = None
    ) -> None:
        """Start the protocol, and the idle time of a connection that opens no stream."""
        await super().initiate(headers, settings)
        if self.idle:
            # The HTTP/1.1 request that led here has stopped the timer.
            await self.send(Updated(idle=True))

    async def stream_send(self, event: StreamEvent) -> None:
        """Send an event of a stream, or end the connection when the client does not take it."""
        if self.closed:
            # hypercorn returns without a checkpoint, so an app that only sends would run for ever.
            await trio.lowlevel.checkpoint()
        with trio.move_on_after(self._send_timeout) as progress:
            await super().stream_send(event)
            if isinstance(event, (Body, Data)) and event.stream_id in self.stream_buffers:
                await self.stream_buffers[event.stream_id].drain()
        if progress.cancelled_caught:
            await self.send(Stalled())


def harden_hypercorn(
    *,
    send_timeout: float,
    max_message_bytes: int,
    close_timeout: float = 2.0,
    max_connections: int = 1024,
    on_stopping: Callable[[], None] | None = None,
) -> None:
    """Make every trio worker that this process starts from now on use the guarded classes.

    May be called again; the limits of the last call hold for the servers started after it.

    Args:
        send_timeout: seconds that a client may read nothing of what is being sent to it, and that
            an app may take nothing of what a WebSocket client sends.
        max_message_bytes: the longest WebSocket message taken, in bytes; a longer one is answered
            with close code 1009.
        close_timeout: seconds for the parting of both sides of a connection.
        max_connections: connections open at once; others are answered 503.
        on_stopping: called when the server begins to stop, once for each connection; the app then
            ends its WebSockets itself. Without it they are closed at once, with code 1001.

    Raises:
        RuntimeError: this hypercorn is not built as these classes expect, so that they could not
            protect it.
    """
    limits = TransportLimits(send_timeout, close_timeout, max_connections, on_stopping)
    server = partial(GuardedTCPServer, limits=limits)
    websocket = partial(
        GuardedWSStream,
        max_message_bytes=max_message_bytes,
        stall_timeout=send_timeout,
        close_timeout=close_timeout,
    )
    h2 = partial(GuardedH2Protocol, send_timeout=send_timeout)

    _expect_methods(TCPServer, "run", "protocol_send", "_read_data", "_initiate_server_close")
    _expect_methods(WSStream, "handle", "_accept", "_handle_events", "_send_wsproto_event")
    _expect_methods(H2Protocol, "stream_send")
    places: list[tuple[ModuleType, str, Callable[..., Any], Callable[..., Any]]] = [
        (hypercorn.trio.run, "TCPServer", hypercorn.trio.run.worker_serve, server),
        (hypercorn.protocol.h11, "WSStream", H11Protocol._create_stream, websocket),
        (hypercorn.protocol.h2, "WSStream", H2Protocol._create_stream, websocket),
        (hypercorn.protocol, "H2Protocol", hypercorn.protocol.ProtocolWrapper.__init__, h2),
    ]
    for module, name, user, _ in places:
        if not hasattr(module, name) or name not in user.__code__.co_names:
            raise RuntimeError(f"hypercorn has changed: {user.__qualname__} does not use {name}")
    for module, name, _, replacement in places:
        setattr(module, name, replacement)


def _expect_methods(owner: type, *names: str) -> None:
    missing = [name for name in names if not callable(getattr(owner, name, None))]
    if missing:
        raise RuntimeError(f"hypercorn has changed: {owner.__qualname__} lacks {missing}")


def _summary(errors: BaseExceptionGroup[Exception]) -> str:
    return ", ".join(
        _summary(error) if isinstance(error, BaseExceptionGroup) else repr(error)
        for error in errors.exceptions
    )
