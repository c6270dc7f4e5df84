"""The server in this process: hypercorn's trio worker around the application, until a signal."""

from __future__ import annotations

import contextlib
import signal
import sys
from functools import partial

import trio
from hypercorn.config import Config
from hypercorn.trio.run import worker_serve
from hypercorn.utils import wrap_app

from ds4trio.api.service import Service
from ds4trio.app import create_app, load_generator
from ds4trio.engine.process import ProcessRunner
from ds4trio.settings import Settings

__all__ = ["run_server"]


def run_server(settings: Settings, runner: ProcessRunner | None) -> int:
    """Serve until a signal comes or the engine is lost. Returns the exit status.

    Args:
        runner: one that was started for these settings, if they ask for one.
    """
    return trio.run(_run, settings, runner)


async def _run(settings: Settings, runner: ProcessRunner | None) -> int:
    app = create_app(settings, load=partial(load_generator, runner=runner))
    service: Service = app.config["SERVICE"]
    config = Config()
    config.bind = [f"{settings.host}:{settings.port}"]
    config.graceful_timeout = settings.shutdown_timeout
    config.websocket_max_message_size = settings.max_body_bytes
    config.accesslog = None
    config.errorlog = "-"
    config.loglevel = settings.log_level
    try:
        sockets = config.create_sockets()
    except OSError as error:
        print(f"Error: cannot listen on {config.bind[0]}: {error.strerror}", file=sys.stderr)
        return 1
    stop = trio.Event()
    with contextlib.ExitStack() as open_sockets:
        for sock in sockets.insecure_sockets:
            open_sockets.enter_context(sock)
            sock.listen(config.backlog)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_stop_on_signal, stop, nursery.cancel_scope)
            nursery.start_soon(_stop_on_failure, service, stop)
            await worker_serve(
                wrap_app(app, 0, "asgi"), config, sockets=sockets, shutdown_trigger=stop.wait
            )
            nursery.cancel_scope.cancel()
    return 1 if service.failure is not None else 0


async def _stop_on_signal(stop: trio.Event, server: trio.CancelScope) -> None:
    """The first signal lets answers end, the second does not."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            if stop.is_set():
                server.cancel()
            stop.set()


async def _stop_on_failure(service: Service, stop: trio.Event) -> None:
    await service.failed.wait()
    stop.set()
