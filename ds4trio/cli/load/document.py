"""Everything a run was asked and has found, as one document for JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import msgspec

from ds4trio import __version__
from ds4trio.cli.load.bench import Bench, LevelResult, Plan
from ds4trio.cli.load.figures import Figures, Ratio, figures, ratio, ratios
from ds4trio.cli.load.raw import Ready
from ds4trio.cli.load.replay import RawRound
from ds4trio.cli.load.tally import Tally
from ds4trio.cli.load.target import Target

__all__ = ["Document", "LevelFigures", "ServerFigures", "document"]


class ServerFigures(msgspec.Struct, frozen=True):
    """One server at one level.

    Attributes:
        overall: of all rounds together, their times one after the other.
    """

    overall: Figures
    rounds: list[Figures]


class RawFigures(msgspec.Struct, frozen=True):
    """The engine alone, with the lengths of the first server's rounds.

    Attributes:
        tokens_per_second: of all rounds together.
        served_by_raw: the first server's tokens a second by the engine's, round by round; None
            where no round of both was complete.
    """

    requests: int
    output_tokens: int
    tokens_per_second: float
    served_by_raw: Ratio | None
    rounds: list[RawRound | None]


class LevelFigures(msgspec.Struct, frozen=True):
    """One level.

    Attributes:
        ratios: the first server's figures by the second's; empty where there is one server.
        raw: the engine alone; None where it was not measured.
    """

    level: str
    users: int | None
    rate: float | None
    servers: dict[str, ServerFigures]
    ratios: dict[str, Ratio]
    raw: RawFigures | None


class Document(msgspec.Struct, frozen=True):
    """A run.

    Attributes:
        began: date and time, ISO 8601, UTC.
        stopped: why it ended before all was measured; None where it did not.
        machine: where the load generator ran.
        raw: what the engine alone is; None where it was not asked for.
        settings: what was asked. API keys are not among it.
    """

    ds4trio: str
    began: str
    stopped: str | None
    machine: dict[str, Any]
    servers: dict[str, dict[str, Any]]
    raw: Ready | None
    settings: dict[str, Any]
    levels: list[LevelFigures]


def document(
    bench: Bench, targets: Sequence[Target], began: str, raw: Ready | None = None
) -> Document:
    """Of a run that has ended, in whatever way."""
    return Document(
        ds4trio=__version__,
        began=began,
        stopped=bench.stopped,
        machine={
            "platform": platform.platform(),
            "processors": os.cpu_count(),
            "python": platform.python_version(),
        },
        servers={
            target.name: {
                "url": target.endpoint.origin,
                "api": target.api,
                "model": target.model,
            }
            for target in targets
        },
        raw=raw,
        settings=_settings(bench.plan),
        levels=[_level(result, bench.plan.workload.output_tokens) for result in bench.results],
    )


def _settings(plan: Plan) -> dict[str, Any]:
    workload = {field.name: getattr(plan.workload, field.name) for field in fields(plan.workload)}
    return {
        **workload,
        "prompts": plan.workload.prompts.name,
        **msgspec.to_builtins(plan.limits),
        "rounds": plan.rounds,
        "same_words": plan.same_words,
        "time_limit": plan.time_limit,
    }


def _level(result: LevelResult, asked: int) -> LevelFigures:
    servers = {name: _server(tallies, asked) for name, tallies in result.tallies.items()}
    pairs: list[tuple[Figures, Figures]] = []
    if len(servers) == 2:
        first, second = servers.values()
        # A round that was cut short says nothing about a ratio.
        pairs = [
            (ours, theirs)
            for ours, theirs in zip(first.rounds, second.rounds, strict=False)
            if ours.complete and theirs.complete
        ]
    return LevelFigures(
        level=str(result.level),
        users=result.level.users,
        rate=result.level.rate,
        servers=servers,
        ratios=ratios(pairs),
        raw=_raw(result.raw, next(iter(servers.values())).rounds) if result.raw else None,
    )


def _raw(rounds: list[RawRound | None], served: Sequence[Figures]) -> RawFigures:
    done = [found for found in rounds if found is not None]
    seconds = sum(found.seconds for found in done)
    tokens = sum(found.output_tokens for found in done)
    found = [
        figures.tokens_per_second / alone.tokens_per_second
        for figures, alone in zip(served, rounds, strict=False)
        if alone is not None and alone.seconds and figures.complete
    ]
    return RawFigures(
        requests=sum(found.requests for found in done),
        output_tokens=tokens,
        tokens_per_second=tokens / seconds if seconds else 0.0,
        served_by_raw=ratio(found),
        rounds=rounds,
    )


def _server(tallies: Sequence[Tally], asked: int) -> ServerFigures:
    return ServerFigures(
        overall=figures(Tally.merged(tallies), asked),
        rounds=[figures(tally, asked) for tally in tallies],
    )
