"""``ds4trio bench``: measure a server under load, or two against each other."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import IO, Any, TypeVar

import click
import msgspec
import trio
from click.core import ParameterSource

from ds4trio.cli.load.bench import Bench, Plan
from ds4trio.cli.load.display import Display, one_line
from ds4trio.cli.load.document import document
from ds4trio.cli.load.options import check_files, engine_settings, plan, targets
from ds4trio.cli.load.plot import plot
from ds4trio.cli.load.quality import measure_quality, quality_report
from ds4trio.cli.load.raw import Ready, raw_engine
from ds4trio.cli.load.report import report
from ds4trio.cli.load.target import Target
from ds4trio.cli.progress import TerminalProgress
from ds4trio.errors import Ds4TrioError
from ds4trio.models.resolve import resolve
from ds4trio.settings import Settings

__all__ = ["bench"]

Number = TypeVar("Number", int, float)
API = click.Choice(["ws", "sse"])
COUNT = click.IntRange(min=1)
CHOICES = {field.name: click.Choice(field.choices) for field in Settings.fields() if field.choices}


def _numbers(
    kind: Callable[[str], Number],
) -> Callable[[click.Context, click.Parameter, str | None], list[Number]]:
    """Reads ``1,8,32``: positive numbers, each once."""

    def read(context: click.Context, parameter: click.Parameter, text: str | None) -> list[Number]:
        if text is None:
            return []
        try:
            numbers = [kind(part) for part in text.split(",")]
        except ValueError:
            numbers = []
        if not numbers or not all(0 < number < 1e6 for number in numbers):
            raise click.BadParameter(f"{text!r} is not a list of positive numbers like 1,8,32")
        return list(dict.fromkeys(numbers))

    return read


@click.command()
@click.option(
    "--url",
    default="http://127.0.0.1:8000",
    show_default=True,
    envvar="DS4TRIO_URL",
    show_envvar=True,
    help="The server.",
)
@click.option(
    "--api",
    type=API,
    default="ws",
    show_default=True,
    help="ws: Responses over a WebSocket. sse: Chat Completions, streamed over HTTP.",
)
@click.option("--model", help="A model by name, where the server has several.")
@click.option(
    "--api-key", envvar="DS4TRIO_API_KEY", show_envvar=True, help="The key, if it wants one."
)
@click.option("--against", metavar="URL", help="A second server, measured in turns with the first.")
@click.option("--against-api", type=API, help="What the second server speaks.  [default: as --api]")
@click.option("--against-model", help="The second server's model.")
@click.option("--against-api-key", help="The second server's key.")
@click.option(
    "--users",
    default="1,8,32",
    show_default=True,
    callback=_numbers(int),
    help="Levels: so many users at once, each one request after the other.",
)
@click.option(
    "--rate",
    callback=_numbers(float),
    help="Levels of another kind, in place of --users: so many conversations begin in a second, "
    "at random (Poisson) times, whether or not the server keeps up.",
)
@click.option(
    "--requests",
    type=COUNT,
    help="Conversations of each user, or with --rate in all.  [default: 4; with --seconds, no "
    "limit]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    help="Begin no conversation after so long.",
)
@click.option(
    "--workload",
    type=click.Choice(["chat", "copy"]),
    default="chat",
    show_default=True,
    help="chat: long stories, or going on with the text of --prompt-file. copy: repeating code "
    "with one change.",
)
@click.option(
    "--prompt-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A text file that prompts are cut from, each at another place.  [default: random words; "
    "for copying, a built-in Python file]",
)
@click.option("--prompt-tokens", type=COUNT, default=64, show_default=True, help="About.")
@click.option(
    "--output-tokens", type=COUNT, default=64, show_default=True, help="The longest answer."
)
@click.option(
    "--shared-prefix",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Tokens of each prompt, about, that are the same in all conversations.",
)
@click.option("--turns", type=COUNT, default=1, show_default=True, help="Requests a conversation.")
@click.option(
    "--turn-tokens", type=COUNT, default=16, show_default=True, help="Of every later turn, about."
)
@click.option(
    "--temperature", type=click.FloatRange(0, 2), default=0, show_default=True, help="Of sampling."
)
@click.option(
    "--rounds", type=COUNT, default=1, show_default=True, help="Measurements at each level."
)
@click.option(
    "--seed",
    type=int,
    help="Of words and arrivals. Without one it is another each time, so that no server finds the "
    "prompts of an earlier run in a cache.",
)
@click.option(
    "--request-timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=120,
    show_default=True,
    help="Seconds after which a request has failed.",
)
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    default=1800,
    show_default=True,
    help="Seconds for everything; then the report is of what was measured.",
)
@click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write all figures and settings to this file.",
)
@click.option(
    "--plot",
    "plot_file",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Draw throughput and times by level into this .svg or .png (needs ds4trio[plot]).",
)
@click.option(
    "--raw",
    is_flag=True,
    help="After each round do the same batches on the engine alone, in a process on this machine, "
    "and print served/raw. Give it the model and settings that the first server has.",
)
@click.option(
    "--quality",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Without a server: perplexity, mean KL and top-1 agreement of --dtype against float32 on "
    "this text.",
)
@click.option(
    "--quality-tokens",
    type=click.IntRange(min=2),
    default=2048,
    show_default=True,
    help="Of the text, from its beginning.",
)
@click.option(
    "--raw-model",
    help="What the engine of --raw or --quality loads, as for serve --model.  [default: as serve]",
)
@click.option("--device", type=CHOICES["device"], help="Of that engine, as for serve.")
@click.option(
    "--dtype",
    type=CHOICES["dtype"],
    help="Of that engine, as for serve. Its other settings come from the DS4TRIO_ variables that "
    "serve reads.",
)
@click.option("--threads", type=click.IntRange(min=0), help="Of that engine; 0 lets torch choose.")
@click.pass_context
def bench(context: click.Context, /, **options: Any) -> None:
    """Measure a server under load, or two against each other.

    Prints, for each level of load, tokens a second and how long first tokens and the gaps between
    tokens took. Ctrl-C ends it with the report of what was measured. With --quality it measures no
    server, but what a number format does to a model's answers.
    """
    check_files(options)
    settings = engine_settings(options)
    if options["quality"] is not None:
        assert settings is not None
        _measure_quality(settings, options)
        return
    named = targets(options)
    users_given = context.get_parameter_source("users") is not ParameterSource.DEFAULT
    planned = plan(options, named, users_given=users_given)
    began = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    try:
        if settings is not None:
            with TerminalProgress() as progress:
                resolve(settings.model, progress=progress)
        run, found_targets, raw = trio.run(_run, planned, named, settings)
    except Ds4TrioError as error:
        raise _Failure(str(error)) from None
    if run.results:
        found = document(run, found_targets, began, raw)
        click.echo(report(found), nl=False)
        _write_json(options["json_file"], found)
        _write(options["plot_file"], lambda path: plot(found, path))
    if run.stopped is not None:
        raise (_Interrupted if run.interrupted else _Failure)(run.stopped)


def _measure_quality(settings: Settings, options: dict[str, Any]) -> None:
    try:
        with TerminalProgress() as progress:
            found = measure_quality(
                settings, options["quality"], options["quality_tokens"], progress
            )
    except (Ds4TrioError, ValueError) as error:
        raise _Failure(str(error)) from None
    click.echo(quality_report(found), nl=False)
    _write_json(options["json_file"], found)


def _write_json(path: Path | None, found: object) -> None:
    text = msgspec.json.format(msgspec.json.encode(found)) + b"\n"
    _write(path, lambda path: path.write_bytes(text))


def _write(path: Path | None, write: Callable[[Path], object]) -> None:
    if path is not None:
        try:
            write(path)
        except OSError as error:
            raise _Failure(f"cannot write {path}: {error.strerror}") from None


class _Failure(click.ClickException):
    """Ends the command with one line and an exit code."""

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"ds4trio bench: {one_line(self.message)}", file=file, err=True)


class _Interrupted(_Failure):
    exit_code = 130  # as a shell has it for Ctrl-C


async def _run(
    planned: Plan, named: Sequence[Target], settings: Settings | None
) -> tuple[Bench, Sequence[Target], Ready | None]:
    found = [await target.resolved() for target in named]
    display = Display(planned, several=len(found) > 1)
    with display:
        async with AsyncExitStack() as processes:
            raw = None
            if settings is not None:
                display.waiting("the engine alone loads its model")
                raw = await processes.enter_async_context(raw_engine(settings))
            run = Bench(planned, found, display, raw)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(display.keep_drawn)
                await run.run()
                nursery.cancel_scope.cancel()
    return run, found, raw.ready if raw is not None else None
