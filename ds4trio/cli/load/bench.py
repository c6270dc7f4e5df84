"""The whole run: every level, round after round, the servers (and the raw engine) taking turns."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import trio

from ds4trio.cli.load.client import Connect
from ds4trio.cli.load.replay import Order, RawRound, jobs_of
from ds4trio.cli.load.runner import Level, Limits, measure, warm_up
from ds4trio.cli.load.tally import Tally
from ds4trio.cli.load.workload import Workload
from ds4trio.errors import Ds4TrioError

__all__ = ["Bench", "LevelResult", "Plan", "Raw", "Server", "Watcher"]


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


class Raw(Protocol):
    """An engine without a server, for the same batches once more."""

    async def replay(self, order: Order) -> RawRound:
        """Raises Ds4TrioError, in one line, where it cannot."""
        ...


@dataclass(frozen=True, slots=True)
class LevelResult:
    """What was counted at one level.

    Attributes:
        tallies: for each server, by name, one for each round begun.
        raw: what the first server's rounds took the engine alone; None where nothing was answered.
    """

    level: Level
    tallies: dict[str, list[Tally]]
    raw: list[RawRound | None] = field(default_factory=list)


class Watcher(Protocol):
    """Who shows how the run goes. Nothing here may block."""

    def warming_up(self, level: Level, server: str) -> None: ...

    def measuring(self, level: Level, server: str, round_number: int, tally: Tally) -> None: ...

    def measured(self, level: Level, server: str, round_number: int, tally: Tally) -> None: ...

    def replaying(self, level: Level, round_number: int) -> None: ...

    def replayed(self, level: Level, round_number: int, raw: RawRound) -> None: ...

    def waiting(self, why: str) -> None: ...


@dataclass(slots=True)
class Bench:
    """One run.

    Attributes:
        raw: does every round of the first server again; None measures servers only.
        results: what was measured so far, level by level.
        stopped: in a few words, why it ended before its time.
        interrupted: it was ended by Ctrl-C.
    """

    plan: Plan
    servers: Sequence[Server]
    watcher: Watcher
    raw: Raw | None = None
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
                if self.raw is not None:
                    try:
                        await self._replay(result, self.raw, round_number)
                    except Ds4TrioError as error:
                        self.stopped = str(error)
                        return

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

    async def _replay(self, result: LevelResult, raw: Raw, round_number: int) -> None:
        """The latest round of the first server, on the engine alone."""
        jobs = jobs_of(result.tallies[self.servers[0].name][-1])
        if not jobs:
            result.raw.append(None)
            return
        self.watcher.replaying(result.level, round_number)
        temperature = self.plan.workload.temperature
        if round_number == 0:  # not counted, as the servers' first conversation is not
            await raw.replay(Order(1, temperature, jobs[:1]))
        assert result.level.users is not None
        found = await raw.replay(Order(result.level.users, temperature, jobs))
        result.raw.append(found)
        self.watcher.replayed(result.level, round_number, found)

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
