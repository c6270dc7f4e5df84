"""The tokenizer inside a GGUF file, as the ``tokenizers`` library builds it.

GGUF keeps the vocabulary, the merges and the kind of each token, but only a *name* for how text is
split before merging (``tokenizer.ggml.pre``). The table here gives each known name the splitting of
the Hugging Face tokenizer that the name stands for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from ds4trio.errors import ModelUnavailable

__all__ = ["PRE_TOKENIZERS", "adds_bos", "build_tokenizer"]

CONTROL, USER_DEFINED = 3, 4
"""Values of ``tokenizer.ggml.token_type``."""

LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_WORDS = LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")


@dataclass(frozen=True)
class PreTokenizer:
    """How text is cut into the pieces that merges cannot cross.

    Attributes:
        words: the pieces; None takes GPT-2's.
        single_digits: every digit is cut off first.
        whole_words: a piece that is a token is taken as it is, whatever the merges say.
        nfc: text is brought into Unicode's composed form first.
        add_bos: what a file means that does not say whether prompts begin with BOS.
    """

    words: str | None = None
    single_digits: bool = False
    whole_words: bool = False
    nfc: bool = False
    add_bos: bool = False


GPT2 = PreTokenizer()
LLAMA3 = PreTokenizer(LLAMA3_WORDS, whole_words=True, add_bos=True)

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "default": GPT2,
    "gpt-2": GPT2,
    "smollm": PreTokenizer(single_digits=True),
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "qwen2": PreTokenizer(QWEN2_WORDS, nfc=True),
}


def build_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """Build the tokenizer of a GGUF file from its metadata.

    Raises:
        ModelUnavailable: a tokenizer or pre-tokenizer that is not known, or a damaged vocabulary.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        _refuse(f"unknown tokenizer {kind!r}; known: gpt2 (byte-level BPE)")
    pre = _pre_tokenizer(metadata)
    tokens = metadata.get("tokenizer.ggml.tokens") or []
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if not tokens or len(vocabulary) != len(tokens):
        _refuse("its vocabulary is empty or has a token twice")
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.get("tokenizer.ggml.merges") or []]
    try:
        model = models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre.whole_words)
    except Exception as error:  # the library raises bare Exception, for an unknown token in a merge
        _refuse(f"its merges do not fit its vocabulary ({str(error).splitlines()[0]})")
    tokenizer = Tokenizer(model)
    if pre.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _splitter(pre)
    tokenizer.decoder = decoders.ByteLevel()
    kinds = metadata.get("tokenizer.ggml.token_type") or []
    for number, special in ((CONTROL, True), (USER_DEFINED, False)):
        marked = [
            AddedToken(token, special=special, normalized=False)
            for token, kind in zip(tokens, kinds, strict=False)
            if kind == number
        ]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(marked)
    return tokenizer


def adds_bos(metadata: Mapping[str, Any]) -> bool:
    """Whether a prompt of this file's model begins with BOS."""
    says = metadata.get("tokenizer.ggml.add_bos_token")
    return _pre_tokenizer(metadata).add_bos if says is None else bool(says)


def _pre_tokenizer(metadata: Mapping[str, Any]) -> PreTokenizer:
    name = metadata.get("tokenizer.ggml.pre", "default")
    if name not in PRE_TOKENIZERS:
        _refuse(f"unknown pre-tokenizer {name!r}; known: {', '.join(PRE_TOKENIZERS)}")
    return PRE_TOKENIZERS[name]


def _splitter(pre: PreTokenizer) -> pre_tokenizers.PreTokenizer:
    steps: list[pre_tokenizers.PreTokenizer] = []
    if pre.single_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if pre.words is not None:
        steps.append(pre_tokenizers.Split(Regex(pre.words), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre.words is None))
    return pre_tokenizers.Sequence(steps)


def _refuse(why: str) -> NoReturn:
    raise ModelUnavailable(f"The tokenizer of this GGUF file cannot be used: {why}.")
