"""A hardened worker on the loopback, an app with one behaviour a path, and clients in bytes."""

from __future__ import annotations

import logging
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import hypercorn.protocol
import hypercorn.protocol.h2
import hypercorn.protocol.h11
import hypercorn.trio.run
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config

from ds4trio.api.transport.worker import harden_hypercorn

SEND_TIMEOUT = 4.0
CLOSE_TIMEOUT = 1.0
GRACE = 3.0
MAX_MESSAGE = 100_000

REPLACED = (
    (hypercorn.trio.run, "TCPServer"),
    (hypercorn.protocol.h11, "WSStream"),
    (hypercorn.protocol.h2, "WSStream"),
    (hypercorn.protocol, "H2Protocol"),
)
"""The names of hypercorn that the hardening gives new values."""

HOST = b"Host: localhost\r\n"
UPGRADE = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: bKdPyn3u98cTfZJSh4TNeQ==\r\n"
)
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


def get(path: str, headers: bytes = b"") -> bytes:
    """A request without body."""
    return f"GET {path} HTTP/1.1\r\n".encode() + HOST + headers + b"\r\n"


def upgrade(path: str, headers: bytes = b"") -> bytes:
    """A request to become a WebSocket."""
    return get(path, UPGRADE + headers)


def frame(
    opcode: int, payload: bytes = b"", *, fin: bool = True, length: int | None = None
) -> bytes:
    """A client's frame, masked with zeros; ``length`` is what it claims to carry."""
    size = len(payload) if length is None else length
    head = bytes([(0x80 if fin else 0) | opcode])
    if size < 126:
        head += bytes([0x80 | size])
    elif size < 2**16:
        head += b"\xfe" + struct.pack("!H", size)
    else:
        head += b"\xff" + struct.pack("!Q", size)
    return head + bytes(4) + payload


@dataclass
class App:
    """Serves one behaviour a path, and tells what became of the handlers."""

    ended: list[str] = field(default_factory=list)
    some_ended: trio.Event = field(default_factory=trio.Event)
    received: list[dict[str, Any]] = field(default_factory=list)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for stage in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{stage}.complete"})
            return
        path = scope["path"].strip("/")
        try:
            if scope["type"] == "websocket":
                await self.websocket(path, receive, send)
            else:
                await self.http(path, receive, send)
        finally:
            self.ended.append(path)
            self.some_ended.set()

    async def websocket(self, path: str, receive: Any, send: Any) -> None:
        await receive()
        if path == "undecided":
            await trio.sleep_forever()
        if path == "rejecting":
            await send({"type": "websocket.http.response.start", "status": 403, "headers": []})
            await send({"type": "websocket.http.response.body", "body": b"n", "more_body": True})
            await trio.sleep_forever()
        if path == "late":
            await trio.sleep(1)
        await send({"type": "websocket.accept"})
        if path == "deaf":
            await trio.sleep_forever()
        elif path == "deaf-and-done":
            await trio.sleep(1)
        elif path == "closing":
            await send({"type": "websocket.close", "code": 1000})
            await trio.sleep(1)
        elif path == "fails":
            raise ValueError("a defect in the app")
        else:
            async with trio.open_nursery() as nursery:
                if path in ("ticks", "torrent"):
                    nursery.start_soon(self.stream, path, send)
                while (event := await receive())["type"] == "websocket.receive":
                    self.received.append(event)
                nursery.cancel_scope.cancel()

    async def stream(self, path: str, send: Any) -> None:
        number = 0
        while True:
            text = f"{number}"
            if path == "torrent":
                text += " " * 100_000
            else:
                await trio.sleep(1)
            await send({"type": "websocket.send", "text": text})
            number += 1

    async def http(self, path: str, receive: Any, send: Any) -> None:
        if path == "fatal":
            raise SystemExit(7)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if path == "torrent":
            while True:
                body = bytes(100_000)
                await send({"type": "http.response.body", "body": body, "more_body": True})
        if path == "silent":
            await send({"type": "http.response.body", "body": b"1", "more_body": True})
            await trio.sleep_forever()
        await send({"type": "http.response.body", "body": b"hello"})


