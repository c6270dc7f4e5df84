"""Each family's cutting, against a tokenizer that the library trains with the family's settings.

The expressions stand here as the families' ``tokenizer.json`` have them, in one piece.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from ds4trio.models.gguf.header import read_header
from ds4trio.models.vocabularies.gguf import build_tokenizer

CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = CL100K.replace("{1,3}", "")
QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = O200K.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "").replace("{1,3}", "")
DEEPSEEK_V3 = (
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?"
    "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)
HAN, KANA = "\u4e00-\u9fa5", "\u3040-\u309f\u30a0-\u30ff"
EACH_DIGIT = {"type": "Digits", "individual_digits": True}
GPT2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
BYTES = {**GPT2, "use_regex": False}


def cut(pattern: str) -> dict[str, Any]:
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


FAMILIES: dict[str, list[dict[str, Any]]] = {
    "gpt-2": [GPT2],
    "smollm": [EACH_DIGIT, GPT2],
    "starcoder": [EACH_DIGIT, GPT2],
    "refact": [EACH_DIGIT, GPT2],
    "command-r": [EACH_DIGIT, GPT2],
    "falcon": [
        {"type": "Punctuation", "behavior": "Contiguous"},
        GPT2,
        {"type": "Digits", "individual_digits": False},
        cut("[0-9][0-9][0-9]"),
    ],
    "llama-bpe": [cut(CL100K), BYTES],
    "smaug-bpe": [cut(CL100K), BYTES],
    "dbrx": [cut(CL100K), BYTES],
    "qwen2": [cut(QWEN2), BYTES],
    "qwen35": [cut(QWEN35), BYTES],
    "gpt-4o": [cut(O200K), BYTES],
    "tekken": [cut(TEKKEN), BYTES],
    "deepseek-coder": [
        cut("[\r\n]"),
        cut(r"\s?\p{L}+"),
        cut(r"\s?\p{P}+"),
        cut("[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"),
        EACH_DIGIT,
        BYTES,
    ],
    "deepseek-v3": [cut(r"\p{N}{1,3}"), cut(f"[{HAN}{KANA}]+"), cut(DEEPSEEK_V3), BYTES],
}
COMPOSED = {"qwen2", "qwen35", "command-r"}

WORDS = """The don't WE'LL camelCase ALLCAPS naïve e\u0301te \u0301x 日本語 ひらがな 한국어
Привет ไทย हिन्दी 1 22 333 4444 55555 3.14 ½ x_1 a/b// <b> --- !!! «q» \u00a0x \u3000 \t\t 🎉
👩\u200d👧 ǅ \u0294""".replace("\n", " ").split(" ")
TEXT = " ".join(WORDS) + "\n\n  def f(x):\r\n\treturn x + 1\n   \n" + "".join(WORDS)
TEXTS = st.one_of(
    st.text(max_size=40),
    st.lists(st.sampled_from([*WORDS, " ", "  ", "\n", "\r\n", "\x00"]), max_size=12).map("".join),
    st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join),
)


def trained(name: str) -> Tokenizer:
    """A tokenizer of the family, trained on a few words."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=name in {"llama-bpe", "gpt-4o", "tekken"}))
    steps = {"type": "Sequence", "pretokenizers": FAMILIES[name]}
    content = json.loads(tokenizer.to_str()) | {"pre_tokenizer": steps}
    tokenizer = Tokenizer.from_str(json.dumps(content))
    if name in COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    return tokenizer


def written(tokenizer: Tokenizer, name: str, path: Path) -> Path:
    """The tokenizer in a GGUF file without tensors."""
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(name)
    writer.add_token_list(tokens)
    writer.add_token_types([3, *[1] * (len(tokens) - 1)])
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("name", FAMILIES)
def test_ids_are_those_of_the_family(name: str, tmp_path: Path) -> None:
    theirs = trained(name)
    ours = build_tokenizer(read_header(written(theirs, name, tmp_path / "x.gguf")).metadata)

    @settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
    @given(TEXTS)
    def check(text: str) -> None:
        assert ours.encode(text).ids == theirs.encode(text).ids

    check()
    for text in [TEXT, TEXT[::-1], f"{TEXT}<|end|>{TEXT}"]:
        assert ours.encode(text).ids == theirs.encode(text).ids
    assert ours.decode(theirs.encode(TEXT).ids) == (
        theirs.normalizer.normalize_str(TEXT) if name in COMPOSED else TEXT
    )


def pieces(name: str, text: str) -> list[str]:
    """How a text is cut; every byte is a token, and no two are joined."""
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": name,
        "tokenizer.ggml.tokens": sorted(pre_tokenizers.ByteLevel.alphabet()),
        "tokenizer.ggml.token_type": [1] * 256,
        "tokenizer.ggml.merges": [],
    }
    cut_up = build_tokenizer(metadata).pre_tokenizer.pre_tokenize_str(text)
    return [text[begin:end] for _, (begin, end) in cut_up]


def test_the_first_deepseek_knows_alphabets_of_its_own() -> None:
    assert pieces("deepseek-llm", "ab Привет, 12日本x\n  ") == [
        *("ab", " Привет", ",", " ", "1", "2", "日本", "x", "\n", "  "),
    ]
    # The small letters of Georgian and Armenian are none of its.
    assert pieces("deepseek-llm", "ა.") == ["ა", "."]
    assert pieces("deepseek-llm", "\u0556\u0561") == ["\u0556", "\u0561"]


def test_letters_of_the_first_deepseek_are_letters_with_case() -> None:
    pattern = build_tokenizer_of("deepseek-llm")
    # ASCII's are cut off again, since the family's class of signs has them too.
    letters = [chr(code) for code in range(0x80, 0x20000) if not 0xD800 <= code < 0xE000]
    matched = [sign for sign in letters if pattern.pre_tokenize_str(f"é{sign}")[0][1] == (0, 2)]
    assert len(matched) > 1500
    upper = regex_match(r"^[\p{Lu}\p{Ll}\p{Lt}]$", matched)
    assert upper == matched


def build_tokenizer_of(name: str) -> Any:
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": name,
        "tokenizer.ggml.tokens": sorted(pre_tokenizers.ByteLevel.alphabet()),
        "tokenizer.ggml.merges": [],
    }
    return build_tokenizer(metadata).pre_tokenizer


def regex_match(pattern: str, texts: list[str]) -> list[str]:
    cutter = pre_tokenizers.Split(Regex(pattern), behavior="removed")
    return [text for text in texts if not cutter.pre_tokenize_str(text)]
