"""``tokenizer.model``: a SentencePiece model in its own file.

The file is a Protocol Buffers message, ``ModelProto`` of ``sentencepiece_model.proto``
(https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto). A handful of
its fields matter here, so they are read by hand
(https://protobuf.dev/programming-guides/encoding/).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ds4trio.models.vocabularies.sentencepiece import (
    NORMAL,
    Pieces,
    Prefix,
    puts_space_behind_markers,
)
from ds4trio.models.vocabularies.vocabulary import refuse_vocabulary

__all__ = ["SentencePieceFile", "read_sentencepiece"]

# Field numbers of the messages.
PIECES, TRAINER, NORMALIZER = 1, 2, 3
TEXT, SCORE, KIND = 1, 2, 3
MODEL_TYPE, UNKNOWN_ID, BOS_ID, EOS_ID = 3, 40, 41, 42
CHARACTER_MAP, DUMMY_PREFIX, REMOVE_SPACES, ESCAPE_SPACES = 2, 3, 4, 5

BPE = 2
MODEL_TYPES = {1: "unigram", 2: "BPE", 3: "word", 4: "character"}

VARINT, EIGHT_BYTES, LENGTH_DELIMITED, FOUR_BYTES = 0, 1, 2, 5
"""Wire types."""


@dataclass
class SentencePieceFile:
    """What the file says.

    Attributes:
        tokens, scores, kinds: the pieces, by id.
        unknown, bos, eos: ids; -1 where the model has none.
        dummy_prefix: text begins with a space that nobody wrote.
    """

    tokens: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    unknown: int = 0
    bos: int = 1
    eos: int = 2
    dummy_prefix: bool = True

    def pieces(self, *, behind_markers: bool | None) -> Pieces:
        """The vocabulary.

        Args:
            behind_markers: the dummy space comes behind tokens matched as a whole too; None where
                nothing says so.
        """
        if behind_markers is None:
            behind_markers = puts_space_behind_markers(self.tokens, self.kinds)
        each = Prefix.EACH if behind_markers else Prefix.FIRST
        return Pieces(
            tokens=self.tokens,
            scores=self.scores,
            kinds=self.kinds,
            unknown=self.unknown,
            prefix=each if self.dummy_prefix else Prefix.NONE,
        )

    def token(self, index: int) -> str | None:
        """A piece by its id, None for ids that there are not."""
        return self.tokens[index] if 0 <= index < len(self.tokens) else None


def read_sentencepiece(data: bytes, source: str) -> SentencePieceFile:
    """Read a model of the BPE kind, without rules that rewrite text.

    Args:
        data: the file.
        source: its name, for errors.

    Raises:
        ModelUnavailable: it is damaged, or of a kind that is not known.
    """
    found = SentencePieceFile()
    kind = 1
    rewrites = removes = False
    escapes = True
    try:
        for number, value in _fields(data):
            if number == PIECES:
                parts = dict(_fields(_bytes(value)))
                found.tokens.append(_bytes(parts.get(TEXT, b"")).decode("utf-8"))
                found.scores.append(struct.unpack("<f", _bytes(parts.get(SCORE, bytes(4))))[0])
                found.kinds.append(_integer(parts.get(KIND, NORMAL)))
            elif number == TRAINER:
                trainer = dict(_fields(_bytes(value)))
                kind = _integer(trainer.get(MODEL_TYPE, kind))
                found.unknown = _integer(trainer.get(UNKNOWN_ID, found.unknown))
                found.bos = _integer(trainer.get(BOS_ID, found.bos))
                found.eos = _integer(trainer.get(EOS_ID, found.eos))
            elif number == NORMALIZER:
                rules = dict(_fields(_bytes(value)))
                rewrites = bool(rules.get(CHARACTER_MAP))
                found.dummy_prefix = bool(rules.get(DUMMY_PREFIX, True))
                removes = bool(rules.get(REMOVE_SPACES, True))
                escapes = bool(rules.get(ESCAPE_SPACES, True))
    except (ValueError, struct.error) as error:
        refuse_vocabulary(source, f"it is damaged ({error})")
    if kind != BPE:
        refuse_vocabulary(source, f"unknown kind {MODEL_TYPES.get(kind, kind)}; known: BPE")
    if rewrites or removes or not escapes:
        refuse_vocabulary(source, "it rewrites text or removes spaces, which is not known")
    return found


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of each field: an integer, or bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire == LENGTH_DELIMITED:
            length, at = _varint(data, at)
        elif wire in (FOUR_BYTES, EIGHT_BYTES):
            length = 4 if wire == FOUR_BYTES else 8
        else:
            raise ValueError(f"wire type {wire}")
        if length > len(data) - at:
            raise ValueError("it ends inside a field")
        yield number, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """An integer of seven bits a byte, and where the next thing begins."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("it ends inside a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number is too long")


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number where there should be bytes")
    return value


def _integer(value: Any) -> int:
    """A field of type int32: negative numbers fill all 64 bits."""
    if not isinstance(value, int):
        raise ValueError("bytes where there should be a number")
    return value - (1 << 64) if value >= 1 << 63 else value
