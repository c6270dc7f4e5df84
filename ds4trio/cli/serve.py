"""``ds4trio serve``: fetch the model if need be, then hypercorn's trio worker in this process."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import trio

from ds4trio.cli.progress import TerminalProgress
from ds4trio.engine.process import ProcessRunner
from ds4trio.engine.spec import RunnerSpec
from ds4trio.errors import ModelUnavailable
from ds4trio.models.load import load_model
from ds4trio.models.resolve import resolve
from ds4trio.settings import Field, Settings, SettingsError

if TYPE_CHECKING:
    from ds4trio.api.service import Service

__all__ = ["serve"]


def _option(field: Field) -> click.Option:
    """A setting as a flag. Values stay text: ``Settings.load`` alone checks them."""
    shown = "" if field.default in ("", ()) else f"  [default: {field.default}]"
    flag: dict[str, Any] = {"default": None, "help": f"{field.help}  [{field.variable}]{shown}"}
    if field.type is bool:
        return click.Option([f"{field.flag}/--no-{field.flag[2:]}"], **flag)
    if field.multiple:
        return click.Option([field.flag], multiple=True, **flag)
    if field.choices:
        return click.Option([field.flag], type=click.Choice(field.choices), **flag)
    return click.Option([field.flag], type=str, metavar="VALUE", **flag)


@click.pass_context
def _serve(ctx: click.Context, /, **flags: Any) -> None:
    given = {name: value for name, value in flags.items() if value not in (None, ())}
    try:
        settings = Settings.load(os.environ, given)
    except SettingsError as error:
        raise click.ClickException(str(error)) from None
    try:
        with TerminalProgress() as progress:
            source = resolve(settings.model, progress=progress)
            load_model(source)  # the first time, that converts it
    except ModelUnavailable as error:
        raise click.ClickException(str(error)) from None
    runner = None
    if settings.engine == "process":
        # First of all: it loads the model while this process imports what it serves with.
        runner = ProcessRunner(RunnerSpec.of(settings, source))
    ctx.exit(trio.run(_run, settings, runner))


serve = click.Command(
    "serve",
    callback=_serve,
    params=list(map(_option, Settings.fields())),
    help="Serve a model to many people at once. Every flag is also an environment variable.",
)


async def _run(settings: Settings, runner: ProcessRunner | None) -> int:
    """Serve until a signal comes or the engine is lost. Returns the exit status."""
    from hypercorn.config import Config
    from hypercorn.trio.run import worker_serve
    from hypercorn.utils import wrap_app

    from ds4trio.app import create_app, load_generator

    app = create_app(settings, load=partial(load_generator, runner=runner))
    service: Service = app.config["SERVICE"]
    config = Config()
    config.bind = [f"{settings.host}:{settings.port}"]
    config.graceful_timeout = settings.shutdown_timeout
    config.websocket_max_message_size = settings.max_body_bytes
    config.accesslog = None
    config.errorlog = "-"
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
