"""Prompts that are repeated before the answers to them."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from ds4trio.events import TokenText
from ds4trio.generate import GenerationRequest, Generator, Prompt

__all__ = ["Echo", "echoes"]


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt as its client sees it again.

    Attributes:
        text: of it; empty where it is not repeated.
        first: the first token, where log-probabilities are told of.
        offsets: then, where in ``text`` the first character is that each token completes, and at
            last the length of the text.
    """

    text: str = ""
    first: TokenText | None = None
    offsets: Sequence[int] = ()

    def part(self, start: int, end: int) -> str:
        """The text of these tokens."""
        return self.text[self.offsets[start] : self.offsets[end]] if start < end else ""


async def echoes(
    generator: Generator,
    asked: Sequence[GenerationRequest],
    prompts: Sequence[Prompt],
    *,
    logprobs: bool,
) -> list[Echo]:
    """One for each prompt; ``logprobs`` are told of their tokens."""
    found: list[Echo] = []
    for request, prompt in zip(asked, prompts, strict=True):
        given = request.prompt or ""
        text = (
            given if isinstance(given, str) else await generator.prompts.detokenize(prompt.tokens)
        )
        if not logprobs:
            found.append(Echo(text))
            continue
        pieces = await generator.prompts.pieces(prompt.tokens)
        first = TokenText(pieces[0].text, pieces[0].bytes, 0.0)
        found.append(Echo(text, first, _offsets(text, [piece.bytes for piece in pieces])))
    return found


def _offsets(text: str, tokens: Sequence[bytes]) -> list[int]:
    """What tokens have before the text, such as a BOS token that was added, has no place in it."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    places = [0]
    for token in tokens:
        places.append(places[-1] + len(decoder.decode(token)))
    ahead = max(places[-1] - len(text), 0)
    return [min(max(place - ahead, 0), len(text)) for place in places[:-1]] + [len(text)]
