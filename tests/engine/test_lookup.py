"""What followed when a sequence last said the same."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4trio.engine.lookup import Lookup

texts = st.lists(st.integers(0, 3), max_size=60) | st.lists(st.integers(0, 60), max_size=60)


def slowly(tokens: list[int], most: int) -> list[int]:
    """The same by looking at every earlier place, the latest first."""
    for length in (3, 2):
        for place in range(len(tokens) - 1, length - 1, -1):
            if len(tokens) >= length and tokens[place - length : place] == tokens[-length:]:
                longer = list(tokens)
                for _ in range(most):
                    longer.append(longer[len(longer) - (len(tokens) - place)])
                return longer[len(tokens) :]
    return []


@pytest.mark.parametrize(
    ("history", "guesses"),
    [
        ([], []),
        ([1], []),
        ([1, 2], []),
        ([1, 2, 3, 4], []),
        ([1, 2, 3, 9, 1, 2, 3], [9, 1, 2, 3]),
        ([1, 2, 3, 7, 1, 2, 3, 8, 1, 2, 3], [8, 1, 2, 3]),  # the latest
        ([1, 2, 3, 7, 5, 2, 3, 8, 1, 2, 3], [7, 5, 2, 3]),  # but rather the longer
        ([2, 3, 8, 6, 7, 2, 3], [8, 6, 7, 2]),
        ([5, 5, 5], [5, 5, 5, 5]),
        ([1, 2, 1, 2, 1], [2, 1, 2, 1]),  # a repetition goes on
    ],
)
def test_the_latest_place_with_the_same_last_tokens_goes_on(
    history: list[int], guesses: list[int]
) -> None:
    assert Lookup().propose(array("q", history[:-1]), (history or [1])[-1], 4) == guesses


@given(text=texts, asked=st.sets(st.integers(1, 60)), most=st.integers(1, 7))
def test_the_index_says_what_a_search_says_whenever_it_is_asked(
    text: list[int], asked: set[int], most: int
) -> None:
    lookup = Lookup()
    for length in sorted(at for at in asked if at <= len(text)):
        history = text[:length]
        assert lookup.propose(array("q", history[:-1]), history[-1], most) == slowly(history, most)


@given(text=texts, other=st.integers(0, 3), most=st.integers(1, 7))
def test_a_last_token_that_is_replaced_leaves_nothing_behind(
    text: list[int], other: int, most: int
) -> None:
    lookup = Lookup()
    lookup.propose(array("q", text), other, most)
    for length in range(len(text), len(text) + 3):
        history = [*text, 1, 2, 1, 2][: length + 1]
        assert lookup.propose(array("q", history[:-1]), history[-1], most) == slowly(history, most)


def test_what_is_long_ago_is_forgotten_and_what_is_recent_is_not() -> None:
    """However the history came in: at once, or bit by bit."""
    whole, growing = Lookup(most_entries=64), Lookup(most_entries=64)
    text = array("q", range(1000))
    for end in range(0, 1001, 10):
        growing.propose(text[:end], 5000, 1)
    for lookup in (whole, growing):
        text_and_key = text + array("q", [400])
        assert lookup.propose(text_and_key, 401, 2) == []
        text_and_key = text_and_key + array("q", [985])
        assert lookup.propose(text_and_key, 986, 2) == [987, 988]
        assert len(lookup._places) + len(lookup._older) <= 2 * 65
