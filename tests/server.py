"""A real server on loopback for tests: hypercorn's worker, in this process, on a free port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import trio
from hypercorn.config import Config
from hypercorn.trio.run import worker_serve
from hypercorn.utils import wrap_app

from ds4trio.api.service import Service
from ds4trio.app import Load, create_app
from ds4trio.settings import Settings

__all__ = ["RunningServer", "running_server"]


@dataclass(frozen=True, slots=True)
class RunningServer:
    """Where it listens, its inside for tests that look at counts, and what a signal would set."""

    url: str
    service: Service
    stop: trio.Event

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    @property
    def websocket_url(self) -> str:
        return self.url.replace("http", "ws", 1) + "/v1/responses"


@asynccontextmanager
async def running_server(
    settings: Settings, *, load: Load | None = None, wait: bool = True
) -> AsyncIterator[RunningServer]:
    """Serve until the block ends, then stop as a signal would.

    Args:
        settings: ``host`` and ``port`` are not used: it is 127.0.0.1 and any free port.
        load: as for ``create_app``.
        wait: enter the block only when the model is loaded.
    """
    app = create_app(settings, load=load)
    service: Service = app.config["SERVICE"]
    config = Config()
    config.bind = ["127.0.0.1:0"]
    config.graceful_timeout = settings.shutdown_timeout
    config.accesslog = None
    config.errorlog = None
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        serve = partial(worker_serve, wrap_app(app, 0, "asgi"), config, shutdown_trigger=stop.wait)
        binds = await nursery.start(serve)
        if wait:
            await service.settled.wait()
            assert service.failure is None, service.failure
        try:
            yield RunningServer(binds[0], service, stop)
        finally:
            stop.set()
