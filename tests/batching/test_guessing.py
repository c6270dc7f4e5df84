"""How many guesses are asked for, by what became of the last ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hypothesis import given
from hypothesis import strategies as st

from ds4trio.batching.guessing import LONGEST_REST, MOST_GUESSES, Guessing


def rows(policy: Guessing, count: int, held: Callable[[int], int]) -> Iterator[int]:
    """Run rows that find all the guesses that are asked for: how many were."""
    for _ in range(count):
        draft = policy.draft
        policy.learn(draft, held(draft))
        yield draft


def test_guesses_that_hold_bring_more_of_them_soon() -> None:
    asked = list(rows(Guessing(), 12, lambda draft: draft))
    assert asked[0] == 1
    assert asked == sorted(asked)
    assert asked[5:] == [MOST_GUESSES] * 7


def test_guesses_that_fail_become_rare() -> None:
    policy = Guessing()
    assert sum(rows(policy, 100, lambda draft: 0)) <= 10
    later = list(rows(policy, 10 * LONGEST_REST, lambda draft: 0))
    assert 8 <= sum(later) <= 11  # it still tries
    assert max(later) == 1


def test_it_comes_back_when_guesses_begin_to_hold() -> None:
    policy = Guessing()
    list(rows(policy, 1000, lambda draft: 0))
    asked = list(rows(policy, LONGEST_REST + 20, lambda draft: draft))
    assert asked[-1] == MOST_GUESSES


def test_a_long_copy_that_ends_is_noticed_within_a_few_rows() -> None:
    policy = Guessing()
    list(rows(policy, 200, lambda draft: draft))
    assert sum(rows(policy, 100, lambda draft: 0)) < 45


def test_where_nothing_is_found_nothing_changes() -> None:
    policy = Guessing()
    list(rows(policy, 5, lambda draft: draft))
    draft = policy.draft
    for _ in range(500):
        policy.learn(0, 0)
    assert policy.draft == draft


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7))))
def test_what_it_asks_for_stays_in_bounds(outcomes: list[tuple[int, int]]) -> None:
    policy = Guessing()
    for found, held in outcomes:
        guessed = min(found, policy.draft)
        policy.learn(guessed, min(held, guessed))
        assert 0 <= policy.draft <= MOST_GUESSES
