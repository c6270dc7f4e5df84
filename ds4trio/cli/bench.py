"""``ds4trio bench``: measure a server under load, or two against each other."""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

import click
import msgspec
import trio

from ds4trio.cli.load.bench import Bench, Plan
from ds4trio.cli.load.display import Display, one_line
from ds4trio.cli.load.document import document
from ds4trio.cli.load.prompts import (
    CHARACTERS,
    CodeToCopy,
    Prompts,
    RandomWords,
    RealText,
    built_in_code,
)
from ds4trio.cli.load.report import report
from ds4trio.cli.load.runner import Level, Limits
from ds4trio.cli.load.target import Target
from ds4trio.cli.load.workload import Workload
from ds4trio.errors import Ds4TrioError

__all__ = ["bench"]

Number = TypeVar("Number", int, float)
API = click.Choice(["ws", "sse"])
COUNT = click.IntRange(min=1)


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
    help="chat: long stories, or going on with the text of --prompt-file. copy: repeating code with "
    "one change.",
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
@click.pass_context
def bench(context: click.Context, /, json_file: Path | None, **options: Any) -> None:
    """Measure a server under load, or two against each other.

    Prints, for each level of load, tokens a second and how long first tokens and the gaps between
    tokens took. Ctrl-C ends it with the report of what was measured.
    """
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise click.UsageError(f"--json: there is no folder {json_file.parent}")
    named = _targets(options)
    plan = _plan(context, options, named)
    began = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    try:
        run, targets = trio.run(_run, plan, named)
    except Ds4TrioError as error:
        raise _Failure(str(error)) from None
    if run.results:
        found = document(run, targets, began)
        click.echo(report(found), nl=False)
        if json_file is not None:
            try:
                json_file.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
            except OSError as error:
                raise _Failure(f"cannot write {json_file}: {error.strerror}") from None
    if run.stopped is not None:
        raise (_Interrupted if run.interrupted else _Failure)(run.stopped)


class _Failure(click.ClickException):
    """Ends the command with one line and an exit code."""

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"ds4trio bench: {one_line(self.message)}", file=file, err=True)


class _Interrupted(_Failure):
    exit_code = 130  # as a shell has it for Ctrl-C


async def _run(plan: Plan, targets: Sequence[Target]) -> tuple[Bench, Sequence[Target]]:
    targets = [await target.resolved() for target in targets]
    display = Display(plan, several=len(targets) > 1)
    run = Bench(plan, targets, display)
    with display:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(display.keep_drawn)
            await run.run()
            nursery.cancel_scope.cancel()
    return run, targets


def _targets(options: dict[str, Any]) -> list[Target]:
    against = options["against"]
    if against is None:
        for name in ("against_api", "against_model", "against_api_key"):
            if options[name] is not None:
                raise click.UsageError(f"--{name.replace('_', '-')} goes with --against")
    try:
        targets = [
            Target.parse("A", options["url"], options["api"], options["model"], options["api_key"])
        ]
        if against is not None:
            api = options["against_api"] or options["api"]
            key = options["against_api_key"]
            targets.append(Target.parse("B", against, api, options["against_model"], key))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return targets


def _plan(context: click.Context, options: dict[str, Any], targets: list[Target]) -> Plan:
    if options["shared_prefix"] >= options["prompt_tokens"]:
        raise click.UsageError("--shared-prefix must leave some of --prompt-tokens to each user")
    rates = options["rate"]
    if rates and context.get_parameter_source("users") is not click.core.ParameterSource.DEFAULT:
        raise click.UsageError("--users and --rate are two kinds of load; give one of them")
    levels = [Level(rate=rate) for rate in rates] or [Level(users=n) for n in options["users"]]
    requests = options["requests"]
    if requests is None and options["seconds"] is None:
        requests = 4
    shape = ("prompt_tokens", "output_tokens", "shared_prefix", "turns", "turn_tokens")
    seed = options["seed"]
    if seed is None:
        seed = secrets.randbelow(2**32)
    workload = Workload(
        **{name: options[name] for name in shape},
        temperature=options["temperature"],
        seed=seed,
        prompts=_prompts(options),
    )
    limits = Limits(requests, options["seconds"], options["request_timeout"])
    same_words = len({target.endpoint.origin for target in targets}) == len(targets)
    return Plan(levels, workload, limits, options["rounds"], same_words, options["time_limit"])


def _prompts(options: dict[str, Any]) -> Prompts:
    copies = options["workload"] == "copy"
    path: Path | None = options["prompt_file"]
    if path is None and not copies:
        return RandomWords()
    text, name = built_in_code(), "a built-in Python file"
    if path is not None:
        text, name = path.read_text(encoding="utf-8", errors="replace"), path.name
    tokens = len(text.strip()) // CHARACTERS
    if tokens < max(options["prompt_tokens"], 1):
        raise click.UsageError(
            f"--prompt-tokens: {name} has only about {tokens} tokens; prompts are cut from it"
        )
    return (CodeToCopy if copies else RealText)(text, name)
