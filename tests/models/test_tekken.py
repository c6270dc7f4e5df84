from __future__ import annotations

import base64
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4trio.errors import ModelUnavailable
from ds4trio.models.vocabularies.tekken import build_tekken

PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDS = """th he the in er  th  the on hello he hel lo ell ll \u65e5 12 !! </ s>"""
TOKENS = list(
    dict.fromkeys([*(bytes([n]) for n in range(256)), *WORDS.encode().split(b" "), b" t", b" the"])
)
TOKENS = [token for token in TOKENS if token]
SPECIAL = 20


def file(**changes: Any) -> bytes:
    content: dict[str, Any] = {
        "config": {
            "pattern": PATTERN,
            "num_vocab_tokens": len(TOKENS) + 3,
            "default_vocab_size": len(TOKENS) + SPECIAL,
            "default_num_special_tokens": SPECIAL,
            "version": "v3",
        },
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
            for rank, token in enumerate([*TOKENS, b"beyond", b"the", b"size"])
        ],
    }
    content["config"] |= changes.pop("config", {})
    return json.dumps(content | changes).encode()


def by_rank(word: bytes) -> list[int]:
    """Byte pair encoding as tiktoken defines it: the union of the lowest rank first."""
    ranks = {token: rank for rank, token in enumerate(TOKENS)}
    if word in ranks:
        return [ranks[word] + SPECIAL]
    parts = [bytes([byte]) for byte in word]
    while True:
        unions = [ranks.get(a + b) for a, b in pairwise(parts)]
        known = [(rank, at) for at, rank in enumerate(unions) if rank is not None]
        if not known:
            return [ranks[part] + SPECIAL for part in parts]
        _, at = min(known)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


TOKENIZER = build_tekken(file(), "tekken.json")


@given(st.text("thelonir", min_size=1, max_size=30) | st.sampled_from(["日本", "!!!", " the"]))
def test_words_are_joined_by_rank(word: str) -> None:
    assert TOKENIZER.encode(word).ids == by_rank(word.encode())


@given(st.text(max_size=60))
def test_bytes_come_back(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids, skip_special_tokens=False) == text


def test_special_tokens_have_the_first_ids() -> None:
    assert TOKENIZER.encode("<s>[INST]the[/INST]</s>").tokens == [
        *("<s>", "[INST]", "the", "[/INST]", "</s>"),
    ]
    assert TOKENIZER.token_to_id("[INST]") == 3
    named = [{"rank": 2, "token_str": "[END]", "is_control": True}]
    named += [{"rank": 5, "token_str": "[THINK]", "is_control": False}]
    tokenizer = build_tekken(file(special_tokens=named), "tekken.json")
    assert tokenizer.encode("the[END][THINK]<SPECIAL_7>").ids == [by_rank(b"the")[0], 2, 5, 7]
    special = {t.content for t in tokenizer.get_added_tokens_decoder().values() if t.special}
    assert "[END]" in special
    assert "[THINK]" not in special


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"vocab": []}, "special tokens of all its tokens|smaller than it says"),
        ({"config": {"default_vocab_size": 10**7}}, "smaller than it says"),
        ({"config": {"default_num_special_tokens": -1}}, "-1 special tokens"),
        ({"config": {"default_num_special_tokens": 10**9}}, "special tokens"),
        ({"config": {"pattern": "("}}, "pattern is not valid"),
        ({"vocab": [{"rank": n, "token_bytes": "%"} for n in range(400)]}, "damaged"),
        ({"vocab": [{"rank": n, "token_bytes": "YQ=="} for n in range(400)]}, "a token twice"),
        ({"vocab": [{"rank": n * 2, "token_bytes": "YQ=="} for n in range(400)]}, "gaps"),
        ({"vocab": "x"}, "damaged"),
        ({"special_tokens": [{"rank": n, "token_str": "a"} for n in range(9)]}, "a token twice"),
    ],
)
def test_a_damaged_file_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelUnavailable, match=says):
        build_tekken(file(**changes), "tekken.json")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"config": {}}'])
def test_what_is_no_such_file_is_refused(data: bytes) -> None:
    with pytest.raises(ModelUnavailable, match=r"tekken\.json cannot be used: it is damaged"):
        build_tekken(data, "tekken.json")
