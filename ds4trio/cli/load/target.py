"""A server under test: where it is, what it speaks, and how a user gets a connection to it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Literal

from ds4trio.cli.load.client import Asking, Client, Connect
from ds4trio.cli.load.sse_client import first_model, sse_client
from ds4trio.cli.load.websocket_client import websocket_client
from ds4trio.cli.load.workload import Workload
from ds4trio.cli.terminal.endpoint import Endpoint

__all__ = ["Api", "Target"]

Api = Literal["ws", "sse"]


@dataclass(frozen=True, slots=True)
class Target:
    """A server under test.

    Attributes:
        name: one letter, for the report.
        model: by name; None before ``resolved`` if none was given, and after it where the server
            names none.
    """

    name: str
    endpoint: Endpoint
    api: Api
    model: str | None = None

    @classmethod
    def parse(cls, name: str, url: str, api: Api, model: str | None, key: str | None) -> Target:
        """From what people type: the URL may be of the server, its ``/v1``, or of the resource.

        Raises:
            ValueError: in one line, what is wrong with the URL or the key.
        """
        base = url.rstrip("/").removesuffix("/chat/completions")
        return cls(name, Endpoint.parse(base, key), api, model)

    async def resolved(self) -> Target:
        """With the name of its model, where requests need one.

        Raises:
            Ds4TrioError: in one line, the server is not there or refuses.
        """
        if self.model is None and self.api == "sse":
            return replace(self, model=await first_model(self.endpoint))
        return self

    def connect(self, workload: Workload, on_wait: Callable[[str], None]) -> Connect:
        """What a user of this workload calls for a connection."""
        asking = Asking(self.model, workload.output_tokens, workload.temperature)

        def websocket() -> AbstractAsyncContextManager[Client]:
            return websocket_client(self.endpoint, asking, on_wait)

        def sse() -> AbstractAsyncContextManager[Client]:
            return sse_client(self.endpoint, asking)

        return websocket if self.api == "ws" else sse
