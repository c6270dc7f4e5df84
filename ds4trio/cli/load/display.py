"""How a run goes, on the error stream: a bar on a terminal, and a line for each measurement."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

import trio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ds4trio.cli.load.bench import Plan
from ds4trio.cli.load.replay import RawRound
from ds4trio.cli.load.runner import Level
from ds4trio.cli.load.tally import Tally
from ds4trio.cli.terminal.sanitiser import Sanitiser

__all__ = ["Display", "one_line"]

REDRAW_EVERY: Final = 0.25


class Display:
    """A ``Watcher``, and a context manager around the run it watches.

    Args:
        several: more than one server is measured, so that each line names its own.
    """

    def __init__(self, plan: Plan, *, several: bool, console: Console | None = None) -> None:
        self._plan = plan
        self._several = several
        self._console = console or Console(stderr=True)
        # Drawn by a task of ours and not by rich's thread.
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeElapsedColumn(),
            console=self._console,
            auto_refresh=False,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", total=None, speed="")
        self._tally: Tally | None = None
        self._told: set[str] = set()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    async def keep_drawn(self) -> None:
        """Draw the bar, until cancelled."""
        while True:
            if self._tally is not None:
                self._bar.update(
                    self._task,
                    completed=len(self._tally.requests) + self._tally.errors.total(),
                    speed=_summary(self._tally),
                )
            self._bar.refresh()
            await trio.sleep(REDRAW_EVERY)

    def warming_up(self, level: Level, server: str) -> None:
        self._tally = None
        self._bar.reset(
            self._task, description=f"{self._head(level, server)}, warm-up", total=None, speed=""
        )

    def measuring(self, level: Level, server: str, round_number: int, tally: Tally) -> None:
        self._tally = tally
        self._bar.reset(
            self._task,
            description=self._head(level, server, round_number),
            total=self._expected(level),
            speed="",
        )

    def measured(self, level: Level, server: str, round_number: int, tally: Tally) -> None:
        self._print(f"{self._head(level, server, round_number)}: {_summary(tally)}")

    def replaying(self, level: Level, round_number: int) -> None:
        self._tally = None
        head = self._head(level, "", round_number, raw=True)
        self._bar.reset(self._task, description=head, total=None, speed="")

    def replayed(self, level: Level, round_number: int, raw: RawRound) -> None:
        head = self._head(level, "", round_number, raw=True)
        self._print(f"{head}: {raw.requests} requests, {raw.tokens_per_second:.1f} tokens/s")

    def waiting(self, why: str) -> None:
        if why not in self._told:
            self._told.add(why)
            self._print(one_line(why))

    def _head(
        self, level: Level, server: str, round_number: int | None = None, *, raw: bool = False
    ) -> str:
        parts = [str(level)]
        if raw:
            parts.append("the engine alone")
        elif self._several:
            parts.append(f"server {server}")
        if round_number is not None and self._plan.rounds > 1:
            parts.append(f"round {round_number + 1} of {self._plan.rounds}")
        return ", ".join(parts)

    def _expected(self, level: Level) -> int | None:
        """Requests, where the number is known before."""
        conversations = self._plan.limits.conversations
        if conversations is None or self._plan.limits.seconds is not None:
            return None
        return (level.users or 1) * conversations * self._plan.workload.turns

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def one_line(text: str) -> str:
    """What a server said, fit for a terminal."""
    return " ".join(Sanitiser().feed(text).split())


def _summary(tally: Tally) -> str:
    speed = tally.output_tokens / tally.seconds if tally.seconds else 0.0
    failed = tally.errors.total()
    return f"{len(tally.requests)} requests, {speed:.1f} tokens/s" + (
        f", {failed} failed" if failed else ""
    )
