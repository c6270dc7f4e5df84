"""Servers that exist in virtual time only, for tests of what drives the load."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

import trio

from ds4trio.cli.load.client import Answer, Client, Connect, RequestFailed
from ds4trio.cli.load.workload import Workload
from ds4trio.cli.terminal.connection import ServerUnreachable

__all__ = ["FakeServer"]


@dataclass
class FakeServer:
    """Answers with a token every ``gap`` seconds; each request in turn may be told to fail.

    Attributes:
        connecting: seconds that opening a connection takes.
        failures: for the next requests, in turn; None is an answer.
        absent: nobody listens.
        hangs: requests get no answer at all.
        asked: every request, with the time it came and the number of its connection.
        log: a list of several servers' own, to see their order.
    """

    name: str = "A"
    tokens: int = 4
    gap: float = 0.5
    connecting: float = 0.0
    failures: list[RequestFailed | None] = field(default_factory=list)
    absent: bool = False
    hangs: bool = False
    connections: int = 0
    open: int = 0
    most_open: int = 0
    asked: list[tuple[float, int, str]] = field(default_factory=list)
    conversations: int = 0
    log: list[str] = field(default_factory=list)

    def connect(self, workload: Workload, on_wait: Callable[[str], None]) -> Connect:
        return self.connection

    def connection(self) -> AbstractAsyncContextManager[Client]:
        return self._connection()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Client]:
        await trio.sleep(self.connecting)
        if self.absent:
            raise ServerUnreachable(f"no server {self.name}")
        self.connections += 1
        self.open += 1
        self.most_open = max(self.open, self.most_open)
        try:
            yield _FakeClient(self, self.connections)
        finally:
            self.open -= 1


@dataclass
class _FakeClient:
    server: FakeServer
    number: int

    def begin(self) -> None:
        self.server.conversations += 1

    async def ask(self, text: str) -> Answer:
        server = self.server
        server.asked.append((trio.current_time(), self.number, text))
        server.log.append(server.name)
        if server.hangs:
            await trio.sleep_forever()
        failure = server.failures.pop(0) if server.failures else None
        pieces = []
        for _ in range(server.tokens):
            await trio.sleep(server.gap)
            pieces.append(trio.current_time())
            if failure is not None:
                raise failure
        return Answer(tuple(pieces), 10, 0, server.tokens)
