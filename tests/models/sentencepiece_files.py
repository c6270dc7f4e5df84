"""Small SentencePiece vocabularies, and files made of them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

__all__ = ["Vocabulary", "byte_pair_encoding", "model_file", "small_vocabulary"]

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SPACE = "\u2581"

WORDS = (
    "th he the in er on re at or st an it is en ll lo hell hello wor orl world ld "
    "aa aaa aaaa \u2581t \u2581the \u2581h \u2581hello \u2581w \u2581\u2581 \u2581\u2581\u2581 "
    "\u2581\u2581\u2581\u2581 日本 本語 日本語 12 34 1234 <s !!"
)
CHARACTERS = "thedorinlswaz1234!<>/é日本語\u2581"


@dataclass
class Vocabulary:
    """Pieces by id."""

    tokens: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)

    def add(self, tokens: Sequence[str], kind: int, score: float = 0.0) -> None:
        for token in tokens:
            self.tokens.append(token)
            self.kinds.append(kind)
            self.scores.append(score)

    def metadata(self, **changes: Any) -> dict[str, Any]:
        """What a GGUF file says of it."""
        return {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": self.tokens,
            "tokenizer.ggml.scores": self.scores,
            "tokenizer.ggml.token_type": self.kinds,
            "tokenizer.ggml.unknown_token_id": 0,
        } | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}


def small_vocabulary(
    control: Sequence[str] = (), defined: Sequence[str] = (), *, with_bytes: bool = True
) -> Vocabulary:
    """Llama's order: unknown, control tokens, bytes, words by score, characters."""
    found = Vocabulary()
    found.add(["<unk>"], UNKNOWN)
    found.add(["<s>", "</s>", *control], CONTROL)
    found.add(defined, USER_DEFINED)
    if with_bytes:
        found.add([f"<0x{byte:02X}>" for byte in range(256)], BYTE)
    for rank, word in enumerate(WORDS.split(" ")):
        found.add([word], NORMAL, -float(rank))
    for rank, character in enumerate(CHARACTERS):
        found.add([character], NORMAL, -1000.0 - rank)
    return found


def byte_pair_encoding(text: str, vocabulary: Vocabulary) -> list[int]:
    """SentencePiece's BPE by its definition: of all neighbours whose union is a normal piece the
    best-scored are joined, of those the leftmost; what is no piece then is written in bytes."""
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    scores = {
        token: score
        for token, score, kind in zip(
            vocabulary.tokens, vocabulary.scores, vocabulary.kinds, strict=True
        )
        if kind == NORMAL
    }
    symbols = list(text.replace(" ", SPACE))
    while True:
        unions = [a + b for a, b in pairwise(symbols)]
        known = [(-scores[union], at) for at, union in enumerate(unions) if union in scores]
        if not known:
            break
        _, at = min(known)
        symbols[at : at + 2] = [unions[at]]
    found: list[int] = []
    for symbol in symbols:
        if symbol in scores:
            found.append(ids[symbol])
        else:
            found += [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
    return found


def model_file(
    vocabulary: Vocabulary, *, kind: int = 2, prefix: bool = True, removes: bool = False
) -> bytes:
    """A ``tokenizer.model``, field by field."""
    content = b"".join(
        _field(1, _field(1, token.encode()) + _float(2, score) + _number(3, piece_kind))
        for token, score, piece_kind in zip(
            vocabulary.tokens, vocabulary.scores, vocabulary.kinds, strict=True
        )
    )
    trainer = _number(3, kind) + _number(40, 0) + _number(41, 1) + _number(42, 2)
    trainer += _number(43, (1 << 64) - 1)  # no padding: -1
    rules = _field(1, b"identity") + _field(2, b"") + _number(3, prefix) + _number(4, removes)
    return content + _field(2, trainer) + _field(3, rules)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(int(value))


def _float(number: int, value: float) -> bytes:
    return _varint(number << 3 | 5) + struct.pack("<f", value)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content
