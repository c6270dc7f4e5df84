"""The whole run: every level, round after round, the servers taking turns."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import trio

from ds4trio.cli.load.client import Connect
from ds4trio.cli.load.runner import Level, Limits, measure, warm_up
from ds4trio.cli.load.tally import Tally
from ds4trio.cli.load.workload import Workload
from ds4trio.errors import Ds4TrioError

__all__ = ["Bench", "LevelResult", "Plan", "Server", "Watcher"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure.

    Attributes:
        rounds: how often each server is measured at each level. Servers take turns within.
        same_words: both servers of a round are asked the same. Not fair where they are one server
            with two doors: the second would find the prompts in the cache.
        time_limit: seconds for everything; then the run ends with what it has.
    """

    levels: Sequence[Level]
    workload: Workload
    limits: Limits
    rounds: int = 1
    same_words: bool = True
    time_limit: float = 1800.0


class Server(Protocol):
    """What the run needs to know of a server."""

    @property
    def name(self) -> str: ...

    def connect(self, workload: Workload, on_wait: Callable[[str], None]) -> Connect: ...


@dataclass(frozen=True, slots=True)
class LevelResult:
    """What was counted at one level: for each server, by name, a tally for each round begun."""

    level: Level
    tallies: dict[str, list[Tally]]


class Watcher(Protocol):
    """Who shows how the run goes. Nothing here may block."""

    def warming_up(self, level: Level, server: str) -> None: ...

    def measuring(self, level: Level, server: str, round_number: int, tally: Tally) -> None: ...

    def measured(self, level: Level, server: str, round_number: int, tally: Tally) -> None: ...

    def waiting(self, why: str) -> None: ...


@dataclass(slots=True)
class Bench:
    """One run.

    Attributes:
        results: what was measured so far, level by level.
        stopped: in a few words, why it ended before its time.
        interrupted: it was ended by Ctrl-C.
    """

    plan: Plan
    servers: Sequence[Server]
    watcher: Watcher
    results: list[LevelResult] = field(default_factory=list)
    stopped: str | None = None
    interrupted: bool = False

    async def run(self) -> None:
        """Until all is measured, the time is over, a server cannot be measured, or Ctrl-C.

        Never raises for what servers do; ``stopped`` has it.
        """
        limit = self.plan.time_limit
        with trio.move_on_after(limit) as scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._stop_on_interrupt, nursery.cancel_scope)
                await self._measure_everything()
                nursery.cancel_scope.cancel()
        if scope.cancelled_caught:
            self.stopped = f"the time limit of {limit:g} s was reached"

    async def _measure_everything(self) -> None:
        for level in self.plan.levels:
            for server in self.servers:
                self.watcher.warming_up(level, server.name)
                try:
                    await warm_up(self._connect(server), self.plan.workload, self.plan.limits)
                except Ds4TrioError as error:
                    which = f"server {server.name}: " if len(self.servers) > 1 else ""
                    self.stopped = f"{which}{error}"
                    return
            result = LevelResult(level, {server.name: [] for server in self.servers})
            self.results.append(result)
            for round_number in range(self.plan.rounds):
                for server in self.servers:
                    await self._measure(result, server, round_number)

    async def _measure(self, result: LevelResult, server: Server, round_number: int) -> None:
        tally = Tally()
        result.tallies[server.name].append(tally)
        self.watcher.measuring(result.level, server.name, round_number, tally)
        # Never the same in two rounds: what a prefix cache then finds is the workload's doing.
        stream = f"level {result.level} round {round_number}"
        if not self.plan.same_words:
            stream += f" server {server.name}"
        workload, limits = self.plan.workload, self.plan.limits
        await measure(self._connect(server), result.level, workload, limits, tally, stream)
        self.watcher.measured(result.level, server.name, round_number, tally)

    def _connect(self, server: Server) -> Connect:
        return server.connect(self.plan.workload, self.watcher.waiting)

    async def _stop_on_interrupt(
        self,
        scope: trio.CancelScope,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        with trio.open_signal_receiver(signal.SIGINT) as signals:
            task_status.started()
            async for _ in signals:
                self.stopped = "interrupted"
                self.interrupted = True
                scope.cancel()
