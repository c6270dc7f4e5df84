"""Token ids -> text, piece by piece, never half a character."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from ds4trio.chat.tokenizer import Tokenizer

__all__ = ["Detokenizer"]

_utf8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Joins the bytes of one generation's tokens and hands out complete characters.

    A character whose bytes are spread over tokens waits for its last byte. The pieces joined are
    the same however the tokens were split over calls: the UTF-8 decoding of all their bytes, with
    U+FFFD for bytes that can never be a character, less an incomplete character at the very end.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._decoder = _utf8(errors="replace")

    def push(self, tokens: Iterable[int]) -> str:
        """Take tokens, return the text that they complete. Control tokens are no text."""
        return self._decoder.decode(b"".join(map(self._token_bytes, tokens)))

    def finish(self) -> str:
        """End the generation.

        An answer cut by its token limit can end inside a character. Its bytes are dropped: an
        answer shorter by part of a character is right, a replacement mark is not. So this returns
        the empty text today; call it nevertheless, and use nothing of this object afterwards.
        """
        self._decoder.reset()
        return ""
