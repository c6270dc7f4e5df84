"""``ds4trio pull``: fetch and convert a model ahead of time."""

from __future__ import annotations

import click

from ds4trio.cli.progress import TerminalProgress
from ds4trio.errors import ModelUnavailable
from ds4trio.models.resolve import DEFAULT_MODEL, resolve

__all__ = ["pull"]


@click.command()
@click.argument("model", default=DEFAULT_MODEL, required=False)
def pull(model: str) -> None:
    """Fetch and convert MODEL, so that serve need not, and needs no network.

    MODEL is an alias, the path of a GGUF file or of a Hugging Face folder, or a hub id (org/name).
    Without it, the default model. Prints where the model is.
    """
    # Imported here: it brings torch, which the other commands' help should not wait for.
    from ds4trio.models.load import load_model

    try:
        with TerminalProgress() as progress:
            source = resolve(model, progress=progress, refresh=True)
            load_model(source, progress=progress)
    except ModelUnavailable as error:
        raise click.ClickException(str(error)) from error
    click.echo(source.path)
