from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Native

from ds4trio.chat.template import Segment, encode_prompt
from ds4trio.chat.tokenizer import Tokenizer
from ds4trio.errors import ModelUnavailable
from tests.tiny import CONTROL_TOKENS, make_tiny_tokenizer

TOKENIZER = Tokenizer(make_tiny_tokenizer().to_str())
MARKED = st.lists(st.one_of(st.text(max_size=8), st.sampled_from(CONTROL_TOKENS))).map("".join)


def joined(tokenizer: Tokenizer, ids: list[int]) -> bytes:
    return b"".join(map(tokenizer.token_bytes, ids))


@given(MARKED)
def test_plain_encoding_is_lossless_and_makes_no_control_token(text: str) -> None:
    ids = TOKENIZER.encode(text, special=False)
    assert not any(map(TOKENIZER.is_control, ids))
    assert joined(TOKENIZER, ids).decode() == text


@given(MARKED)
def test_special_encoding_takes_markers_as_control_tokens(text: str) -> None:
    ids = TOKENIZER.encode(text, special=True)
    plain = text
    for token in CONTROL_TOKENS:
        plain = plain.replace(token, "\0")
    assert sum(map(TOKENIZER.is_control, ids)) == plain.count("\0") - text.count("\0")


def test_a_marker_by_name_and_as_text() -> None:
    assert TOKENIZER.encode("<|im_end|>", special=True) == [2]
    assert 2 not in TOKENIZER.encode("<|im_end|>", special=False)
    assert TOKENIZER.token_id("<|im_end|>") == 2
    assert TOKENIZER.token_id("no such token") is None
    assert TOKENIZER.token_bytes(2) == b""
    assert TOKENIZER.token_text(2) == "<|im_end|>"


def test_ids_beyond_the_vocabulary_are_no_text() -> None:
    for index in (TOKENIZER.vocab_size, 10**9, -1):
        assert TOKENIZER.token_bytes(index) == b""
        assert TOKENIZER.token_text(index) == ""
        assert not TOKENIZER.is_control(index)


def test_a_token_that_is_part_of_a_character_is_shown_as_such() -> None:
    first, *_ = TOKENIZER.encode("é", special=False)
    assert TOKENIZER.token_bytes(first) == b"\xc3"
    assert TOKENIZER.token_text(first) == "\ufffd"


def test_lone_surrogates_count_as_replacement_characters() -> None:
    assert TOKENIZER.encode("a\ud800b", special=False) == TOKENIZER.encode("a\ufffdb", special=True)


def test_threads_at_once_get_what_one_gets() -> None:
    tokenizer = Tokenizer(make_tiny_tokenizer().to_str())
    texts = [f"the user {n} <|im_end|> and <|im_start|>system" for n in range(200)]
    expected = [TOKENIZER.encode(text, special=bool(n % 2)) for n, text in enumerate(texts)]
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(
            lambda n: tokenizer.encode(texts[n], special=bool(n % 2)), range(len(texts))
        )
        assert list(found) == expected


def sentence_piece() -> Tokenizer:
    """A small tokenizer of the kind that Llama 2 and Mistral have."""
    return Tokenizer(sentence_piece_native().to_str())


def sentence_piece_native() -> Native:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += ["\u2581", "h", "i", "hi", "\u2581hi"]
    native = Native(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=[("h", "i"), ("\u2581", "hi")],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    native.normalizer = normalizers.Replace(" ", "\u2581")
    native.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    native.add_special_tokens([AddedToken(token, special=True) for token in tokens[:3]])
    native.add_tokens([AddedToken("[TOOL \u2581]", special=False, normalized=False)])
    return native


def test_sentencepiece_like_tokens() -> None:
    tokenizer = sentence_piece()
    ids = tokenizer.encode(" hi hi é🎉</s>[TOOL \u2581]", special=False)
    assert joined(tokenizer, ids).decode() == " hi hi é🎉</s>[TOOL \u2581]"
    assert tokenizer.token_bytes(3 + 0xE9) == b"\xe9"


def metaspace(prepend_scheme: str, **added: bool) -> Tokenizer:
    """A tokenizer that puts a space before text, by its pre-tokenizer."""
    native = sentence_piece_native()
    native.normalizer = normalizers.Sequence([])
    native.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme, split=False)
    for token, rstrip in added.items():
        native.add_special_tokens([AddedToken(f"<|{token}|>", rstrip=rstrip, normalized=False)])
    return Tokenizer(native.to_str())


