"""``tekken.json``: Mistral's own form of a byte-level vocabulary.

It has the bytes of each token in the order in which they are joined (the rank), the expression that
cuts text, and the special tokens, which have the first ids (Mistral's documentation of its
tokenizers: https://docs.mistral.ai/guides/tokenization/). There are no merges: as in tiktoken, any
two neighbours whose union is a token may be joined, the union of the lowest rank first. So every
way to cut a token into two others is a merge, in the order of the ranks.
"""

from __future__ import annotations

import base64
import binascii

import msgspec
from tokenizers import Tokenizer

from ds4trio.models.damaged import BAD_JSON
from ds4trio.models.vocabularies.pre_tokenizers import byte_characters, tekken_pattern
from ds4trio.models.vocabularies.vocabulary import build_byte_level, mark_tokens, refuse_vocabulary

__all__ = ["BOS", "EOS", "build_tekken"]

BOS, EOS = "<s>", "</s>"

FIRST_SPECIAL_TOKENS = (
    "<unk>",
    BOS,
    EOS,
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
)
"""What the special tokens are where the file does not say; files before 2025 do not."""

MOST_CUTS = 4_000_000
LONGEST_TOKEN = 512
MOST_SPECIAL = 1_000_000
"""Limits of what a vocabulary may cost to convert; Mistral's have a million cuts."""


class _Settings(msgspec.Struct):
    pattern: str
    default_vocab_size: int
    default_num_special_tokens: int


class _Token(msgspec.Struct):
    rank: int
    token_bytes: str


class _Special(msgspec.Struct):
    rank: int
    token_str: str
    is_control: bool = True


class _File(msgspec.Struct):
    config: _Settings
    vocab: list[_Token]
    special_tokens: list[_Special] | None = None


def build_tekken(data: bytes, source: str) -> Tokenizer:
    """Build the tokenizer of a ``tekken.json``.

    Args:
        data: the file.
        source: its name, for errors.

    Raises:
        ModelUnavailable: it is damaged.
    """
    try:
        file = msgspec.json.decode(data, type=_File)
    except BAD_JSON as error:
        refuse_vocabulary(source, f"it is damaged ({error})")
    special = _special_tokens(file, source)
    count = file.config.default_vocab_size - len(special)
    ranked = sorted(file.vocab, key=lambda token: token.rank)[: max(count, 0)]
    if len(ranked) != count or [token.rank for token in ranked] != list(range(count)):
        refuse_vocabulary(source, "its vocabulary is smaller than it says, or has gaps")
    characters = byte_characters()
    try:
        words = [
            "".join(characters[byte] for byte in base64.b64decode(token.token_bytes, validate=True))
            for token in ranked
        ]
    except (binascii.Error, ValueError) as error:
        refuse_vocabulary(source, f"it is damaged ({error})")
    try:
        pre = tekken_pattern(file.config.pattern)
    except Exception as error:  # the library raises bare Exception
        refuse_vocabulary(source, f"its pattern is not valid ({str(error).splitlines()[0]})")
    tokens = [text for text, _ in special] + words
    tokenizer = build_byte_level(tokens, _merges(words, source), pre, source)
    mark_tokens(
        tokenizer,
        special=[text for text, control in special if control],
        whole=[text for text, control in special if not control],
    )
    return tokenizer


def _special_tokens(file: _File, source: str) -> list[tuple[str, bool]]:
    """Text of each special token, by id, and whether it steers the model."""
    count = file.config.default_num_special_tokens
    if not 0 <= count <= min(file.config.default_vocab_size, len(file.vocab) + count):
        refuse_vocabulary(source, f"it has {count} special tokens of all its tokens")
    if count > MOST_SPECIAL:
        refuse_vocabulary(source, "it has too many special tokens")
    listed = file.special_tokens
    if listed is None:
        listed = [_Special(rank, text) for rank, text in enumerate(FIRST_SPECIAL_TOKENS)]
    named = {token.rank: token for token in listed}
    return [
        (named[index].token_str, named[index].is_control)
        if index in named
        else (f"<SPECIAL_{index}>", True)
        for index in range(count)
    ]


def _merges(words: list[str], source: str) -> list[tuple[str, str]]:
    ranks = {word: rank for rank, word in enumerate(words)}
    merges: list[tuple[str, str]] = []
    if max(map(len, words), default=0) > LONGEST_TOKEN or sum(map(len, words)) > MOST_CUTS:
        refuse_vocabulary(source, "its tokens are too long")
    for word in words:
        halves = [(ranks.get(word[:at]), ranks.get(word[at:]), at) for at in range(1, len(word))]
        known = sorted(
            (left, right, at)
            for left, right, at in halves
            if left is not None and right is not None
        )
        merges += [(word[:at], word[at:]) for _, _, at in known]
    return merges
