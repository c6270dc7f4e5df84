"""``ds4trio chat``: a terminal chat over the Responses WebSocket."""

from __future__ import annotations

import errno
import os
import sys

import click
import trio

from ds4trio.cli.terminal.chat_session import FAILED, ChatSession
from ds4trio.cli.terminal.conversation import RequestOptions
from ds4trio.cli.terminal.endpoint import Endpoint
from ds4trio.cli.terminal.lines import PipeLines, TerminalLines, terminal_kept
from ds4trio.cli.terminal.screen import Screen

__all__ = ["chat"]


@click.command()
@click.option(
    "--url",
    default="http://127.0.0.1:8000",
    show_default=True,
    envvar="DS4TRIO_URL",
    show_envvar=True,
    help="The server; http://, https://, ws:// or wss://.",
)
@click.option(
    "--api-key", envvar="DS4TRIO_API_KEY", show_envvar=True, help="The key, if it wants one."
)
@click.option("--model", help="A model by name, where the server has several.")
@click.option("--system", help="What the model is told before the conversation.")
@click.option(
    "--temperature",
    type=click.FloatRange(0, 2),
    default=0,
    show_default=True,
    help="0 always takes the likeliest words, which suits small models; more is more varied.",
)
@click.option("--max-output-tokens", type=click.IntRange(min=1), help="The longest answer.")
@click.pass_context
def chat(
    context: click.Context,
    url: str,
    api_key: str | None,
    model: str | None,
    system: str | None,
    temperature: float,
    max_output_tokens: int | None,
) -> None:
    """Chat with a running server.

    At a terminal, Ctrl-C stops an answer and /help lists commands. From a pipe, every line is a
    question of one conversation; the answers are printed, and the first error ends it with a
    non-zero exit code.
    """
    if sys.stdin is None or sys.stdout is None or sys.stderr is None:
        raise click.UsageError("standard input, output and error must be open")
    try:
        endpoint = Endpoint.parse(url, api_key)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    options = RequestOptions(model, system, temperature, max_output_tokens)
    screen = Screen.standard()
    lines = TerminalLines() if screen.interactive else PipeLines(sys.stdin.fileno())
    try:
        with terminal_kept():
            code = trio.run(ChatSession(endpoint, options, lines, screen).run)
    except* BrokenPipeError:
        code = FAILED  # who reads the answers has left
    except* OSError as errors:
        screen.error(f"cannot write the answers: {os.strerror(_errno(errors))}")
        code = FAILED
    context.exit(code)


def _errno(error: BaseException) -> int:
    """Of the first error in a group."""
    if isinstance(error, BaseExceptionGroup):
        return _errno(error.exceptions[0])
    return getattr(error, "errno", None) or errno.EIO
