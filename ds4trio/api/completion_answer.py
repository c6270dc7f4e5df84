"""The answers to a completion on their way out: one object, or chunks."""

from __future__ import annotations

import codecs
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from ds4trio.api.accounts import timings_object, total_usage, usage_object
from ds4trio.events import (
    Finished,
    GenerationEvent,
    PrefillProgress,
    TextDelta,
    TokenLogprob,
    TokenText,
)

__all__ = ["CompletionAnswer"]


class CompletionAnswer:
    """The choices of one completion: those of the first prompt, of the second, and so on.

    Args:
        model: to answer with its name.
        choices: to each prompt.
        echoes: for each prompt, the text that is repeated before its answers, if any.
        logprobs: they were asked for.
        with_usage: a stream's last chunk tells the usage.
    """

    def __init__(
        self,
        model: str,
        choices: int,
        echoes: Sequence[str],
        *,
        logprobs: bool,
        with_usage: bool,
    ) -> None:
        self._head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._logprobs_asked = logprobs
        self._with_usage = with_usage
        self._per_prompt = choices
        self._choices = [_Choice(text) for text in echoes for _ in range(choices)]
        self._began = time.monotonic()

    # -- not streamed

    def take(self, index: int, event: GenerationEvent) -> None:
        """More of a choice."""
        self._choices[index].take(event)

    def whole(self) -> dict[str, Any]:
        """The ``text_completion``, once every choice is finished."""
        choices = [
            self._choice(index, choice.text, choice.tokens, choice.finished.reason)
            for index, choice in enumerate(self._choices)
        ]
        first = self._choices[0].finished
        return {
            **self._head,
            "choices": choices,
            "usage": self._usage(),
            "timings": timings_object(first),
            "ds4trio": first.timings,
        }

    # -- streamed

    def begin(self) -> Iterator[dict[str, Any]]:
        """The chunks that repeat the prompts."""
        for index, choice in enumerate(self._choices):
            if choice.text:
                yield self._chunk(index, choice.text, ())

    def chunk(self, index: int, event: GenerationEvent) -> dict[str, Any] | None:
        """What a client is told of an event, if anything."""
        match event:
            case TextDelta() if event.text or event.logprobs:
                return self._chunk(index, event.text, event.logprobs)
            case PrefillProgress():
                progress = {
                    "total": event.total,
                    "cache": event.cached,
                    "processed": event.evaluated,
                    "time_ms": int((time.monotonic() - self._began) * 1000),
                }
                return {**self._chunk(index, "", ()), "prompt_progress": progress}
            case Finished():
                self._choices[index].finished = event
                last = self._chunk(index, "", (), event.reason)
                return {**last, "timings": timings_object(event)}
        return None

    def end(self) -> Iterator[dict[str, Any]]:
        """The chunk behind the choices, if the usage was asked for."""
        if self._with_usage:
            timings = self._choices[0].finished.timings
            yield {**self._head, "choices": [], "usage": self._usage(), "ds4trio": timings}

    def _chunk(
        self, index: int, text: str, tokens: Sequence[TokenLogprob], reason: str | None = None
    ) -> dict[str, Any]:
        chunk = {**self._head, "choices": [self._choice(index, text, tokens, reason)]}
        if self._with_usage:
            chunk["usage"] = None
        return chunk

    # -- both

    def _choice(
        self, index: int, text: str, tokens: Sequence[TokenLogprob], reason: str | None
    ) -> dict[str, Any]:
        logprobs = self._choices[index].logprobs(tokens) if self._logprobs_asked else None
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def _usage(self) -> dict[str, Any]:
        usages = [choice.finished.usage for choice in self._choices]
        count = self._per_prompt
        groups = [usages[place : place + count] for place in range(0, len(usages), count)]
        return usage_object(total_usage(groups))


class _Choice:
    """One answer.

    Attributes:
        tokens: log-probabilities, not streamed.
        finished: once it is.
    """

    def __init__(self, text: str) -> None:
        self.finished: Finished
        self.tokens: list[TokenLogprob] = []
        self._texts = [text]
        self._characters = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    @property
    def text(self) -> str:
        """The prompt's if it is repeated, and, not streamed, the answer's."""
        return "".join(self._texts)

    def take(self, event: GenerationEvent) -> None:
        match event:
            case TextDelta():
                self._texts.append(event.text)
                self.tokens.extend(event.logprobs)
            case Finished():
                self.finished = event

    def logprobs(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Of the next tokens of the answer, in the shape of this API.

        An offset is the place of the first character that a token completes.
        """
        offsets: list[int] = []
        for item in tokens:
            offsets.append(self._characters)
            self._characters += len(self._decoder.decode(item.token.bytes))
        return {
            "tokens": [_name(item.token) for item in tokens],
            "token_logprobs": [item.token.logprob for item in tokens],
            "top_logprobs": [
                {_name(token): token.logprob for token in (*item.top, item.token)}
                for item in tokens
            ],
            "text_offset": offsets,
        }


def _name(token: TokenText) -> str:
    """A token's text; for one that is no whole characters its bytes, so that no two have the same
    name, in the way of OpenAI: ``bytes:\\xf0\\x9f``."""
    try:
        token.bytes.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.bytes)
    return token.text
