"""The tokenizer inside a GGUF file, as the ``tokenizers`` library builds it.

GGUF keeps the vocabulary, the kind of each token, and merges or scores, depending on what kind of
tokenizer it is (``tokenizer.ggml.model``): ``gpt2``, byte-level BPE, with a *name* for how text is
cut (``pre_tokenizers.py``), or ``llama``, SentencePiece with scores (``sentencepiece.py``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

from ds4trio.models.vocabularies.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from ds4trio.models.vocabularies.sentencepiece import (
    NORMAL,
    Pieces,
    Prefix,
    build_sentencepiece,
    puts_space_behind_markers,
)
from ds4trio.models.vocabularies.vocabulary import (
    build_byte_level,
    list_of,
    mark_tokens,
    refuse_vocabulary,
)

__all__ = ["adds_bos", "build_tokenizer"]

SOURCE = "this GGUF file"
KINDS = {"gpt2": "byte-level BPE", "llama": "SentencePiece"}

CONTROL, USER_DEFINED = 3, 4
"""Values of ``tokenizer.ggml.token_type``."""

PADDING = re.compile(r"\[PAD(\d+)\]")
"""What converters fill up a vocabulary with. Older ones mark these as tokens that users define."""

PHI3_KEEPS = frozenset({"<unk>", "<s>", "<|endoftext|>"})
"""Phi-3's other tokens swallow the white space behind them, which no key of a GGUF file says."""


def build_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """Build the tokenizer of a GGUF file from its metadata.

    Raises:
        ModelUnavailable: a tokenizer or pre-tokenizer that is not known, or a damaged vocabulary.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if not isinstance(kind, str) or kind not in KINDS:
        known = ", ".join(f"{name} ({what})" for name, what in KINDS.items())
        refuse_vocabulary(SOURCE, f"unknown tokenizer {kind!r}; known: {known}")
    tokens = list_of(str, metadata.get("tokenizer.ggml.tokens"), "tokens", SOURCE)
    kinds = list_of(int, metadata.get("tokenizer.ggml.token_type"), "token types", SOURCE)
    if kind == "llama":
        return _sentencepiece(metadata, tokens, kinds)
    pre = _pre_tokenizer(metadata)
    merges = list_of(str, metadata.get("tokenizer.ggml.merges"), "merges", SOURCE)
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    tokenizer = build_byte_level(tokens, pairs, pre, SOURCE)
    mark_tokens(
        tokenizer,
        special=[t for t, kind in zip(tokens, kinds, strict=False) if kind == CONTROL],
        whole=[
            token
            for index, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
            if kind == USER_DEFINED and not _is_padding(token, index)
        ],
    )
    return tokenizer


def adds_bos(metadata: Mapping[str, Any]) -> bool:
    """Whether a prompt of this file's model begins with BOS.

    Raises:
        ModelUnavailable: the file does not say, and its pre-tokenizer is not known.
    """
    says = metadata.get("tokenizer.ggml.add_bos_token")
    if says is not None:
        return bool(says)
    if metadata.get("tokenizer.ggml.model") == "llama":
        return True
    return _pre_tokenizer(metadata).add_bos


def _sentencepiece(metadata: Mapping[str, Any], tokens: list[str], kinds: list[int]) -> Tokenizer:
    scores = list_of((int, float), metadata.get("tokenizer.ggml.scores"), "scores", SOURCE)
    control = {token for token, kind in zip(tokens, kinds, strict=False) if kind == CONTROL}
    prefix = Prefix.EACH if puts_space_behind_markers(tokens, kinds) else Prefix.FIRST
    if not metadata.get("tokenizer.ggml.add_space_prefix", True):
        prefix = Prefix.NONE
    swallow: set[str] = set()
    if metadata.get("general.architecture") == "phi3":
        swallow = (control | {"</s>"}) - PHI3_KEEPS
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    return build_sentencepiece(
        Pieces(
            tokens=tokens,
            scores=scores,
            kinds=[
                NORMAL if _is_padding(token, index) else kind
                for index, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
            ],
            unknown=unknown if isinstance(unknown, int) else -1,
            prefix=prefix,
            swallow=swallow,
        ),
        SOURCE,
    )


def _is_padding(token: str, index: int) -> bool:
    found = PADDING.fullmatch(token)
    return found is not None and found[1] == str(index)


def _pre_tokenizer(metadata: Mapping[str, Any]) -> PreTokenizer:
    name = metadata.get("tokenizer.ggml.pre", "default")
    known = PRE_TOKENIZERS.get(name) if isinstance(name, str) else None
    if known is None:
        names = ", ".join(PRE_TOKENIZERS)
        refuse_vocabulary(SOURCE, f"unknown pre-tokenizer {name!r}; known: {names}")
    return known
