from __future__ import annotations

from typing import Any

import pytest
import regex  # type: ignore[import-untyped]
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Native

from ds4trio.chat.tokenizer import BYTE_OF, Tokenizer
from ds4trio.errors import ModelUnavailable
from ds4trio.models.gguf.header import read_header
from ds4trio.models.resolve import resolve
from ds4trio.models.vocabularies.gguf import adds_bos, build_tokenizer
from tests.tiny import CONTROL_TOKENS, MERGES

BYTES = sorted(BYTE_OF, key=BYTE_OF.__getitem__)
CONTRACTION = "'s|'t|'re|'ve|'m|'ll|'d"
GPT2 = regex.compile(rf"{CONTRACTION}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+")
LLAMA3 = regex.compile(
    rf"(?i:{CONTRACTION})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = regex.compile(
    rf"(?i:{CONTRACTION})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WHOLE = (*CONTROL_TOKENS, "<tool>")
TEXTS = [
    "",
    " ",
    "The user's 12345 and\n\n 6  the SYSTEM'LL 3.14",
    "日本語 \u0301é 🎉",
    "\r\n\t x ",
]


def metadata(**changes: Any) -> dict[str, Any]:
    tokens = [*CONTROL_TOKENS, *BYTES, *(merge.replace(" ", "") for merge in MERGES), "<tool>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(tokens) - 4) + [4],
        "tokenizer.ggml.merges": list(MERGES),
    } | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}


def pieces(pre: str, text: str) -> list[str]:
    """The splitting that each name stands for, written with the regex module."""
    if pre == "smollm":
        parts = [part for part in regex.split(r"(\p{N})", text) if part]
        return [piece for part in parts for piece in GPT2.findall(part)]
    pattern = {"gpt-2": GPT2, "default": GPT2, "llama-bpe": LLAMA3, "qwen2": QWEN2}[pre]
    return [match.group() for match in pattern.finditer(text)]


def merge_piece(piece: str, ranks: dict[tuple[str, str], int]) -> list[str]:
    """Byte pair encoding by its definition: the best-ranked pair first, the leftmost of them."""
    symbols = [BYTES[byte] for byte in piece.encode()]
    while True:
        pairs = [(ranks.get(pair), i) for i, pair in enumerate(zip(symbols, symbols[1:]))]  # noqa: B905, RUF007
        known = [(rank, i) for rank, i in pairs if rank is not None]
        if not known:
            return symbols
        _, i = min(known)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]


RANKS = {tuple(merge.split(" ")): rank for rank, merge in enumerate(MERGES)}


@pytest.mark.parametrize("pre", ["gpt-2", "default", "smollm", "llama-bpe", "qwen2"])
def test_ids_follow_the_definition_of_byte_pair_encoding(pre: str) -> None:
    native = build_tokenizer(metadata(pre=pre))
    vocabulary = native.get_vocab()

    @settings(max_examples=60, deadline=None)
    @given(
        st.one_of(st.text(max_size=40), st.text("the user's 12\n", max_size=40)).filter(
            lambda text: not any(token in text for token in WHOLE)
        )
    )
    @example("\n".join(TEXTS))
    def check(text: str) -> None:
        if pre == "qwen2":
            text = native.normalizer.normalize_str(text)
        expected = [token for piece in pieces(pre, text) for token in merge_piece(piece, RANKS)]  # type: ignore[arg-type]
        ids = native.encode(text, add_special_tokens=False).ids
        assert ids == [vocabulary[token] for token in expected]

    check()


def test_control_and_user_tokens() -> None:
    tokenizer = Tokenizer(build_tokenizer(metadata()).to_str())
    tool = tokenizer.token_id("<tool>")
    assert tokenizer.control_tokens == CONTROL_TOKENS
    assert tokenizer.encode("<|im_end|><tool>", special=True) == [2, tool]
    assert tool is not None
    assert not tokenizer.is_control(tool)
    assert tokenizer.token_bytes(tool) == b"<tool>"


def test_a_whole_word_is_taken_where_the_name_says_so() -> None:
    words = {"tokens": [*metadata()["tokenizer.ggml.tokens"], "zebra"], "token_type": None}

    def encode(pre: str) -> list[str]:
        return build_tokenizer(metadata(pre=pre, **words)).encode("zebra").tokens

    assert encode("llama-bpe") == ["zebra"]
    assert encode("gpt-2") == ["z", "e", "b", "r", "a"]


def test_bos_is_what_the_file_says_or_its_family_means() -> None:
    assert not adds_bos(metadata())
    assert adds_bos(metadata(pre="llama-bpe"))
    assert not adds_bos(metadata(pre="llama-bpe", add_bos_token=False))
    assert adds_bos(metadata(add_bos_token=True))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": "t5"}, "unknown tokenizer 't5'; known: gpt2 .*, llama .SentencePiece"),
        (
            {"pre": "bloom"},
            "unknown pre-tokenizer 'bloom'; known: default, gpt-2, .*tekken",
        ),
        ({"pre": ["gpt-2"]}, "unknown pre-tokenizer"),
        ({"tokens": "abc"}, "tokens are of the wrong type"),
        ({"tokens": [1, 2]}, "tokens are of the wrong type"),
        ({"token_type": ["x"]}, "token types are of the wrong type"),
        ({"merges": [7]}, "merges are of the wrong type"),
        ({"tokens": []}, "vocabulary is empty"),
        ({"tokens": ["a", "a"]}, "a token twice"),
        ({"merges": ["x yz"]}, "merges do not fit"),
        ({"merges": ["nospace"]}, "merges do not fit"),
        ({"merges": ["q q"]}, "merges do not fit"),
    ],
)
def test_what_is_not_known_is_refused_by_name(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelUnavailable, match=says) as caught:
        build_tokenizer(metadata(**changes))
    assert "\n" not in str(caught.value)


def test_padding_of_a_vocabulary_is_no_token_that_text_can_have() -> None:
    tokens = [*metadata()["tokenizer.ggml.tokens"], "[PAD290]"]
    padded = metadata(tokens=tokens, token_type=[4] * len(tokens))
    index = len(tokens) - 1
    assert tokens.index("[PAD290]") == index == 290
    tokenizer = build_tokenizer(padded)
    assert index not in tokenizer.encode("[PAD290]").ids
    assert tokenizer.token_to_id("[PAD290]") == index


@pytest.mark.model
def test_the_default_model_splits_digits_and_merges_by_the_file() -> None:
    found = read_header(resolve().path).metadata
    native: Native = build_tokenizer(found)
    tokens = found["tokenizer.ggml.tokens"]
    ranks = {tuple(m.split(" ")): i for i, m in enumerate(found["tokenizer.ggml.merges"])}
    text = "What is 12345 + 6.78?\n\nDon't   say: 日本語 é 🎉, naïve\tcode() { return x_1; }"
    expected = [token for piece in pieces("smollm", text) for token in merge_piece(piece, ranks)]
    assert [tokens[i] for i in native.encode(text).ids] == expected
    assert native.encode("2024").tokens == ["2", "0", "2", "4"]
