from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ds4trio.chat.tokenizer import Tokenizer
from ds4trio.errors import ModelUnavailable
from ds4trio.models.vocabularies.gguf import adds_bos, build_tokenizer
from ds4trio.models.vocabularies.sentencepiece import build_sentencepiece
from ds4trio.models.vocabularies.sentencepiece_file import read_sentencepiece
from tests.models.sentencepiece_files import (
    SPACE,
    Vocabulary,
    byte_pair_encoding,
    model_file,
    small_vocabulary,
)

LLAMA = small_vocabulary()
MISTRAL = small_vocabulary(["[INST]", "[/INST]"])
PHI3 = small_vocabulary(["<|endoftext|>", "<|user|>", "<|end|>"])


def gemma(run: str) -> Vocabulary:
    """Runs of newlines and of spaces are tokens that users define; GGUF has spaces in them."""
    found = small_vocabulary(["<start_of_turn>"], ["\n", "\n\n", "\n\n\n", "<b>"])
    defined = found.kinds[found.tokens.index("\n")]
    for length in (2, 3, 4):
        index = found.tokens.index(SPACE * length)
        found.tokens[index] = run * length
        found.kinds[index], found.scores[index] = defined, -1000.0
    return found


GEMMA = gemma(" ")
NO_MARKERS = ("<s>", "</s>", "<unk>", "<b>", "[INST]")
TEXTS = st.one_of(
    st.text(max_size=30),
    st.text(f"thedorinlswaz1234 !<>é日本語{SPACE}", max_size=40),
    st.lists(st.sampled_from(["hello", "world", " ", "  ", "the", "aaaaa"]), max_size=10).map(
        "".join
    ),
).filter(lambda text: not any(marker in text for marker in NO_MARKERS))


def ids(metadata: dict[str, Any], text: str) -> list[int]:
    found: list[int] = build_tokenizer(metadata).encode(text).ids
    return found


def tokens(metadata: dict[str, Any], text: str) -> list[str]:
    tokenizer = build_tokenizer(metadata)
    return [tokenizer.id_to_token(index) or "" for index in tokenizer.encode(text).ids]


LLAMA_TOKENIZER = build_tokenizer(LLAMA.metadata())
GEMMA_TOKENIZER = build_tokenizer(GEMMA.metadata(add_space_prefix=False))


@settings(deadline=None)
@given(TEXTS)
@example("hello world  the aaaaa")
@example("<s")
@example("a\x00\ud7ff\U0010ffff")
def test_llama_puts_a_space_before_and_joins_by_score(text: str) -> None:
    expected = byte_pair_encoding(f" {text}", LLAMA) if text else []
    assert LLAMA_TOKENIZER.encode(text).ids == expected
    tokenizer = Tokenizer(LLAMA_TOKENIZER.to_str())
    assert b"".join(map(tokenizer.token_bytes, expected)).decode() == (
        f" {text}".replace(SPACE, " ") if text else ""
    )


@settings(deadline=None)
@given(TEXTS)
@example("a  b\n\n\n\n  c")
@example(" hello   \n world" + " " * 9)
def test_gemma_has_runs_and_puts_no_space_before(text: str) -> None:
    tokenizer = Tokenizer(GEMMA_TOKENIZER.to_str())
    found = GEMMA_TOKENIZER.encode(text).ids
    assert b"".join(map(tokenizer.token_bytes, found)).decode() == text.replace(SPACE, " ")
    if "\n" not in text and "  " not in text and SPACE not in text:
        assert found == byte_pair_encoding(text, GEMMA)


@pytest.mark.parametrize("run", [" ", SPACE], ids=["GGUF", "tokenizer.model"])
def test_runs_are_the_longest_there_are(run: str) -> None:
    metadata = gemma(run).metadata(add_space_prefix=False)
    assert tokens(metadata, "a   h\n\n\n\n  e") == [
        *("a", SPACE * 3, "h", "\n\n\n", "\n", SPACE * 2, "e"),
    ]
    # Four is the longest run, and a fifth space goes with what follows.
    assert tokens(metadata, "a     the") == ["a", SPACE * 4, f"{SPACE}the"]


def test_behind_a_marker_comes_a_space_as_the_family_has_it() -> None:
    assert tokens(LLAMA.metadata(), "<s>hello</s> hello") == [
        *("<s>", f"{SPACE}hello", "</s>", SPACE, f"{SPACE}hello"),
    ]
    assert tokens(MISTRAL.metadata(), "<s>[INST] hello[/INST]hello") == [
        *("<s>", "[INST]", f"{SPACE}hello", "[/INST]", "hello"),
    ]
    assert tokens(MISTRAL.metadata(), "hello") == [f"{SPACE}hello"]


