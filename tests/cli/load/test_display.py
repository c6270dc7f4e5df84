"""The bar and the lines, on a terminal and elsewhere."""

from __future__ import annotations

import io
import threading

import trio
from rich.console import Console
from trio.testing import MockClock

from ds4trio.cli.load.bench import Bench, Plan
from ds4trio.cli.load.display import Display
from ds4trio.cli.load.runner import Level, Limits
from ds4trio.cli.load.workload import Workload
from tests.cli.load.fake_client import FakeServer


async def shown(server: FakeServer, *, terminal: bool) -> str:
    page = io.StringIO()
    plan = Plan([Level(users=2)], Workload(), Limits(conversations=3), rounds=2)
    console = Console(file=page, force_terminal=terminal, width=120)
    display = Display(plan, several=False, console=console)
    threads = threading.active_count()
    with display:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(display.keep_drawn)
            await Bench(plan, [server], display).run()
            assert threading.active_count() == threads
            nursery.cancel_scope.cancel()
    return page.getvalue()


async def test_elsewhere_there_is_a_line_for_each_measurement(autojump_clock: MockClock) -> None:
    assert await shown(FakeServer(), terminal=False) == (
        "2 users, round 1 of 2: 6 requests, 4.0 tokens/s\n"
        "2 users, round 2 of 2: 6 requests, 4.0 tokens/s\n"
    )


async def test_on_a_terminal_a_bar_moves_meanwhile(autojump_clock: MockClock) -> None:
    text = await shown(FakeServer(), terminal=True)
    assert "2 users, warm-up" in text
    assert "2 users, round 2 of 2" in text
    assert "4/6" in text
    assert "2 users, round 1 of 2: 6 requests, 4.0 tokens/s" in text


def test_news_is_told_once_and_on_one_line() -> None:
    page = io.StringIO()
    plan = Plan([Level(users=1)], Workload(), Limits())
    display = Display(plan, several=True, console=Console(file=page, width=40))
    for _ in range(3):
        display.waiting("the model is [bold]still\x1b[2J\n being loaded, and this line is long")
    assert page.getvalue() == "the model is [bold]still being loaded, and this line is long\n"
