"""The command ``ds4trio`` and its sub-commands, each imported only when it runs."""

from __future__ import annotations

from importlib import import_module

import click

from ds4trio import __version__

__all__ = ["main"]

_COMMANDS = {
    "bench": ("bench", "measure a server, or two against each other"),
    "chat": ("chat", "talk with a server from the terminal"),
    "inspect": ("inspect_model", "say what a model is, and whether it will run here"),
    "list": ("list_models", "say which models are on this machine"),
    "pull": ("pull", "fetch a model ahead of time"),
    "rm": ("rm", "remove a fetched model"),
    "serve": ("serve", "serve a model to many people at once"),
}
"""By name: the module, which has a command of its own name, and what it does."""


class _LazyGroup(click.Group):
    """Finds ``ds4trio chat`` in ``ds4trio.cli.chat``: a start does not pay for the others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _ = _COMMANDS[cmd_name]
        command = getattr(import_module(f"ds4trio.cli.{module}"), module)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, what) for name, (_, what) in sorted(_COMMANDS.items())])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ds4trio")
def main() -> None:
    """One language model, served to many people at once."""