def test_markers_of_phi3_swallow_the_white_space_behind_them() -> None:
    metadata = PHI3.metadata() | {"general.architecture": "phi3"}
    assert tokens(metadata, "<|user|>\n hello<|end|>\n<s> hello") == [
        *("<|user|>", f"{SPACE}hello", "<|end|>", "<s>", SPACE, f"{SPACE}hello"),
    ]
    assert "<0x0A>" in tokens(PHI3.metadata(), "<|user|>\nhello")


def test_padding_and_unused_pieces_never_come_of_text() -> None:
    vocabulary = small_vocabulary()
    size = len(vocabulary.tokens)
    vocabulary.add([f"[PAD{size}]"], 4)
    vocabulary.add(["hellohello", "<hello>"], 5, 5.0)
    found = ids(vocabulary.metadata(), f"[PAD{size}]hellohello<hello>")
    assert max(found) < size


def test_a_run_of_spaces_may_be_there_twice() -> None:
    vocabulary = small_vocabulary(defined=["  "])
    assert SPACE * 2 in vocabulary.tokens
    assert "  " in tokens(vocabulary.metadata(), "a  b")


def test_without_bytes_the_unknown_token_stands_for_what_is_no_piece() -> None:
    vocabulary = small_vocabulary(with_bytes=False)
    assert tokens(vocabulary.metadata(), "h??") == [f"{SPACE}h", "<unk>"]


def test_prompts_begin_with_bos_unless_the_file_says_otherwise() -> None:
    assert adds_bos(LLAMA.metadata())
    assert not adds_bos(LLAMA.metadata(add_bos_token=False))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"scores": None}, "not one score"),
        ({"scores": LLAMA.scores[:-1]}, "not one score"),
        ({"scores": ["x"]}, "scores are of the wrong type"),
        ({"token_type": LLAMA.kinds[:-1]}, "not one score"),
        ({"unknown_token_id": 10**6}, "unknown token is none"),
        ({"unknown_token_id": "0"}, "unknown token is none"),
        ({"tokens": [], "scores": [], "token_type": []}, "vocabulary is empty"),
        ({"tokens": ["a", "a"], "scores": [0.0] * 2, "token_type": [1, 1]}, "a token twice"),
        ({"tokens": ["a" * 600], "scores": [0.0], "token_type": [1]}, "tokens are too long"),
        (
            {
                "tokens": [f"{'a' * 400}{n:06}" for n in range(20_000)],
                "scores": [0.0] * 20_000,
                "token_type": [1] * 20_000,
            },
            "tokens are too long",
        ),
    ],
)
def test_a_damaged_vocabulary_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelUnavailable, match=says):
        build_tokenizer(LLAMA.metadata(**changes))


@pytest.mark.parametrize("vocabulary", [LLAMA, MISTRAL, gemma(SPACE)])
@pytest.mark.parametrize("prefix", [True, False])
def test_a_model_file_gives_what_gguf_gives(vocabulary: Vocabulary, prefix: bool) -> None:
    file = read_sentencepiece(model_file(vocabulary, prefix=prefix), "x")
    ours = build_sentencepiece(file.pieces(behind_markers=None), "x")
    theirs = build_tokenizer(vocabulary.metadata(add_space_prefix=prefix))
    assert ours.to_str() == theirs.to_str()
    assert (file.token(file.bos), file.token(file.eos)) == ("<s>", "</s>")
    assert file.token(-1) is None


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (model_file(LLAMA, kind=1), "unknown kind unigram; known: BPE"),
        (model_file(LLAMA, removes=True), "removes spaces"),
        (model_file(LLAMA)[:5000], "damaged"),
        (b"\xff" * 100, "damaged"),
        (b"\x0a\xff\xff\xff\xff\x7f", "damaged"),
        (b"\x0b", "damaged"),
        (b"\x08\x05", "damaged"),
        (b"", "unknown kind"),
    ],
)
def test_a_model_file_that_cannot_be_used_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(ModelUnavailable, match=says):
        read_sentencepiece(data, "tokenizer.model")


@given(st.binary(max_size=200), st.integers(0, 4000))
def test_damage_anywhere_is_refused_or_read(noise: bytes, at: int) -> None:
    whole = model_file(LLAMA)
    for data in (noise, whole[:at] + noise + whole[at + len(noise) :]):
        try:
            file = read_sentencepiece(data, "x")
            build_sentencepiece(file.pieces(behind_markers=None), "x")
        except ModelUnavailable:
            pass
