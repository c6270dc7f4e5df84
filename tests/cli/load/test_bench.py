"""The whole run: order, ends before the end, and the document of it."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

import pytest
import trio
from trio.testing import MockClock

from ds4trio.cli.load.bench import Bench, Plan
from ds4trio.cli.load.client import RequestFailed
from ds4trio.cli.load.document import document
from ds4trio.cli.load.raw import Ready
from ds4trio.cli.load.replay import Job, Order, RawFailed, RawRound
from ds4trio.cli.load.report import report
from ds4trio.cli.load.runner import Level, Limits
from ds4trio.cli.load.tally import Tally
from ds4trio.cli.load.target import Target
from ds4trio.cli.load.workload import Workload
from tests.cli.load.fake_client import FakeServer

LEVELS = (Level(users=1), Level(users=2))
TARGETS = [
    Target.parse("A", "one.example", "ws", None, "secret"),
    Target.parse("B", "https://two.example/v1/chat/completions", "sse", "m", None),
]


class Log:
    """A watcher that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def warming_up(self, level: Level, server: str) -> None:
        self.lines.append(f"warm-up {level} {server}")

    def measuring(self, level: Level, server: str, round_number: int, tally: Tally) -> None:
        assert not tally.requests

    def measured(self, level: Level, server: str, round_number: int, tally: Tally) -> None:
        assert tally.complete
        self.lines.append(f"{level} {server} {round_number}")

    def replaying(self, level: Level, round_number: int) -> None:
        self.lines.append(f"{level} raw {round_number}")

    def replayed(self, level: Level, round_number: int, raw: RawRound) -> None:
        self.lines.append(f"{raw.output_tokens} raw tokens")

    def waiting(self, why: str) -> None:
        self.lines.append(why)


@dataclass
class FakeRaw:
    """An engine that takes a quarter of a second for a token, whatever it is asked."""

    fails_after: int = 1000
    orders: list[Order] = field(default_factory=list)

    async def replay(self, order: Order) -> RawRound:
        self.orders.append(order)
        if len(self.orders) > self.fails_after:
            raise RawFailed("the engine is full")
        tokens = sum(job.output for job in order.jobs)
        await trio.sleep(0.25 * tokens)
        return RawRound(len(order.jobs), tokens, tokens, 0.25 * tokens)


def bench(
    *servers: FakeServer,
    time_limit: float = 1e6,
    same_words: bool = True,
    raw: FakeRaw | None = None,
) -> Bench:
    plan = Plan(LEVELS, Workload(), Limits(conversations=2), 2, same_words, time_limit)
    return Bench(plan, servers, Log(), raw)


async def test_servers_take_turns_round_by_round(autojump_clock: MockClock) -> None:
    log: list[str] = []
    servers = FakeServer("A", log=log), FakeServer("B", gap=1.0, log=log)
    run = bench(*servers)
    await run.run()
    assert isinstance(run.watcher, Log)
    assert run.watcher.lines == [
        "warm-up 1 user A",
        "warm-up 1 user B",
        *("1 user A 0", "1 user B 0", "1 user A 1", "1 user B 1"),
        "warm-up 2 users A",
        "warm-up 2 users B",
        *("2 users A 0", "2 users B 0", "2 users A 1", "2 users B 1"),
    ]
    assert "".join(log) == "AB" + "AABB" * 2 + "AB" + "AAAABBBB" * 2
    assert run.stopped is None
    texts = [sorted(text for _, _, text in server.asked) for server in servers]
    assert texts[0] == texts[1]
    asked = [text for text in texts[0] if texts[0].count(text) == 1]
    assert len(asked) == len(texts[0]) - 2  # the warm-up alone is said again


async def test_two_doors_of_one_server_are_not_asked_the_same(autojump_clock: MockClock) -> None:
    servers = FakeServer("A"), FakeServer("B")
    await bench(*servers, same_words=False).run()
    first, second = ({text for _, _, text in server.asked} for server in servers)
    assert len(first & second) == 1  # the warm-up


async def test_the_document_has_every_figure_and_no_key(autojump_clock: MockClock) -> None:
    run = bench(FakeServer("A"), FakeServer("B", gap=1.0))
    await run.run()
    found = document(run, TARGETS, "2026-01-01T00:00:00+00:00")
    assert [level.level for level in found.levels] == ["1 user", "2 users"]
    level = found.levels[1]
    assert {name: len(server.rounds) for name, server in level.servers.items()} == {"A": 2, "B": 2}
    assert level.servers["A"].overall.requests == 8
    assert level.servers["A"].overall.tokens_per_second == pytest.approx(4.0)
    assert level.ratios["tokens_per_second"].rounds == pytest.approx([2.0, 2.0])
    assert level.ratios["first_token_p50"].median == pytest.approx(0.5)
    assert found.settings["conversations"] == 2
    assert found.settings["rounds"] == 2
    assert "secret" not in repr(found)


async def test_the_report_shows_levels_ratios_and_errors(autojump_clock: MockClock) -> None:
    busy = RequestFailed("try\x1b[2J later", code="server_busy", lost=False)
    run = bench(FakeServer("A"), FakeServer("B", gap=1.0, tokens=8, failures=[None, busy]))
    await run.run()
    text = report(document(run, TARGETS, ""))
    assert "A: http://one.example, ws\nB: https://two.example, sse, model m\n" in text
    row = next(line for line in text.splitlines() if line.startswith("2 users"))
    assert row.split()[2:7] == ["A", "8", "32", "4.0", "2.0"]
    assert "2.00 (2.00 to 2.00)" in text
    assert "1 user, B: failed requests: server_busy 1 (the latest: try" in text
    assert "\x1b" not in text
    assert "the answers differ in size, 4.0 and 8.0 tokens" in text


