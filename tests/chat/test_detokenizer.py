from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from ds4trio.chat.detokenizer import Detokenizer
from ds4trio.chat.tokenizer import Tokenizer
from tests.tiny import make_tiny_tokenizer

TOKENIZER = Tokenizer(make_tiny_tokenizer().to_str())
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
IDS = st.lists(st.integers(0, 330), max_size=60)


def pieces(calls: list[list[int]]) -> list[str]:
    detokenizer = Detokenizer(TOKENIZER)
    return [*(detokenizer.push(tokens) for tokens in calls), detokenizer.finish()]


def split(ids: list[int], borders: list[int]) -> list[list[int]]:
    edges = [0, *sorted(min(border, len(ids)) for border in borders), len(ids)]
    return [ids[a:b] for a, b in pairwise(edges)]


@given(TEXT, st.lists(st.integers(0, 80)))
@example("🎉é日本語", [1, 2, 3, 4, 5, 6, 7, 8, 9])
def test_text_comes_back_whole_for_any_split(text: str, borders: list[int]) -> None:
    ids = TOKENIZER.encode(text, special=False)
    parts = pieces(split(ids, borders))
    assert "".join(parts) == text
    assert not any("\ufffd" in part for part in parts) or "\ufffd" in text


@given(IDS, st.lists(st.integers(0, 60)))
def test_any_ids_give_the_same_text_for_any_split(ids: list[int], borders: list[int]) -> None:
    whole = "".join(pieces([ids]))
    assert "".join(pieces(split(ids, borders))) == whole
    everything = b"".join(map(TOKENIZER.token_bytes, ids)).decode("utf-8", "replace")
    assert everything.removesuffix("\ufffd").startswith(whole.removesuffix("\ufffd"))
    assert whole in (everything, everything[:-1])


def test_a_character_cut_by_the_limit_is_dropped() -> None:
    ids = TOKENIZER.encode("ok 🎉", special=False)
    for length in range(1, len(ids)):
        assert "".join(pieces([[index] for index in ids[:length]])) == "ok "[:length]


def test_control_tokens_are_no_text() -> None:
    assert "".join(pieces([[1], TOKENIZER.encode("a", special=False), [2, 0]])) == "a"
