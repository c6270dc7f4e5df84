"""A Responses WebSocket server on loopback, with the model's part written by the test."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio
from trio_websocket import (
    ConnectionClosed,
    WebSocketConnection,
    WebSocketRequest,
    serve_websocket,
)

__all__ = ["FakeServer", "Peer", "Refusal", "echo", "fake_server"]

Message = tuple[str, str]


@dataclass(frozen=True)
class Refusal:
    """How an upgrade is turned down."""

    status: int
    code: str
    message: str = "no"

    @property
    def body(self) -> bytes:
        return json.dumps({"error": {"code": self.code, "message": self.message}}).encode()


@dataclass
class Peer:
    """The server's end of one connection, in the hands of a test."""

    server: FakeServer
    websocket: WebSocketConnection
    known: dict[str, list[Message]] = field(default_factory=dict)
    cancelled: trio.Event = field(default_factory=trio.Event)
    messages: list[Message] = field(default_factory=list)
    sequence: int = 0
    spoken: str = ""

    @property
    def question(self) -> str:
        return self.messages[-1][1]

    async def event(self, kind: str, **fields: Any) -> None:
        frame = {"type": kind, "sequence_number": self.sequence, **fields}
        self.sequence += 1
        await self.websocket.send_message(json.dumps(frame))

    async def begin(self) -> None:
        self.sequence = 0
        self.spoken = ""
        await self.event("response.created", response={"id": "resp", "status": "in_progress"})

    async def say(self, *pieces: str) -> None:
        for piece in pieces:
            self.spoken += piece
            await self.event(
                "response.output_text.delta",
                delta=piece,
                logprobs=[],
                ds4trio={"tokens": 1, "batch_size": 3},
            )

    async def finish(self, reason: str | None = None) -> None:
        response: dict[str, Any] = {
            "id": f"resp_{len(self.server.seen)}",
            "usage": {"input_tokens": 5, "output_tokens": 7, "total_tokens": 12},
            "ds4trio": {"tokens_per_second": 21.5, "mean_batch_size": 3.25},
            "error": None,
            "incomplete_details": {"reason": reason} if reason else None,
        }
        self.known[response["id"]] = [*self.messages, ("assistant", self.spoken)]
        kind = "response.incomplete" if reason else "response.completed"
        await self.event(kind, response=response)

    async def fail(self, code: str, message: str) -> None:
        await self.event("response.failed", response={"error": {"code": code, "message": message}})

    async def error(self, code: str, message: str = "that did not work") -> None:
        error = {"type": "invalid_request_error", "code": code, "message": message, "param": None}
        await self.event("error", status=400, error=error, code=code, message=message)

    async def vanish(self) -> None:
        """End the connection as a crash would."""
        with trio.CancelScope() as scope:
            scope.cancel()
            await self.websocket.aclose()


Model = Callable[[Peer], Awaitable[None]]


async def echo(peer: Peer) -> None:
    """A model that repeats the question, word for word."""
    await peer.begin()
    await peer.say(*(f"{word} " for word in f"You said: {peer.question}".split()))
    await peer.finish()


@dataclass
class FakeServer:
    """What it was asked, and how it answers.

    Attributes:
        answers: the model's part, one for each request in turn; then ``model``.
        seen: for each request that reached the model, the conversation it stands for.
        frames: every frame from clients, as sent.
        refusals: for the next upgrades, in turn.
    """

    port: int = 0
    model: Model = echo
    answers: list[Model] = field(default_factory=list)
    seen: list[list[Message]] = field(default_factory=list)
    frames: list[dict[str, Any]] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    headers: list[dict[bytes, bytes]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    peers: list[Peer] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def handle(self, request: WebSocketRequest) -> None:
        self.headers.append(dict(request.headers))
        self.paths.append(request.path)
        if self.refusals:
            refusal = self.refusals.pop(0)
            await request.reject(refusal.status, body=refusal.body)
            return
        peer = Peer(self, await request.accept())
        self.peers.append(peer)
        creates, waiting = trio.open_memory_channel[dict[str, Any]](8)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read, peer, creates)
            async for create in waiting:
                try:
                    await self._respond(peer, create)
                except ConnectionClosed:
                    break
            nursery.cancel_scope.cancel()

    async def _read(self, peer: Peer, creates: trio.MemorySendChannel[dict[str, Any]]) -> None:
        with creates:
            while True:
                try:
                    frame = json.loads(await peer.websocket.get_message())
                except ConnectionClosed:
                    peer.cancelled.set()
                    return
                self.frames.append(frame)
                if frame["type"] == "response.cancel":
                    peer.cancelled.set()
                else:
                    await creates.send(frame)

    async def _respond(self, peer: Peer, create: dict[str, Any]) -> None:
        peer.cancelled = trio.Event()
        previous = create.get("previous_response_id")
        if previous is not None and previous not in peer.known:
            await peer.error("previous_response_not_found")
            return
        earlier = [] if previous is None else peer.known[previous]
        peer.messages = earlier + [(item["role"], item["content"]) for item in create["input"]]
        self.seen.append(peer.messages)
        await (self.answers.pop(0) if self.answers else self.model)(peer)


@asynccontextmanager
async def fake_server(port: int = 0) -> AsyncIterator[FakeServer]:
    server = FakeServer()
    async with trio.open_nursery() as nursery:
        listening = await nursery.start(serve_websocket, server.handle, "127.0.0.1", port, None)
        server.port = listening.port
        yield server
        nursery.cancel_scope.cancel()
