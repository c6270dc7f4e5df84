"""``ds4trio serve``: fetch the model if need be, start its process, then the server in this one."""

from __future__ import annotations

import os
from typing import Any

import click

from ds4trio.cli.progress import TerminalProgress
from ds4trio.engine.installed import expect_device
from ds4trio.engine.process import ProcessRunner
from ds4trio.engine.spec import RunnerSpec
from ds4trio.errors import ModelUnavailable
from ds4trio.models.load import load_model
from ds4trio.models.lora import expect_adapters
from ds4trio.models.resolve import resolve
from ds4trio.settings import Field, Settings, SettingsError

__all__ = ["serve"]


def _option(field: Field) -> click.Option:
    """A setting as a flag. Values stay text: ``Settings.load`` alone checks them."""
    shown = "" if field.default in ("", ()) else f"  [default: {field.default}]"
    flag: dict[str, Any] = {"default": None, "help": f"{field.help}  [{field.variable}]{shown}"}
    if field.type is bool:
        return click.Option([f"{field.flag}/--no-{field.flag[2:]}"], **flag)
    if field.multiple:
        return click.Option([field.flag], multiple=True, metavar="VALUE", **flag)
    if field.choices:
        return click.Option([field.flag], type=str, metavar=f"[{'|'.join(field.choices)}]", **flag)
    return click.Option([field.flag], type=str, metavar="VALUE", **flag)


@click.pass_context
def _serve(ctx: click.Context, /, **flags: Any) -> None:
    given = {name: value for name, value in flags.items() if value not in (None, ())}
    try:
        settings = Settings.load(os.environ, given)
    except SettingsError as error:
        raise click.ClickException(str(error)) from None
    try:
        expect_device(settings.device)
        expect_adapters(path for _, path in settings.adapters)
        with TerminalProgress() as progress:
            source = resolve(settings.model, progress=progress)
            load_model(source)  # the first time, that converts it
    except ModelUnavailable as error:
        raise click.ClickException(str(error)) from None
    runner = None
    if settings.engine == "process":
        # First of all: it loads the model while this process imports what it serves with.
        runner = ProcessRunner(RunnerSpec.of(settings, source))
    from ds4trio.cli.serving import run_server

    ctx.exit(run_server(settings, runner))


serve = click.Command(
    "serve",
    callback=_serve,
    params=list(map(_option, Settings.fields())),
    help="Serve a model to many people at once. Every flag is also an environment variable.",
)
