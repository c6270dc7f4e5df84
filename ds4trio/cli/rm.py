"""``ds4trio rm``: remove fetched models."""

from __future__ import annotations

import click

from ds4trio.errors import ModelUnavailable
from ds4trio.models.hub.choice import size_text
from ds4trio.models.removal import plan_removal

__all__ = ["rm"]


@click.command()
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def rm(models: tuple[str, ...], yes: bool) -> None:
    """Remove fetched models from this machine, and what was made of them.

    MODEL is as 'ds4trio list' shows it: an alias, org/name (all of its revisions that are here),
    org/name@revision, or org/name:Q4_K_M (that file alone). Files that others use too are kept. A
    path is never removed.
    """
    try:
        plans = [plan_removal(model) for model in dict.fromkeys(models)]
        for plan in plans:
            click.echo(f"{plan.name}: {size_text(plan.size)}")
            for part in plan.parts:
                click.echo(f"  {part}")
        total = size_text(sum(plan.size for plan in plans))
        if not yes:
            click.confirm(f"Remove this and free {total}?", abort=True)
        for plan in plans:
            plan.execute()
    except ModelUnavailable as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"Freed {total}.")
