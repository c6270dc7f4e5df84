from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from ds4trio.chat.patterns import any_of

TEXTS = st.lists(st.text("ab<|.", max_size=5), max_size=8)


@given(TEXTS, st.text("ab<|.", max_size=20))
def test_the_longest_text_is_found_at_the_earliest_place(texts: list[str], text: str) -> None:
    pattern = any_of(texts)
    found = [
        (begin, -len(wanted))
        for begin in range(len(text))
        for wanted in texts
        if wanted and text.startswith(wanted, begin)
    ]
    if pattern is None:
        assert not any(texts)
        return
    match = pattern.search(text)
    assert (match is None) == (not found)
    if match is not None:
        assert (match.start(), -len(match.group())) == min(found)


def test_thousands_of_markers_are_tried_at_once() -> None:
    pattern = any_of(f"<unused{number}>" for number in range(6000))
    assert pattern is not None
    began = time.perf_counter()
    assert pattern.search("<unused" * 100_000) is None
    assert time.perf_counter() - began < 2  # tried one after the other: half a minute
    assert pattern.findall("<unused17><unused1><unused>") == ["<unused17>", "<unused1>"]
