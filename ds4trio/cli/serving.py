"""The server in this process: hypercorn's trio worker around the application, until a signal."""

from __future__ import annotations

import contextlib
import gc
import logging
import signal
import socket
import sys
from collections.abc import Sequence
from functools import partial

import trio
from hypercorn.config import Config
from hypercorn.trio.run import worker_serve
from hypercorn.utils import repr_socket_addr, wrap_app

from ds4trio.api.service import Service
from ds4trio.app import create_app, load_generator
from ds4trio.engine.process import ProcessRunner
from ds4trio.settings import Settings

__all__ = ["run_server"]

_log = logging.getLogger(__name__)


def run_server(settings: Settings, runner: ProcessRunner | None) -> int:
    """Serve until a signal comes or the engine is lost. Returns the exit status.

    Args:
        runner: one that was started for these settings, if they ask for one.
    """
    status = trio.run(_run, settings, runner)
    # Else the interpreter looks for cycles in all that there is before it ends: half a second of a
    # processor, and seconds on a busy machine.
    gc.freeze()
    return status


async def _run(settings: Settings, runner: ProcessRunner | None) -> int:
    app = create_app(settings, load=partial(load_generator, runner=runner))
    service: Service = app.config["SERVICE"]
    config = Config()
    config.bind = [f"{settings.host}:{settings.port}"]
    config.graceful_timeout = settings.shutdown_timeout
    config.websocket_max_message_size = settings.max_body_bytes
    config.accesslog = None
    config.errorlog = _warnings_of_hypercorn(settings.log_level)
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
            nursery.start_soon(_announce, service, sockets.insecure_sockets)
            await worker_serve(
                wrap_app(app, 0, "asgi"), config, sockets=sockets, shutdown_trigger=stop.wait
            )
            nursery.cancel_scope.cancel()
    _log.info("stopped")
    return 1 if service.failure is not None else 0


def _warnings_of_hypercorn(level: str) -> logging.Logger:
    """Its lines as ours are written. What it says at level info, ``_announce`` says better."""
    logger = logging.getLogger("ds4trio.hypercorn")
    logger.setLevel(max(logging.WARNING, logging.getLevelNamesMapping()[level.upper()]))
    return logger


async def _announce(service: Service, sockets: Sequence[socket.socket]) -> None:
    """Say where the server listens, and then, that it serves."""
    places = ", ".join(
        f"http://{repr_socket_addr(one.family, one.getsockname())}" for one in sockets
    )
    _log.info("Running on %s, loading the model (CTRL + C to quit)", places)
    await service.settled.wait()
    if service.ready:
        _log.info("ready to serve %s on %s", service.model_name, places)


async def _stop_on_signal(stop: trio.Event, server: trio.CancelScope) -> None:
    """The first signal lets answers end, the second does not."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            if stop.is_set():
                server.cancel()
            else:
                _log.info("stopping")
            stop.set()


async def _stop_on_failure(service: Service, stop: trio.Event) -> None:
    await service.failed.wait()
    stop.set()
