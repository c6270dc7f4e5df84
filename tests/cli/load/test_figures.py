"""Figures from counts: known values, and what holds for all."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4trio.cli.load.client import Answer
from ds4trio.cli.load.figures import Figures, figures, ratios, spread
from ds4trio.cli.load.tally import Request, Tally

TIMES = st.floats(0, 1e6, allow_nan=False)


def test_percentiles_of_known_values() -> None:
    found = spread([float(value) for value in range(100, -1, -1)])  # 0 to 100
    assert found is not None
    assert (found.p50, found.p95, found.p99, found.max) == pytest.approx((50, 95, 99, 100))
    found = spread([1.0, 3.0])
    assert found is not None
    assert (found.p50, found.max) == pytest.approx((2, 3))
    assert spread([]) is None


@given(st.lists(TIMES, min_size=1, max_size=50))
def test_percentiles_are_in_order_and_among_the_values(times: list[float]) -> None:
    found = spread(times)
    assert found is not None
    edge = 1e-9 * max(times)
    assert min(times) - edge <= found.p50 <= found.p95 + edge
    assert found.p95 <= found.p99 + edge
    assert found.p99 <= found.max + edge
    assert found.max == max(times)


def request(
    due: float, *pieces: float, ended: float, turn: int = 0, tokens: int | None = None
) -> Request:
    return Request(turn, due, ended, Answer(pieces, 10, 4, tokens))


def test_figures_of_a_known_measurement() -> None:
    tally = Tally(
        [
            request(0.0, 0.5, 0.6, 0.8, ended=1.0, tokens=10),
            request(1.0, 1.25, 1.5, ended=3.0, tokens=10, turn=1),
        ],
        Counter(timeout=2),
        "too late",
        seconds=4.0,
        complete=True,
    )
    found = figures(tally)
    assert found.requests == 2
    assert found.errors == {"timeout": 2}
    assert (found.input_tokens, found.cached_tokens, found.output_tokens) == (20, 8, 20)
    assert found.tokens_per_second == 5.0
    assert found.user_tokens_per_second == 7.5  # of 10 and 5
    assert found.slowest_user_tokens_per_second == 5.0
    assert found.first_token_seconds is not None
    assert found.first_token_seconds.max == 0.5
    assert [times and times.p50 for times in found.first_token_by_turn] == [0.5, 0.25]
    assert found.gap_seconds is not None
    assert found.gap_seconds.p50 == pytest.approx(0.2)  # of 0.1, 0.2 and 0.25
    assert found.request_seconds is not None
    assert found.request_seconds.max == 2.0
    assert found.estimated == 0


def test_events_are_counted_where_the_server_does_not_count() -> None:
    tally = Tally([request(0.0, 0.1, 0.2, 0.3, ended=1.0)], seconds=1.0)
    found = figures(tally)
    assert (found.output_tokens, found.estimated) == (3, 1)


def test_nothing_measured_has_figures_too() -> None:
    found = figures(Tally(errors=Counter(unreachable=3)))
    assert found.tokens_per_second == 0
    assert found.first_token_seconds is None
    assert found.user_tokens_per_second is None


def test_rounds_together_are_one_after_the_other() -> None:
    one = Tally([request(0, 1.0, ended=2.0, tokens=30)], Counter(a=1), seconds=2.0, complete=True)
    other = Tally([request(0, 1.0, ended=4.0, tokens=30)], Counter(a=2), seconds=4.0, complete=True)
    found = figures(Tally.merged([one, other]))
    assert found.tokens_per_second == 10.0
    assert found.errors == {"a": 3}
    assert found.complete
    other.complete = False
    assert not figures(Tally.merged([one, other])).complete
    assert not figures(Tally.merged([])).complete


def round_of(speed: float, first: float, gap: float | None) -> Figures:
    pieces = (first,) if gap is None else (first, first + gap)
    answer = Answer(pieces, output_tokens=int(100 * speed))
    return figures(Tally([Request(0, 0.0, 100.0, answer)], seconds=100.0, complete=True))


def test_ratios_are_taken_round_by_round() -> None:
    pairs = [
        (round_of(30, 1.0, 0.1), round_of(10, 2.0, 0.1)),
        (round_of(20, 1.0, 0.2), round_of(20, 4.0, 0.1)),
        (round_of(80, 3.0, 0.3), round_of(40, 3.0, None)),
    ]
    found = ratios(pairs)
    speed = found["tokens_per_second"]
    assert speed.rounds == [3.0, 1.0, 2.0]
    assert (speed.median, speed.min, speed.max) == (2.0, 1.0, 3.0)
    assert found["first_token_p50"].rounds == [0.5, 0.25, 1.0]
    assert found["gap_p50"].rounds == pytest.approx([1.0, 2.0])  # the third round has no gaps
    assert ratios([(round_of(30, 1.0, None), figures(Tally()))]) == {}