@dataclass
class Client:
    """One end of a connection, as bytes or, after ``open``, as WebSocket frames."""

    stream: trio.SocketStream
    buffer: bytes = b""

    async def open(self, path: str, extra: bytes = b"") -> bytes:
        """Do the handshake; its answer."""
        await self.stream.send_all(upgrade(path, extra))
        while b"\r\n\r\n" not in self.buffer:
            data = await self.stream.receive_some()
            assert data, "ended in the handshake"
            self.buffer += data
        head, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
        return head

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def exactly(self, size: int) -> bytes:
        while len(self.buffer) < size:
            data = await self.stream.receive_some()
            if not data:
                raise EOFError
            self.buffer += data
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        return data

    async def frame(self) -> tuple[int, bytes]:
        """The next frame from the server: opcode and payload."""
        first, size = await self.exactly(2)
        if size == 126:
            (size,) = struct.unpack("!H", await self.exactly(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", await self.exactly(8))
        return first & 0x0F, await self.exactly(size)

    async def close_code(self) -> int:
        """The code of the close frame that the server sends last."""
        while True:
            opcode, payload = await self.frame()
            if opcode == CLOSE:
                code: int = struct.unpack("!H", payload[:2])[0]
                assert await self.rest() == b""
                return code

    async def until_end(self) -> bytes:
        """Everything until the server ends its side.

        Raises:
            trio.BrokenResourceError: the server reset the connection.
        """
        while data := await self.stream.receive_some():
            self.buffer += data
        return self.buffer

    async def rest(self) -> bytes:
        """Everything until the connection ends, in whichever way."""
        with suppress(trio.BrokenResourceError):
            await self.until_end()
        return self.buffer


@dataclass
class Server:
    """A running worker, and the clients that it has been given."""

    app: App
    port: int
    stop: trio.Event
    stopped: trio.Event
    clients: list[Client] = field(default_factory=list)

    def hang_up(self) -> None:
        """Let every client close its socket."""
        for client in self.clients:
            client.stream.socket.close()

    async def connect(self, *, receive_buffer: int | None = None) -> Client:
        sock = trio.socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await sock.connect(("127.0.0.1", self.port))
        self.clients.append(Client(trio.SocketStream(sock)))
        return self.clients[-1]

    async def open(self, path: str, **options: Any) -> Client:
        client = await self.connect(**options)
        assert b" 101 " in await client.open(path)
        return client


@asynccontextmanager
async def serving(app: Any = None, **limits: Any) -> AsyncIterator[Server]:
    """A hardened worker; leaving stops it, an error of it comes out."""
    originals = [(module, name, getattr(module, name)) for module, name in REPLACED]
    harden_hypercorn(
        **{
            "send_timeout": SEND_TIMEOUT,
            "max_message_bytes": MAX_MESSAGE,
            "close_timeout": CLOSE_TIMEOUT,
            **limits,
        }
    )
    app = App() if app is None else app
    config = Config()
    config.bind = ["127.0.0.1:0"]
    config.errorlog = logging.getLogger("tests.hypercorn")
    config.graceful_timeout = GRACE
    sockets = config.create_sockets()
    (listener,) = sockets.insecure_sockets
    listener.listen()
    server = Server(app, listener.getsockname()[1], trio.Event(), trio.Event())

    async def work() -> None:
        await hypercorn.trio.run.worker_serve(
            ASGIWrapper(app), config, sockets=sockets, shutdown_trigger=server.stop.wait
        )
        server.stopped.set()

    with listener:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            try:
                yield server
                server.hang_up()
                server.stop.set()
                await server.stopped.wait()
            finally:
                for module, name, original in originals:
                    setattr(module, name, original)
                server.hang_up()


@asynccontextmanager
async def bystander(server: Server) -> AsyncIterator[None]:
    """A client in the middle of an answer, which goes on while and after others misbehave."""
    client = await server.open("/ticks")
    assert await client.frame() == (TEXT, b"0")
    yield
    await client.send(frame(PING, b"still there?"))
    expected, ponged = 1, False
    while not ponged or expected < 5:
        opcode, payload = await client.frame()
        if opcode == PONG:
            ponged = payload == b"still there?"
        else:
            assert (opcode, payload) == (TEXT, f"{expected}".encode())
            expected += 1
    await client.stream.aclose()
