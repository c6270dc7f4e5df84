"""Conversations and arrivals: seeded, of the size asked for."""

from __future__ import annotations

from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4trio.cli.load.workload import Workload, poisson_arrivals


@given(seed=st.integers(), size=st.integers(1, 400), turns=st.integers(1, 4))
def test_a_stream_says_the_same_again_and_another_stream_does_not(
    seed: int, size: int, turns: int
) -> None:
    def said(*stream: object) -> list[tuple[str, ...]]:
        again = Workload(prompt_tokens=size, turns=turns, seed=seed)
        return list(islice(again.conversations(*stream), 40))

    assert said("level", 1) == said("level", 1)
    assert said("level", 1) != said("level", 2)
    assert {len(conversation) for conversation in said(1)} == {turns}


@given(size=st.integers(1, 2000), later=st.integers(1, 50))
def test_prompts_are_about_as_long_as_asked_for(size: int, later: int) -> None:
    workload = Workload(prompt_tokens=size, turns=2, turn_tokens=later)
    first, second = next(workload.conversations())
    assert abs(len(first.split()) - size) <= 2
    assert abs(len(second.split()) - later) <= 2


def test_conversations_share_the_prefix_and_no_more() -> None:
    workload = Workload(prompt_tokens=100, shared_prefix=40)
    one, other = (next(workload.conversations(user))[0].split() for user in (1, 2))
    assert one[:40] == other[:40]
    assert one[40:60] != other[40:60]
    assert abs(len(one) - 100) <= 2


def test_another_seed_shares_nothing() -> None:
    one, other = (Workload(prompt_tokens=100, shared_prefix=40, seed=seed) for seed in (1, 2))
    first, second = next(one.conversations())[0], next(other.conversations())[0]
    assert first.split()[:40] != second.split()[:40]


def test_arrivals_are_those_of_their_seed() -> None:
    workload = Workload(seed=5)
    again = [list(islice(poisson_arrivals(3.0, workload.source("arrivals")), 50)) for _ in range(2)]
    assert again[0] == again[1]


@pytest.mark.parametrize("rate", [0.2, 5.0, 400.0])
def test_arrivals_are_a_poisson_process(rate: float) -> None:
    times = list(islice(poisson_arrivals(rate, Workload().source()), 20_000))
    gaps = [later - earlier for earlier, later in pairwise([0.0, *times])]
    mean = sum(gaps) / len(gaps)
    assert min(gaps) >= 0
    assert mean * rate == pytest.approx(1, rel=0.05)
    # of an exponential distribution the deviation is the mean, and 1/e of all lie above it
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert deviation == pytest.approx(mean, rel=0.05)
    assert sum(gap > mean for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.02)