async def test_a_report_of_turns_has_their_first_tokens(autojump_clock: MockClock) -> None:
    plan = Plan(LEVELS, Workload(turns=2), Limits(conversations=1))
    run = Bench(plan, [FakeServer("A")], Log())
    await run.run()
    text = report(document(run, TARGETS[:1], ""))
    assert "turn 1  turn 2" in text
    assert "A by B" not in text


async def test_a_server_that_is_not_there_ends_the_run_with_its_reason(
    autojump_clock: MockClock,
) -> None:
    run = bench(FakeServer("A"), FakeServer("B", absent=True))
    await run.run()
    assert run.stopped == "server B: no server B"
    assert run.results == []
    run = bench(FakeServer("A", absent=True))
    await run.run()
    assert run.stopped == "no server A"


async def test_the_time_limit_leaves_what_was_measured(autojump_clock: MockClock) -> None:
    run = bench(FakeServer("A"), FakeServer("B"), time_limit=4 + 4 + 4 + 1.0)
    await run.run()
    assert run.stopped == "the time limit of 13 s was reached"
    assert not run.interrupted
    level = document(run, TARGETS, "").levels[0]
    assert level.servers["A"].rounds[0].complete
    assert [figures.complete for figures in level.servers["B"].rounds] == [True]
    assert not level.servers["A"].rounds[1].complete
    assert "tokens_per_second" in level.ratios
    assert len(level.ratios["tokens_per_second"].rounds) == 1
    assert "1 user, A: cut short" in report(document(run, TARGETS, ""))


async def test_a_round_cut_short_makes_no_ratio(autojump_clock: MockClock) -> None:
    run = bench(FakeServer("A"), FakeServer("B"), time_limit=4 + 4 + 3.0)
    await run.run()
    level = document(run, TARGETS, "").levels[0]
    assert [figures.requests for figures in level.servers["B"].rounds] == [1]
    assert not level.servers["B"].overall.complete
    assert level.ratios == {}


async def test_ctrl_c_ends_the_run_in_good_order(autojump_clock: MockClock) -> None:
    server = FakeServer("A")
    run = bench(server)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run.run)
        await trio.sleep(5.0)  # the warm-up takes 2, a round 4
        signal.raise_signal(signal.SIGINT)
    assert run.interrupted
    assert run.stopped == "interrupted"
    assert len(run.results[0].tallies["A"][0].requests) == 1
    assert server.open == 0


async def test_the_engine_alone_does_each_round_of_the_first_server_again(
    autojump_clock: MockClock,
) -> None:
    raw = FakeRaw()
    run = bench(FakeServer("A"), FakeServer("B", tokens=8), raw=raw)
    await run.run()
    assert isinstance(run.watcher, Log)
    assert run.watcher.lines[2:8] == [
        *("1 user A 0", "1 user B 0", "1 user raw 0", "8 raw tokens"),
        *("1 user A 1", "1 user B 1"),
    ]
    job = Job(10, 0, 4)
    assert raw.orders == [
        *(Order(1, 0.0, [job]), Order(1, 0.0, [job] * 2), Order(1, 0.0, [job] * 2)),
        *(Order(1, 0.0, [job]), Order(2, 0.0, [job] * 4), Order(2, 0.0, [job] * 4)),
    ]
    ready = Ready("a-model", "int8", "cpu", 2)
    found = document(run, TARGETS, "", ready)
    level = found.levels[1]
    assert level.raw is not None
    assert (level.raw.requests, level.raw.output_tokens) == (8, 32)
    assert level.raw.tokens_per_second == pytest.approx(4.0)
    assert level.raw.served_by_raw is not None
    assert level.raw.served_by_raw.rounds == pytest.approx([1.0, 1.0])
    text = report(found)
    assert "raw: the engine alone, model a-model, int8 on cpu, 2 threads\n" in text
    assert "served/raw\n1 user   0.50 (0.50 to 0.50)\n2 users  1.00 (1.00 to 1.00)\n" in text


async def test_an_engine_alone_that_fails_ends_the_run_with_what_there_is(
    autojump_clock: MockClock,
) -> None:
    run = bench(FakeServer("A"), raw=FakeRaw(fails_after=2))
    await run.run()
    assert run.stopped == "the engine is full"
    level = document(run, TARGETS[:1], "").levels[0]
    assert [figures.complete for figures in level.servers["A"].rounds] == [True, True]
    assert level.raw is not None
    assert len(level.raw.rounds) == 1


async def test_where_nothing_was_answered_there_is_nothing_to_do_again(
    autojump_clock: MockClock,
) -> None:
    server = FakeServer("A")
    server.failures = [None, *(RequestFailed("no", code="no", lost=False) for _ in range(100))]
    raw = FakeRaw()
    plan = Plan(LEVELS[:1], Workload(), Limits(conversations=2), 2)
    run = Bench(plan, [server], Log(), raw)
    await run.run()
    assert not raw.orders
    found = document(run, TARGETS[:1], "")
    assert found.levels[0].raw is not None
    assert found.levels[0].raw.served_by_raw is None
    assert "served/raw\n1 user           -\n" in report(found)


async def test_short_answers_are_told(autojump_clock: MockClock) -> None:
    run = bench(FakeServer("A", tokens=63), FakeServer("B", tokens=64))
    await run.run()
    text = report(document(run, TARGETS, ""))
    assert "1 user, A: 4 of 4 answers ended before 64 tokens; the mean is 63.0" in text
    assert "1 user, B:" not in text
