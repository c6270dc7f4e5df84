"""Control tokens in the text of an answer.

A control token has no text, and the marker that it is must not be mistaken for the same characters
that a model spells. So each control token that matters becomes a lone surrogate: UTF-8 has none,
and no text that a model writes can forge one. What reads the answer then sees characters only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ds4trio.chat.patterns import any_of
from ds4trio.chat.tokenizer import Tokenizer

__all__ = ["Signs", "without_signs"]

SIGN = re.compile("[\ud800-\udfff]")
MOST = 0x800


class Signs:
    """The signs of one model.

    Args:
        markers: texts that have control tokens in them, or are ordinary text.

    Attributes:
        of: the sign of a token id.
        control: texts of the tokens that have one, with their ids.
    """

    def __init__(self, tokenizer: Tokenizer, markers: Iterable[str]) -> None:
        written = "\n".join(markers)
        self.control: dict[str, int] = {}
        for text in tokenizer.control_tokens:
            index = tokenizer.token_id(text)
            if text and text in written and index is not None and tokenizer.is_control(index):
                self.control[text] = index
        names = list(self.control)[:MOST]
        self.control = {name: self.control[name] for name in names}
        self._sign = {name: chr(0xD800 + number) for number, name in enumerate(names)}
        self._name = {sign: name for name, sign in self._sign.items()}
        self.of = {self.control[name]: sign for name, sign in self._sign.items()}
        self._pattern = any_of(names)

    def spell(self, marker: str) -> str:
        """A marker as it comes in an answer of this model."""
        if self._pattern is None:
            return marker
        return self._pattern.sub(lambda match: self._sign[match.group()], marker)

    def parts(self, spelled: str) -> list[tuple[str, int | None]]:
        """Its texts, and its control tokens with their ids, in order."""
        parts: list[tuple[str, int | None]] = []
        for character in spelled:
            name = self._name.get(character)
            if name is not None:
                parts.append((name, self.control[name]))
            elif parts and parts[-1][1] is None:
                parts[-1] = (parts[-1][0] + character, None)
            else:
                parts.append((character, None))
        return parts


def without_signs(text: str) -> str:
    """Control tokens are no text."""
    return text if text.isascii() else SIGN.sub("", text)
