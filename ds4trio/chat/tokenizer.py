"""Text <-> token ids, over a ``tokenizer.json``."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer as Native

from ds4trio.chat.patterns import any_of
from ds4trio.errors import ModelUnavailable

__all__ = ["Tokenizer"]

SURROGATE = re.compile("[\ud800-\udfff]")
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""What SentencePiece writes for a space."""

ROLE_MARKER = re.compile(
    r"<(?:[|\uff5c][^<>]*|[^<>]*[|\uff5c])>"  # DeepSeek's <\uff5cUser\uff5c>
    r"|<(?:start|end)_of_\w+>"  # Gemma's turns
    r"|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_RESULTS|TOOL_CALLS)\]"
)
"""Tokens of this look steer the model also where its file does not call them special."""


class Tokenizer:
    """A model's tokenizer. Any thread may use it, several at once.

    Attributes:
        vocab_size: ids are below it. The model's own may be larger, padded.
        source: of its ``tokenizer.json``.
        control_tokens: texts of the tokens that steer the model (role markers, begin, end).
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._native = Native.from_str(source)
        # Typed markers are rare, and a second copy of the vocabulary costs memory and a tenth of a
        # second, so variants are made when the first text comes that needs them.
        self._variants: dict[tuple[bool, bool], Native] = {}
        self._variants_lock = threading.Lock()
        self.vocab_size: int = self._native.get_vocab_size(with_added_tokens=True)
        added = self._native.get_added_tokens_decoder()
        self._control = {index for index, token in added.items() if token.special}
        self._verbatim = {
            index: token.content for index, token in added.items() if not token.special
        }
        self.control_tokens: tuple[str, ...] = tuple(
            token.content
            for _, token in sorted(added.items())
            if token.special or ROLE_MARKER.fullmatch(token.content)
        )
        self._swallowing = tuple(
            token.content for token in added.values() if token.rstrip and token.content
        )
        self._marker = any_of(self.control_tokens)
        self._small = msgspec.json.decode(source.encode(), type=_SmallParts)
        self._prefixed_once = _prefixes_once(self._small.pre_tokenizer)
        self._to_bytes = _byte_rule(self._small.decoder)
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
        except BaseException as error:
            # The native library raises bare Exception, or panics, which is no Exception.
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise ModelUnavailable(f"The tokenizer {path} cannot be read: {reason}.") from error

    def encode(self, text: str, *, special: bool, begins: bool = True) -> list[int]:
        """Turn text into ids, adding none of its own (no begin or end token).

        Args:
            text: lone surrogates, which UTF-8 has no form for, count as U+FFFD.
            special: control tokens written in the text become those tokens; otherwise they are
                plain text like any other.
            begins: nothing stands before the text. Some tokenizers put a space there.
        """
        if not text.isascii():
            text = SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)
        literal = not special and self._marker is not None and bool(self._marker.search(text))
        continues = self._prefixed_once and not begins
        native = self._variant(literal, continues) if literal or continues else self._native
        # Of the native calls only those for batches let other threads run meanwhile.
        (encoding,) = native.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a whole sequence of ids, control tokens by name: what ``encode`` took, but
        for white space that the tokenizer's file has lost. Broken bytes are U+FFFD.

        Unlike the bytes of its tokens joined, it has no space of the tokenizer's own at its
        beginning.
        """
        (text,) = self._native.decode_batch([list(ids)], skip_special_tokens=False)
        return str(text)

    def swallows(self, text: str) -> bool:
        """Whether white space behind this text is lost: it ends with a token that takes it in."""
        return text.endswith(self._swallowing)

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

    def token_name(self, index: int) -> str:
        """A token as its vocabulary writes it; empty for unknown ids."""
        return self._native.id_to_token(index) or ""

    def is_control(self, index: int) -> bool:
        """Whether the token steers the model and is no text."""
        return index in self._control

    def _decode_one(self, index: int) -> bytes:
        if index in self._control or not 0 <= index < self.vocab_size:
            return b""
        if index in self._verbatim:
            token = self._verbatim[index]
            # Gemma's runs of spaces are tokens of this kind; elsewhere the sign is itself.
            spaces = self._to_bytes is _sentence_piece and not token.strip(SPACE)
            return b" " * len(token) if spaces else token.encode("utf-8")
        written = self._native.id_to_token(index)
        return b"" if written is None else self._to_bytes(written)

    def _variant(self, literal: bool, continues: bool) -> Native:
        """The tokenizer with markers as plain text, or without the space at the beginning."""
        with self._variants_lock:
            found = self._variants.get((literal, continues))
            if found is None:
                content = msgspec.json.decode(self.source.encode())
                if literal:
                    # Only special tokens can be switched off.
                    for token in content.get("added_tokens") or []:
                        token["special"] |= token["content"] in self.control_tokens
                if continues:
                    _never_prefix(content["pre_tokenizer"])
                found = Native.from_str(msgspec.json.encode(content).decode())
                found.encode_special_tokens = literal
                self._variants[literal, continues] = found
            return found


class _SmallParts(msgspec.Struct):
    """Parts of a ``tokenizer.json``; the vocabulary is skipped over."""

    decoder: Any = None
    pre_tokenizer: Any = None


def _metaspaces(node: Any) -> list[dict[str, Any]]:
    """The steps that write spaces as SentencePiece does, in a pre-tokenizer."""
    if not isinstance(node, dict):
        return []
    inner = [found for part in node.get("pretokenizers") or [] for found in _metaspaces(part)]
    return [node, *inner] if node.get("type") == "Metaspace" else inner


def _prefixes_once(pre_tokenizer: Any) -> bool:
    return any(step.get("prepend_scheme") == "first" for step in _metaspaces(pre_tokenizer))


def _never_prefix(pre_tokenizer: Any) -> None:
    for step in _metaspaces(pre_tokenizer):
        if step.get("prepend_scheme") == "first":
            step["prepend_scheme"] = "never"


def _byte_rule(decoder: Any) -> Callable[[str], bytes]:
    """How this tokenizer writes bytes into its tokens: GPT-2's way or SentencePiece's."""
    kinds = set(_decoder_kinds(decoder))
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
    return token.replace(SPACE, " ").encode("utf-8")