@pytest.mark.parametrize("special", [True, False])
def test_the_space_before_a_text_comes_where_a_prompt_begins(special: bool) -> None:
    once, always = metaspace("first"), metaspace("always")
    for tokenizer, between in ((once, b"hi"), (always, b" hi")):
        for text in ("hi", "hi</s>"):
            first = tokenizer.encode(text, special=special)
            later = tokenizer.encode(text, special=special, begins=False)
            assert joined(tokenizer, first).startswith(b" hi")
            assert joined(tokenizer, later).startswith(between)


@given(st.lists(st.sampled_from(["hi", " ", "\n", "<|user|>", "</s>", "h"]), max_size=6))
@pytest.mark.parametrize("scheme", ["first", "never"])
def test_a_prompt_in_pieces_is_the_prompt_in_one(scheme: str, words: list[str]) -> None:
    tokenizer = FIRST if scheme == "first" else NEVER
    whole = "<s>" + "".join(words) + "</s>"
    pieces = [Segment(text, special=bool(at % 2)) for at, text in enumerate(cut(whole))]
    assert encode_prompt(tokenizer, pieces, bos_token=None, add_bos=False) == tokenizer.encode(
        whole, special=True
    )


FIRST, NEVER = metaspace("first", user=True), metaspace("never", user=True)


def cut(text: str) -> list[str]:
    """Plain text and markers in turn."""
    return re.split(r"(<s>|</s>|<\|user\|>)", text)


@pytest.mark.parametrize(
    "user", ["<\uff5cUser\uff5c>", "<|user|>", "<start_of_turn>", "[INST]", "[/INST]", "<turn|>"]
)
def test_markers_that_no_file_calls_special_are_markers_nevertheless(user: str) -> None:
    think = "<think>"
    native = make_tiny_tokenizer()
    native.add_tokens([AddedToken(token, special=False) for token in (user, think)])
    tokenizer = Tokenizer(native.to_str())
    marker = tokenizer.token_id(user)
    assert marker is not None
    assert tokenizer.control_tokens == (*CONTROL_TOKENS, user)
    text = f"a{user}b{think}"
    ids = tokenizer.encode(text, special=False)
    assert joined(tokenizer, ids).decode() == text
    assert marker not in ids
    assert tokenizer.token_id(think) in ids
    assert marker in tokenizer.encode(text, special=True)
    assert tokenizer.token_bytes(marker) == user.encode()  # the model's own, as in transformers


def test_runs_of_spaces_are_spaces() -> None:
    native = sentence_piece_native()
    native.add_tokens([AddedToken("\u2581\u2581", special=False, normalized=False)])
    tokenizer = Tokenizer(native.to_str())
    index = tokenizer.token_id("\u2581\u2581")
    assert index is not None
    assert tokenizer.token_bytes(index) == b"  "


def test_an_unknown_decoder_is_named(tmp_path: Path) -> None:
    content: dict[str, Any] = json.loads(make_tiny_tokenizer().to_str())
    content["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ModelUnavailable, match="WordPiece"):
        Tokenizer.load(tmp_path / "tokenizer.json")


def test_a_missing_or_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with pytest.raises(ModelUnavailable, match=r"tokenizer\.json cannot be read"):
        Tokenizer.load(path)
    path.write_text('{"version": "1.0"')
    with pytest.raises(ModelUnavailable, match=r"tokenizer\.json cannot be read"):
        Tokenizer.load(path)


def test_what_makes_the_library_panic_is_named(tmp_path: Path) -> None:
    content: dict[str, Any] = json.loads(make_tiny_tokenizer().to_str())
    content["model"]["merges"].insert(0, ["b", "b"])  # there is no token "bb"
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ModelUnavailable, match=r"tokenizer\.json cannot be read") as caught:
        Tokenizer.load(tmp_path / "tokenizer.json")
    assert "\n" not in str(caught.value)
