"""From the options of ``ds4trio bench`` to what they mean, with what is wrong told at once."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from ds4trio.cli.load.bench import Plan
from ds4trio.cli.load.plot import FORMATS, can_plot
from ds4trio.cli.load.prompts import (
    CHARACTERS,
    CodeToCopy,
    Prompts,
    RandomWords,
    RealText,
    built_in_code,
)
from ds4trio.cli.load.runner import Level, Limits
from ds4trio.cli.load.target import Target
from ds4trio.cli.load.workload import Workload
from ds4trio.settings import Settings, SettingsError

__all__ = ["check_files", "engine_settings", "plan", "targets"]

Options = Mapping[str, Any]

ENGINE: Final = {"raw_model": "model", "device": "device", "dtype": "dtype", "threads": "threads"}
"""Options of an engine on this machine, with the settings they are."""


def targets(options: Options) -> list[Target]:
    """The servers, one or two."""
    against = options["against"]
    if against is None:
        for name in ("against_api", "against_model", "against_api_key"):
            if options[name] is not None:
                raise click.UsageError(f"{_flag(name)} goes with --against")
    try:
        found = [
            Target.parse("A", options["url"], options["api"], options["model"], options["api_key"])
        ]
        if against is not None:
            api = options["against_api"] or options["api"]
            key = options["against_api_key"]
            found.append(Target.parse("B", against, api, options["against_model"], key))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return found


def plan(options: Options, servers: list[Target], *, users_given: bool) -> Plan:
    """What to measure of them.

    Args:
        users_given: the levels of users were chosen, and are not the default.
    """
    if options["shared_prefix"] >= options["prompt_tokens"]:
        raise click.UsageError("--shared-prefix must leave some of --prompt-tokens to each user")
    rates = options["rate"]
    if rates and users_given:
        raise click.UsageError("--users and --rate are two kinds of load; give one of them")
    if rates and options["raw"]:
        raise click.UsageError("--raw goes with --users: an engine alone has no arrivals")
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
    same_words = len({server.endpoint.origin for server in servers}) == len(servers)
    return Plan(levels, workload, limits, options["rounds"], same_words, options["time_limit"])


def engine_settings(options: Options) -> Settings | None:
    """Of the engine on this machine, for --raw and --quality; None where neither is asked for.

    What is not given as an option comes from the variables that ``ds4trio serve`` reads.
    """
    if options["quality"] is not None:
        for name in ("raw", "against", "plot_file"):
            if options[name]:
                raise click.UsageError(
                    f"--quality is measured by itself, without a server and {_flag(name)}"
                )
    elif not options["raw"]:
        for name in ENGINE:
            if options[name] is not None:
                raise click.UsageError(f"{_flag(name)} goes with --raw or --quality")
        return None
    given = {setting: options[name] for name, setting in ENGINE.items()}
    try:
        settings = Settings.load(os.environ, given)
    except SettingsError as error:
        raise click.UsageError(str(error)) from None
    if options["quality"] is not None and settings.dtype == "auto":
        raise click.UsageError("--quality compares one --dtype with float32; name it")
    return settings


def check_files(options: Options) -> None:
    """What will be written at the end can be written there, as far as one can tell."""
    for name in ("json_file", "plot_file"):
        path: Path | None = options[name]
        if path is not None and not path.absolute().parent.is_dir():
            raise click.UsageError(f"{_flag(name)}: there is no folder {path.parent}")
    path = options["plot_file"]
    if path is not None and path.suffix.lower() not in FORMATS:
        raise click.UsageError(f"--plot: {path.name} ends neither in .svg nor in .png")
    if path is not None and not can_plot():
        raise click.UsageError("--plot needs matplotlib: pip install 'ds4trio[plot]'")


def _prompts(options: Options) -> Prompts:
    copies = options["workload"] == "copy"
    path: Path | None = options["prompt_file"]
    if path is None and not copies:
        return RandomWords()
    text, name = built_in_code(), "a built-in Python file"
    if path is not None:
        text, name = path.read_text(encoding="utf-8", errors="replace"), path.name
    tokens = len(text.strip()) // CHARACTERS
    if tokens < options["prompt_tokens"]:
        raise click.UsageError(
            f"--prompt-tokens: prompts are cut from {name}, which has only about {tokens} tokens"
        )
    return (CodeToCopy if copies else RealText)(text, name)


def _flag(name: str) -> str:
    return "--" + name.removesuffix("_file").replace("_", "-")
