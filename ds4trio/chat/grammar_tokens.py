"""A model's vocabulary in the form that llguidance works with."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from llguidance import LLTokenizer, TokenizerWrapper

from ds4trio.chat.tokenizer import Tokenizer

__all__ = ["load_grammar_tokens", "make_grammar_tokens"]

LONGEST = 200
"""Bytes of a token. llguidance has no room for tokens of more than 255; they are never allowed in a
text of a given format, which shorter ones can write as well."""


def make_grammar_tokens(tokenizer: Tokenizer, *, size: int, ends: Collection[int]) -> LLTokenizer:
    """Sort the vocabulary for masks. Takes 1 to 3 s and some 30 MB, so it is done once a process.

    Args:
        tokenizer: the model's.
        size: of the model's vocabulary; ids that no token has are never allowed.
        ends: the model's end tokens, allowed where a grammar's text is complete.
    """
    host = TokenizerWrapper(_Host(tokenizer, size, ends))
    return LLTokenizer(host, n_vocab=size, eos_token=sorted(ends) or [0])


def load_grammar_tokens(path: Path, *, size: int, ends: Collection[int]) -> LLTokenizer:
    """``make_grammar_tokens`` for a ``tokenizer.json``.

    Raises:
        ModelUnavailable: as ``Tokenizer.load`` does.
    """
    return make_grammar_tokens(Tokenizer.load(path), size=size, ends=ends)


class _Host:
    """What llguidance asks of a tokenizer. Forced text is tokenised as the model would read it."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, size: int, ends: Collection[int]) -> None:
        count = min(tokenizer.vocab_size, size)
        special = {index for index in range(count) if tokenizer.is_control(index)}
        special |= {index for index in ends if index < count}
        self.special_token_ids = sorted(special)
        self.eos_token_id = min(ends, default=0)
        self.tokens = [
            tokenizer.token_name(index).encode()
            if index in special
            else _short(tokenizer.token_bytes(index))
            for index in range(count)
        ]
        self._tokenizer = tokenizer

    def __call__(self, text: bytes | str) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        return self._tokenizer.encode(text, special=False, begins=False)


def _short(token: bytes) -> bytes:
    return token if len(token) <= LONGEST else b""
