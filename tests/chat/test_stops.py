from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ds4trio.chat.stops import StopMatcher
from ds4trio.errors import InvalidRequest

TEXT = st.text("ab", max_size=30)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


def run(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    """All that was sent, and the stop."""
    matcher = StopMatcher(stops)
    sent = ""
    for piece in pieces:
        text, stop = matcher.push(piece)
        sent += text
        if stop is not None:
            return sent, stop
    return sent + matcher.finish(), None


def cut(stops: list[str], text: str) -> tuple[str, str | None]:
    """The definition: the stop complete first, the longest of those complete there."""
    found = [(text.find(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    begin, stop = min(found, key=lambda each: (each[0] + len(each[1]), each[0]))
    return text[:begin], stop


@given(STOPS, TEXT, st.lists(st.integers(0, 30)))
@example(["abb", "b"], "aabb", [2])
def test_any_split_is_cut_like_the_whole_text(
    stops: list[str], text: str, borders: list[int]
) -> None:
    edges = [0, *sorted(min(border, len(text)) for border in borders), len(text)]
    pieces = [text[a:b] for a, b in pairwise(edges)]
    assert run(stops, pieces) == cut(stops, text)


@given(st.text("ab", min_size=1, max_size=4), TEXT)
def test_one_stop_is_cut_at_its_earliest_place(stop: str, text: str) -> None:
    assert run([stop], list(text))[0] == text.split(stop)[0]


def test_a_stop_over_several_tokens_does_not_leak() -> None:
    matcher = StopMatcher(["own fox"])
    sent = [matcher.push(piece) for piece in ("The quick", " br", "ow", "n f", "ox jumps")]
    assert sent == [("The quick", None), (" br", None), ("", None), ("", None), ("", "own fox")]
    assert matcher.push("more") == ("", None)
    assert matcher.finish() == ""


def test_only_what_may_still_be_a_stop_is_held_back() -> None:
    matcher = StopMatcher(["\nUser:", "END"])
    assert matcher.push("one\nUs") == ("one", None)
    assert matcher.push("ed E") == ("\nUsed ", None)
    assert matcher.finish() == "E"


def test_the_longer_of_two_complete_at_once_wins() -> None:
    assert run(["b", "ab"], ["aab"]) == ("a", "ab")


def test_without_stops_text_passes() -> None:
    assert run([], ["a", "", "b"]) == ("ab", None)


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="must not be empty") as caught:
        StopMatcher(["x", ""])
    assert caught.value.param == "stop"


def test_long_repetitive_stops_take_linear_time() -> None:
    size = 100_000
    matcher = StopMatcher(["a" * size + "b"])
    pieces = ["a" * (size // 100)] * 300
    assert all(matcher.push(piece)[1] is None for piece in pieces)
    assert matcher.finish() == "a" * size
