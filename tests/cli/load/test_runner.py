"""Closed and open loops, in virtual time."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from ds4trio.cli.load import runner
from ds4trio.cli.load.client import RequestFailed
from ds4trio.cli.load.figures import figures
from ds4trio.cli.load.runner import PAUSE, Level, Limits, measure, warm_up
from ds4trio.cli.load.tally import Tally
from ds4trio.cli.load.workload import Workload, poisson_arrivals
from tests.cli.load.fake_client import FakeServer


async def measured(
    server: FakeServer,
    level: Level,
    limits: Limits,
    workload: Workload | None = None,
    stream: object = 0,
) -> Tally:
    tally = Tally()
    await measure(server.connection, level, workload or Workload(), limits, tally, stream)
    return tally


def failure(code: str, *, lost: bool = False) -> RequestFailed:
    return RequestFailed(f"because of {code}", code=code, lost=lost)


async def test_users_ask_one_after_the_other_on_a_connection_each(
    autojump_clock: MockClock,
) -> None:
    server = FakeServer(connecting=3.0)
    tally = await measured(server, Level(users=3), Limits(conversations=2))
    found = figures(tally)
    assert server.connections == 3
    assert len(server.asked) == found.requests == 6
    assert found.seconds == pytest.approx(4.0)  # without the time it took to connect
    assert found.tokens_per_second == pytest.approx(6.0)
    assert found.user_tokens_per_second == pytest.approx(2.0)
    assert found.first_token_seconds is not None
    assert found.first_token_seconds.max == pytest.approx(0.5)
    assert found.gap_seconds is not None
    assert found.gap_seconds.p50 == pytest.approx(0.5)
    assert tally.complete
    assert len({text for _, _, text in server.asked}) == 6
    assert server.open == 0


async def test_the_same_stream_asks_the_same(autojump_clock: MockClock) -> None:
    servers = [FakeServer(), FakeServer(), FakeServer()]
    for server, stream in zip(servers, ("one", "one", "other"), strict=True):
        await measured(server, Level(users=2), Limits(conversations=2), stream=stream)
    first, second, third = ({text for _, _, text in server.asked} for server in servers)
    assert first == second
    assert not first & third


async def test_turns_belong_to_a_conversation(autojump_clock: MockClock) -> None:
    server = FakeServer()
    tally = await measured(
        server, Level(users=1), Limits(conversations=2), Workload(turns=3, prompt_tokens=90)
    )
    assert server.conversations == 2
    assert [request.turn for request in tally.requests] == [0, 1, 2, 0, 1, 2]
    assert [request.due - tally.requests[0].due for request in tally.requests] == pytest.approx(
        [0, 2, 4, 6, 8, 10]
    )
    assert [len(text.split()) > 50 for _, _, text in server.asked] == [True, False, False] * 2


async def test_when_time_is_over_no_more_is_begun(autojump_clock: MockClock) -> None:
    server = FakeServer(gap=0.5)  # two seconds a request
    tally = await measured(server, Level(users=2), Limits(conversations=None, seconds=5.0))
    assert len(tally.requests) == 6
    assert tally.seconds == pytest.approx(6.0)


async def test_failures_are_counted_and_not_timed(autojump_clock: MockClock) -> None:
    server = FakeServer(failures=[failure("server_busy"), None, failure("server_busy")])
    tally = await measured(server, Level(users=1), Limits(conversations=4))
    assert tally.errors == {"server_busy": 2}
    assert tally.message == "because of server_busy"
    assert len(tally.requests) == 2
    assert server.connections == 1
    assert tally.seconds == pytest.approx(2 * (0.5 + PAUSE) + 2 * 2.0)


async def test_a_failed_turn_ends_its_conversation(autojump_clock: MockClock) -> None:
    server = FakeServer(failures=[None, failure("x")])
    tally = await measured(server, Level(users=1), Limits(conversations=1), Workload(turns=3))
    assert len(server.asked) == 2
    assert tally.errors == {"x": 1}


async def test_who_lost_the_connection_opens_another(autojump_clock: MockClock) -> None:
    server = FakeServer(failures=[failure("connection_closed", lost=True)])
    tally = await measured(server, Level(users=1), Limits(conversations=2))
    assert [number for _, number, _ in server.asked] == [1, 2]
    assert tally.errors == {"connection_closed": 1}
    assert len(tally.requests) == 1


async def test_a_server_that_is_gone_fails_every_conversation_in_time(
    autojump_clock: MockClock,
) -> None:
    server = FakeServer(absent=True)
    tally = await measured(server, Level(users=2), Limits(conversations=3))
    assert tally.errors == {"unreachable": 6}
    assert figures(tally).tokens_per_second == 0


async def test_one_user_without_a_connection_does_not_hold_the_others(
    autojump_clock: MockClock,
) -> None:
    server = FakeServer()
    attempts = 0

    def connection_of_all_but_the_first() -> object:
        nonlocal attempts
        attempts += 1
        return (FakeServer(absent=True) if attempts == 1 else server).connection()

    tally = Tally()
    await measure(
        connection_of_all_but_the_first,  # type: ignore[arg-type]
        Level(users=3),
        Workload(),
        Limits(conversations=2),
        tally,
        0,
    )
    assert tally.errors == {"unreachable": 1}
    assert len(tally.requests) == 5


async def test_a_request_without_end_times_out(autojump_clock: MockClock) -> None:
    server = FakeServer(hangs=True)
    tally = await measured(server, Level(users=1), Limits(2, request_seconds=7.0))
    assert tally.errors == {"timeout": 2}
    assert server.connections == 2
    assert tally.seconds == pytest.approx(14.0 + PAUSE)


async def test_arrivals_come_when_they_come(autojump_clock: MockClock) -> None:
    server = FakeServer(gap=10.0, connecting=1.0)
    workload = Workload(seed=3)
    start = trio.current_time()
    tally = await measured(server, Level(rate=2.0), Limits(conversations=8), workload)
    arrivals = poisson_arrivals(2.0, workload.source("arrivals", 0))
    expected = [next(arrivals) for _ in range(8)]
    assert [when - start - 1.0 for when, _, _ in server.asked] == pytest.approx(expected)
    assert sorted(request.due - start for request in tally.requests) == pytest.approx(expected)
    first = figures(tally).first_token_seconds
    assert first is not None
    assert first.p50 == pytest.approx(11.0)  # who arrives waits for the connection as well
    assert server.connections == server.most_open == 8


async def test_arrivals_end_with_the_time(autojump_clock: MockClock) -> None:
    server = FakeServer(gap=0.1)
    start = trio.current_time()
    tally = await measured(
        server, Level(rate=5.0), Limits(conversations=None, seconds=20.0), Workload(turns=2)
    )
    assert 60 < len(tally.requests) / 2 < 140
    assert max(request.due for request in tally.requests if not request.turn) < start + 20.0


async def test_no_more_arrive_than_can_be_open(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "MAX_OPEN", 4)
    server = FakeServer(gap=1e6)
    tally = await measured(server, Level(rate=100.0), Limits(conversations=10, request_seconds=1e7))
    assert tally.errors == {"not_started": 6}
    assert server.most_open == 4


@pytest.mark.parametrize("level", [Level(users=2), Level(rate=1.0)], ids=str)
async def test_what_was_counted_before_the_end_stays(
    autojump_clock: MockClock, level: Level
) -> None:
    server = FakeServer()
    tally = Tally()
    with trio.move_on_after(9.0):
        await measure(server.connection, level, Workload(), Limits(conversations=1000), tally, 0)
    assert tally.requests
    assert not tally.complete
    assert tally.seconds <= 9.0
    assert server.open == 0


async def test_the_warm_up_says_what_is_wrong(autojump_clock: MockClock) -> None:
    await warm_up(FakeServer().connection, Workload(), Limits())
    with pytest.raises(RequestFailed, match="because of x"):
        await warm_up(FakeServer(failures=[failure("x")]).connection, Workload(), Limits())
