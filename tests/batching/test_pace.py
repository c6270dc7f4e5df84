"""What a step may carry, from what steps have cost."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4trio.batching.pace import FLOOR, LIMIT, LOOK_AGAIN, Load, Pace, Waiting

ONE = Waiting(users=1, short_users=0, decoding_users=16)


def seconds(load: Load, *, speed: float = 1.0) -> float:
    """A model's costs: 20 ms a step, 2 ms a row, 1.5 ms a token, twice that at position 4000."""
    each = 0.0015 * (1 + load.position / 4000)
    return (0.020 + 0.002 * load.decoding + load.prompt_tokens * each) / speed


def taught(pace: Pace, *, speed: float = 1.0) -> Pace:
    for decoding in (0, 1, 4, 16, 16, 16, 32):
        for load in (Load(decoding), Load(decoding, 64, 100.0), Load(decoding, 64, 4000.0)):
            if load.decoding or load.prompt_tokens:
                pace.measured(load, seconds(load, speed=speed))
        pace.measured(Load(16), seconds(Load(16), speed=speed))
    return pace


def chunk(pace: Pace, position: int, *, most: int = 512, waiting: Waiting = ONE) -> int:
    return pace.allowance(16, waiting, most=most).fits(6000, position, short=False)


def test_before_anything_was_measured_one_step_is_looked_at_and_then_all_is_allowed() -> None:
    pace = Pace()
    assert chunk(pace, 0, most=128) == 0
    pace.measured(Load(16), 0.0)  # a clock that stands still says nothing
    assert chunk(pace, 0, most=128) == 128


@pytest.mark.parametrize("speed", [0.1, 1.0, 100.0])
@pytest.mark.parametrize("position", [0, 100, 2000, 4000])
def test_a_step_keeps_to_the_limit_and_is_not_far_below_it(speed: float, position: int) -> None:
    count = chunk(taught(Pace(), speed=speed), position)
    mixed = seconds(Load(16, count, position + count / 2), speed=speed)
    assert mixed <= 1.02 * LIMIT * seconds(Load(16), speed=speed) or count == FLOOR
    more = count + max(2, count // 10)
    mixed = seconds(Load(16, more, position + more / 2), speed=speed)
    assert mixed > 0.9 * LIMIT * seconds(Load(16), speed=speed)


def test_single_steps_that_take_ten_times_as_long_change_nothing() -> None:
    pace = taught(Pace())
    usual = chunk(pace, 100)
    for _ in range(3):
        pace.measured(Load(16), 10 * seconds(Load(16)))
        pace.measured(Load(16, 64, 100.0), 10 * seconds(Load(16, 64, 100.0)))
        assert abs(chunk(pace, 100) - usual) <= usual // 5


def test_it_adapts_when_prompt_tokens_become_dearer_or_cheaper() -> None:
    pace = taught(Pace())
    usual = chunk(pace, 100)
    for factor in (0.5, 4.0):
        for _ in range(10):
            load = Load(16, 64, 100.0)
            extra = (seconds(load) - seconds(Load(16))) * factor
            pace.measured(load, seconds(Load(16)) + extra)
            pace.measured(Load(16), seconds(Load(16)))
        assert (chunk(pace, 100) < usual) == (factor > 1)


def test_while_prompts_keep_coming_one_step_in_many_goes_without() -> None:
    pace = taught(Pace())
    carried = []
    for _ in range(5 * LOOK_AGAIN):
        count = chunk(pace, 100)
        carried.append(count)
        pace.measured(Load(16, count, 100.0), seconds(Load(16, count, 100.0)))
    assert 4 <= carried.count(0) <= 6


def test_each_step_may_carry_a_little_whatever_it_costs() -> None:
    pace = Pace()
    pace.measured(Load(1), 0.001)
    pace.measured(Load(1, 64, 0.0), 60.0)
    pace.measured(Load(1), 0.001)
    allowance = pace.allowance(1, ONE, most=128)
    assert allowance.fits(500, 0, short=False) == FLOOR
    allowance.spend(5, 0, short=False)
    assert allowance.fits(500, 0, short=False) == FLOOR - 5
    allowance.spend(FLOOR - 5, 0, short=False)
    assert allowance.fits(500, 0, short=False) == 0


def test_short_prompts_have_a_share_that_long_ones_cannot_take() -> None:
    pace = taught(Pace())
    allowance = pace.allowance(16, Waiting(2, 1, 16), most=512)
    long = allowance.fits(6000, 0, short=False)
    allowance.spend(long, 0, short=False)
    assert allowance.fits(6000, 0, short=False) < FLOOR
    assert allowance.fits(20, 0, short=True) == 20


def test_many_who_wait_stretch_the_limit_up_to_what_was_configured() -> None:
    pace = taught(Pace())
    few, many, all_of_them = (
        chunk(pace, 0, waiting=Waiting(users, 0, 16), most=300) for users in (2, 8, 1000)
    )
    assert few == chunk(pace, 0) < many < all_of_them == 300


steps = st.tuples(
    st.integers(0, 64),
    st.integers(0, 512),
    st.floats(0, 10_000),
    st.floats(allow_nan=True, allow_infinity=True) | st.floats(0, 1),
)


@given(st.lists(steps, max_size=60), st.integers(1, 64), st.integers(1, 512))
def test_whatever_was_measured_prompts_go_on(
    measured: list[tuple[int, int, float, float]], decoding: int, most: int
) -> None:
    pace = Pace()
    for rows, tokens, position, took in measured:
        pace.measured(Load(rows, tokens, position), took)
    count = pace.allowance(decoding, ONE, most=most).fits(6000, 0, short=False)
    if not count:  # the step that is looked at; never a second one
        pace.measured(Load(decoding), math.nan)
        count = pace.allowance(decoding, ONE, most=most).fits(6000, 0, short=False)
    assert min(most, FLOOR) <= count <= most


def test_noise_on_a_shared_machine_does_not_shake_it() -> None:
    chance = random.Random(3)
    pace = taught(Pace())
    usual = chunk(pace, 1000)
    for _ in range(300):
        count = chunk(pace, 1000)
        load = Load(16, count, 1000 + count / 2) if count else Load(16)
        slow = chance.uniform(2, 10) if chance.random() < 0.1 else 1.0
        pace.measured(load, seconds(load) * chance.uniform(0.95, 1.05) * slow)
        assert count == 0 or usual / 2 <= count <= usual * 2
