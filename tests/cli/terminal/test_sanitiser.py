from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4trio.cli.terminal.sanitiser import Sanitiser

HOSTILE = st.lists(
    st.one_of(
        st.sampled_from(
            ["\x1b", "\x1b[", "\x1b]0;", "\x9b", "\x90", "\x07", "\x1b\\", "31m", "\r", "\x00"]
        ),
        st.characters(codec=None),
        st.text(max_size=8),
    ),
    max_size=30,
)


@pytest.mark.parametrize(
    ("hostile", "harmless"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;new title\x07after", "after"),
        ("\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPq#0;2;0\x1b\\sixel", "sixel"),
        ("\x9b2Jgone", "gone"),
        ("\x1bcreset", "reset"),
        ("\x1b(0lines", "lines"),
        ("bell\x07, back\x08, erase\x7f", "bell, back, erase"),
        ("over\rwritten\r\n", "overwritten\n"),
        ("a\x1b\x1b[1mb", "ab"),
        ("admin\u202enimda", "adminnimda"),
        ("half \ud83d of an emoji", "half \ufffd of an emoji"),
        ("a\x1b[12\nb", "a\nb"),
        ("a\x1b]never ended\nb", "a\nb"),
        ("tab\tand\nnewline, émoji 👩‍👩‍👧 日本", "tab\tand\nnewline, émoji 👩‍👩‍👧 日本"),
    ],
)
def test_only_what_shows_passes(hostile: str, harmless: str) -> None:
    assert Sanitiser().feed(hostile) == harmless
    in_pieces = Sanitiser()
    assert "".join(in_pieces.feed(char) for char in hostile) == harmless


def test_a_sequence_that_never_ends_swallows_a_bounded_part_of_the_answer() -> None:
    answer = "word " * 1000
    for start in ("\x1b]", "\x1b[", "\x90", "\x1b[" + ";" * 10_000):
        shown = Sanitiser().feed(start + answer)
        assert len(shown) > len(answer) - 300


@given(HOSTILE)
def test_nothing_that_moves_a_terminal_gets_through_however_it_is_cut(pieces: list[str]) -> None:
    sanitiser = Sanitiser()
    shown = "".join(sanitiser.feed(piece) for piece in pieces)
    controls = [char for char in shown if unicodedata.category(char) in ("Cc", "Cs")]
    assert set(controls) <= {"\n", "\t"}
    assert shown == Sanitiser().feed("".join(pieces))


@given(st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs"])))
def test_plain_text_is_left_alone(text: str) -> None:
    assert Sanitiser().feed(text) == text
