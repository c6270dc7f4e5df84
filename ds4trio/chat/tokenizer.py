"""Text <-> token ids, over a ``tokenizer.json``."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer as Native

from ds4trio.errors import ModelUnavailable

__all__ = ["Tokenizer"]

SURROGATE = re.compile("[\ud800-\udfff]")
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Tokenizer:
    """A model's tokenizer. Any thread may use it, several at once.

    Attributes:
        vocab_size: ids are below it. The model's own may be larger, padded.
        control_tokens: texts of the tokens that steer the model (role markers, begin, end).
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._native = Native.from_str(source)
        # Typed markers are rare, and a second copy of the vocabulary costs memory and a tenth of a
        # second, so it is made when the first text with a marker comes.
        self._literal: Native | None = None
        self._literal_lock = threading.Lock()
        self.vocab_size: int = self._native.get_vocab_size(with_added_tokens=True)
        added = self._native.get_added_tokens_decoder()
        self._control = {index for index, token in added.items() if token.special}
        self._verbatim = {
            index: token.content for index, token in added.items() if not token.special
        }
        self.control_tokens: tuple[str, ...] = tuple(
            added[index].content for index in sorted(self._control)
        )
        self._marker = _any_of(self.control_tokens)
        self._to_bytes = _byte_rule(source)
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Read a ``tokenizer.json``.

        Raises:
            ModelUnavailable: it is missing, damaged, or writes tokens in a form not known here.
        """
        try:
            return cls(path.read_text(encoding="utf-8"))
        except ModelUnavailable:
            raise
        except Exception as error:  # the native library raises bare Exception
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise ModelUnavailable(f"The tokenizer {path} cannot be read: {reason}.") from error

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Turn text into ids, adding none of its own (no begin or end token).

        Args:
            text: lone surrogates, which UTF-8 has no form for, count as U+FFFD.
            special: control tokens written in the text become those tokens; otherwise they are
                plain text like any other.
        """
        if not text.isascii():
            text = SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)
        native = self._native
        if not special and self._marker is not None and self._marker.search(text):
            native = self._literal_native()
        # Of the native calls only those for batches let other threads run meanwhile.
        (encoding,) = native.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids

    @functools.cached_property
    def longest_token(self) -> int:
        """No token stands for more bytes of text than this."""
        return max(len(token.encode("utf-8")) for token in self._native.get_vocab())

    def token_id(self, token: str) -> int | None:
        """The id of a token by its exact text in the vocabulary; None if there is none."""
        index: int | None = self._native.token_to_id(token)
        return index

    def token_bytes(self, index: int) -> bytes:
        """The bytes that a token adds to the text: ``b""`` for control tokens and unknown ids.

        They need not be whole characters.
        """
        found = self._bytes.get(index)
        if found is None:
            found = self._bytes[index] = self._decode_one(index)
        return found

    def token_text(self, index: int) -> str:
        """A token for people, as in logprobs: control tokens by name, broken bytes as U+FFFD."""
        if self.is_control(index):
            return self._native.id_to_token(index) or ""
        return self.token_bytes(index).decode("utf-8", "replace")

    def is_control(self, index: int) -> bool:
        """Whether the token steers the model and is no text."""
        return index in self._control

    def _decode_one(self, index: int) -> bytes:
        if index in self._control or not 0 <= index < self.vocab_size:
            return b""
        if index in self._verbatim:
            return self._verbatim[index].encode("utf-8")
        token = self._native.id_to_token(index)
        return b"" if token is None else self._to_bytes(token)

    def _literal_native(self) -> Native:
        with self._literal_lock:
            if self._literal is None:
                literal = Native.from_str(self._source)
                literal.encode_special_tokens = True
                self._literal = literal
            return self._literal


def _any_of(texts: tuple[str, ...]) -> re.Pattern[str] | None:
    parts = sorted((re.escape(text) for text in texts if text), key=len, reverse=True)
    return re.compile("|".join(parts)) if parts else None


class _Decoder(msgspec.Struct):
    """The part of a ``tokenizer.json`` that says how tokens are written; the rest is skipped."""

    decoder: Any = None


def _byte_rule(source: str) -> Callable[[str], bytes]:
    """How this tokenizer writes bytes into its tokens: GPT-2's way or SentencePiece's."""
    kinds = set(_decoder_kinds(msgspec.json.decode(source.encode(), type=_Decoder).decoder))
    if "ByteLevel" in kinds:
        return _byte_level
    if kinds & {"ByteFallback", "Metaspace", "Replace"}:
        return _sentence_piece
    known = "ByteLevel, or Replace or Metaspace with ByteFallback"
    raise ModelUnavailable(
        f"The tokenizer's decoder ({', '.join(sorted(kinds)) or 'none'}) is not known; "
        f"known: {known}."
    )


def _decoder_kinds(decoder: Any) -> list[str]:
    if not isinstance(decoder, dict):
        return []
    inner = [kind for part in decoder.get("decoders") or [] for kind in _decoder_kinds(part)]
    return [str(decoder.get("type")), *inner]


def _gpt2_alphabet() -> dict[str, int]:
    """GPT-2's characters for the 256 bytes: printable Latin-1 as itself, the rest from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + number): byte for number, byte in enumerate(others)}


BYTE_OF = _gpt2_alphabet()


def _byte_level(token: str) -> bytes:
    try:
        return bytes([BYTE_OF[character] for character in token])
    except KeyError:  # a token outside the alphabet stands for itself
        return token.encode("utf-8")


def _sentence_piece(token: str) -> bytes:
    if match := BYTE_TOKEN.fullmatch(token):
        return bytes([int(match[1], 16)])
    return token.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").encode("utf-8")
