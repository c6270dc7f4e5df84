"""``ds4trio pull``: fetch and convert models ahead of time."""

from __future__ import annotations

import click

from ds4trio.cli.progress import TerminalProgress
from ds4trio.errors import ModelUnavailable
from ds4trio.models.hub.names import HubName, parse_hub_name
from ds4trio.models.resolve import DEFAULT_MODEL, read_name, resolve

__all__ = ["pull"]

INTERRUPTED = 130
"""The exit code of a command that Ctrl-C ended, as a shell has it."""


@click.command()
@click.argument("models", metavar="[MODEL]...", nargs=-1)
@click.option("--revision", help="A branch, tag or commit of the one MODEL; as org/name@REVISION.")
@click.option(
    "--file",
    "pattern",
    metavar="PATTERN",
    help="Which GGUF file of the one MODEL: a quantisation such as Q4_K_M, a file or a pattern "
    "with *; as org/name:PATTERN.",
)
@click.pass_context
def pull(
    context: click.Context, models: tuple[str, ...], revision: str | None, pattern: str | None
) -> None:
    """Fetch and convert models, so that serve need not, and needs no network.

    MODEL is an alias, the path of a GGUF file or of a Hugging Face folder, or a model on the hub:
    org/name, org/name@revision, org/name:Q4_K_M. Without it, the default model. A pull that was
    interrupted goes on where it ended. Prints where each model is.
    """
    # Imported here: other commands' help should not wait for it.
    from ds4trio.models.load import load_model

    try:
        for model in _names(models or (DEFAULT_MODEL,), revision, pattern):
            with TerminalProgress() as progress:
                source = resolve(model, progress=progress, refresh=True)
                load_model(source, progress=progress)
            click.echo(source.path)
    except ModelUnavailable as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        click.echo("Interrupted. What has come is kept; the same command goes on there.", err=True)
        context.exit(INTERRUPTED)


def _names(models: tuple[str, ...], revision: str | None, pattern: str | None) -> tuple[str, ...]:
    if revision is None and pattern is None:
        return models
    if len(models) != 1:
        raise click.UsageError("--revision and --file are for a single MODEL")
    named = read_name(models[0])
    if not isinstance(named, HubName):
        raise click.UsageError(f"--revision and --file are for models of the hub, not {models[0]}")
    for flag, given, written in (
        ("--revision", revision, named.revision),
        ("--file", pattern, named.pattern),
    ):
        if given is not None and written not in (None, given):
            raise click.UsageError(f"{models[0]} and {flag} {given} do not agree")
    text = str(HubName(named.repo, revision or named.revision, pattern or named.pattern))
    if parse_hub_name(text) is None:
        raise click.UsageError(f"{text!r} is no model on the hub")
    return (text,)
