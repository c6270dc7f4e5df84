"""``ds4trio list``: which models are on this machine."""

from __future__ import annotations

import datetime
import time

import click
import msgspec

from ds4trio.models.hub.choice import size_text
from ds4trio.models.inventory import KeptModel, kept_models

__all__ = ["list_models"]

HEADINGS = ("MODEL", "FORMAT", "SIZE", "LAST USED")


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="For programs: a list of objects.")
def list_models(as_json: bool) -> None:
    """Say which models are on this machine.

    The names are what --model, inspect and rm take. Models of the hub are those in the hub's own
    cache, whoever fetched them, that could be served.
    """
    models = kept_models()
    if as_json:
        text = msgspec.json.format(msgspec.json.encode(list(map(_for_programs, models))))
        click.echo(text.decode())
    elif not models:
        click.echo(
            "No model is here yet. 'ds4trio pull' fetches the default model, 'ds4trio pull "
            "org/name' one from the hub."
        )
    else:
        rows = [HEADINGS, *map(_row, models)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
        for name, kind, size, used in rows:
            click.echo(
                f"{name:<{widths[0]}}  {kind:<{widths[1]}}  {size:>{widths[2]}}  {used}".rstrip()
            )


def _row(model: KeptModel) -> tuple[str, str, str, str]:
    kind = f"{model.format} {model.numbers}".strip() if model.complete else "incomplete: pull again"
    return model.name, kind, size_text(model.size), ago(time.time() - model.last_used)


def _for_programs(model: KeptModel) -> dict[str, object]:
    used = datetime.datetime.fromtimestamp(model.last_used, datetime.UTC)
    return {
        "name": model.name,
        "format": model.format.lower() or None,
        "numbers": model.numbers or None,
        "size": model.size,
        "last_used": used.isoformat(timespec="seconds"),
        "complete": model.complete,
        "path": str(model.path),
    }


def ago(seconds: float) -> str:
    """A stretch of time for people: ``3 days ago``."""
    for length, word in ((86400 * 365, "year"), (86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {word}{'s' if count > 1 else ''} ago"
    return "now"
