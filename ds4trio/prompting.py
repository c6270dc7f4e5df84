"""From what a request says to the token ids of its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import trio

from ds4trio.chat.template import ChatTemplate, Segment, encode_prompt
from ds4trio.chat.tokenizer import Tokenizer
from ds4trio.errors import ContextLengthExceeded, InvalidRequest, TokenOutOfVocabulary
from ds4trio.request import GenerationRequest

__all__ = ["LONG_TEXT", "PromptWriter", "Written"]

LONG_TEXT = 16_000
"""Characters beyond which a prompt is tokenised in a worker thread (about 10 ms of work)."""

PER_MESSAGE = 100
"""Characters that writing a message costs besides its content."""

TAIL = 200
"""Characters from the end of a prompt that tell how the answer begins."""


@dataclass(frozen=True, slots=True)
class Written:
    """A prompt.

    Attributes:
        tokens: its ids, at least one.
        tail: the end of its text; empty where it was given as ids.
    """

    tokens: list[int]
    tail: str


class PromptWriter:
    """Renders and tokenises; what takes long does not hold the event loop.

    Args:
        bos_token, add_bos: the model's BOS token, and whether a prompt must begin with it.
        vocab_size: ids are below it.
        room: positions that prompt and answer can have together.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        *,
        bos_token: str | None,
        add_bos: bool,
        vocab_size: int,
        room: int,
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._bos_token = bos_token
        self._add_bos = add_bos
        self._vocab_size = vocab_size
        self._room = room
        self._one_long_text_at_a_time = trio.CapacityLimiter(1)

    async def write(self, request: GenerationRequest) -> Written:
        """The prompt of a request.

        Raises:
            InvalidRequest, ContextLengthExceeded, TokenOutOfVocabulary: with the field at fault.
        """
        if request.prompt is None:
            field = "messages"
            if not request.messages:
                raise InvalidRequest("there must be at least one message", param=field)
            # Everything that a template might write counts for where it is done...
            size = sum(len(str(part)) for message in request.messages for part in message.values())
            size += PER_MESSAGE * len(request.messages)
            # ...and what every template writes, for whether it can fit at all.
            contents = [message.get("content") for message in request.messages]
            least = sum(len(content) for content in contents if isinstance(content, str))
        elif isinstance(request.prompt, str):
            field = "prompt"
            size = least = len(request.prompt)
        else:
            written = Written(self._checked(request.prompt), "")
            return self._fitting(written, "prompt")
        if size <= LONG_TEXT:
            return self._fitting(self._written(request), field)
        if (tokens := least // self._tokenizer.longest_token) >= self._room:
            raise self._too_long(f"at least {tokens}", field)
        # One at a time: a long text takes hundreds of times its size while it is tokenised.
        written = await trio.to_thread.run_sync(
            self._written, request, limiter=self._one_long_text_at_a_time
        )
        return self._fitting(written, field)

    def text(self, tokens: Sequence[int]) -> str:
        """What ids stand for, control tokens by name; U+FFFD for bytes that are no character."""
        pieces = [
            self._tokenizer.token_text(token).encode()
            if self._tokenizer.is_control(token)
            else self._tokenizer.token_bytes(token)
            for token in tokens
        ]
        return b"".join(pieces).decode(errors="replace")

    def _written(self, request: GenerationRequest) -> Written:
        if isinstance(request.prompt, str):
            segments = [Segment(request.prompt, special=True)]
        else:
            segments = self._template.render([dict(message) for message in request.messages])
        tokens = encode_prompt(
            self._tokenizer, segments, bos_token=self._bos_token, add_bos=self._add_bos
        )
        return Written(tokens, "".join(segment.text for segment in segments[-3:])[-TAIL:])

    def _checked(self, tokens: Sequence[int]) -> list[int]:
        for token in tokens:
            if not 0 <= token < self._vocab_size:
                raise TokenOutOfVocabulary(
                    f"the prompt names token {token}, and the vocabulary has "
                    f"{self._vocab_size} tokens",
                    param="prompt",
                )
        return list(tokens)

    def _fitting(self, written: Written, field: str) -> Written:
        if not written.tokens:
            raise InvalidRequest("the prompt is empty", param=field)
        if len(written.tokens) >= self._room:
            raise self._too_long(f"{len(written.tokens)}", field)
        return written

    def _too_long(self, tokens: str, field: str) -> ContextLengthExceeded:
        return ContextLengthExceeded(
            f"the prompt has {tokens} tokens, and this server's context holds {self._room} tokens, "
            "prompt and answer together; please shorten the conversation",
            param=field,
        )
