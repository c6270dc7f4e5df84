"""The answers to a completion on their way out: one object, or chunks."""

from __future__ import annotations

import codecs
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from ds4trio.api.accounts import timings_object, total_usage, usage_object
from ds4trio.api.completions.echo import Echo
from ds4trio.events import (
    Finished,
    GenerationEvent,
    PrefillProgress,
    PromptLogprobs,
    TextDelta,
    TokenLogprob,
    TokenText,
)

__all__ = ["CompletionAnswer"]

Logprobs = dict[str, list[Any]]
"""In the shape of this API: lists of the same length."""


class CompletionAnswer:
    """The choices of one completion: those of the first prompt, of the second, and so on.

    Args:
        model: to answer with its name.
        choices: to each prompt. What the model thinks of a prompt is told with the first one's
            events, and is repeated for the others.
        echoes: for each prompt, what is repeated of it before its answers.
        logprobs: they were asked for.
        with_usage: a stream's last chunk tells the usage.
    """

    def __init__(
        self,
        model: str,
        choices: int,
        echoes: Sequence[Echo],
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
        self._choices: list[_Choice] = []
        for echo in echoes:
            leader = _Choice(echo)
            self._choices += [leader, *(_Choice(echo, leader) for _ in range(1, choices))]
        self._began = time.monotonic()

    # -- not streamed

    def take(self, index: int, event: GenerationEvent) -> None:
        """More of a choice."""
        self._choices[index].take(event)

    def whole(self) -> dict[str, Any]:
        """The ``text_completion``, once every choice is finished."""
        choices = [
            self._choice(index, choice.text, choice.all_logprobs(), choice.finished.reason)
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
        """The chunks that repeat the prompts; with log-probabilities they come with those."""
        for index, choice in enumerate(self._choices):
            if choice.echo.text and choice.echo.first is None:
                yield self._chunk(index, choice.echo.text)

    def chunk(self, index: int, event: GenerationEvent) -> dict[str, Any] | None:
        """What a client is told of an event, if anything."""
        choice = self._choices[index]
        match event:
            case PromptLogprobs():
                return self._chunk(index, *choice.prompt_part(event.tokens))
            case TextDelta() if event.text or event.logprobs:
                text, prompt = choice.prompt_of_leader()
                logprobs = _joined(prompt, choice.logprobs(event.logprobs))
                return self._chunk(index, text + event.text, logprobs)
            case PrefillProgress():
                progress = {
                    "total": event.total,
                    "cache": event.cached,
                    "processed": event.evaluated,
                    "time_ms": int((time.monotonic() - self._began) * 1000),
                }
                return {**self._chunk(index, ""), "prompt_progress": progress}
            case Finished():
                choice.finished = event
                last = self._chunk(index, *choice.prompt_of_leader(), event.reason)
                return {**last, "timings": timings_object(event)}
        return None

    def end(self) -> Iterator[dict[str, Any]]:
        """The chunk behind the choices, if the usage was asked for."""
        if self._with_usage:
            timings = self._choices[0].finished.timings
            yield {**self._head, "choices": [], "usage": self._usage(), "ds4trio": timings}

    def _chunk(
        self,
        index: int,
        text: str,
        logprobs: Logprobs | None = None,
        reason: str | None = None,
    ) -> dict[str, Any]:
        chunk = {**self._head, "choices": [self._choice(index, text, logprobs or _none(), reason)]}
        if self._with_usage:
            chunk["usage"] = None
        return chunk

    # -- both

    def _choice(
        self, index: int, text: str, logprobs: Logprobs, reason: str | None
    ) -> dict[str, Any]:
        told = logprobs if self._logprobs_asked else None
        return {"index": index, "text": text, "logprobs": told, "finish_reason": reason}

    def _usage(self) -> dict[str, Any]:
        usages = [choice.finished.usage for choice in self._choices]
        count = self._per_prompt
        groups = [usages[place : place + count] for place in range(0, len(usages), count)]
        return usage_object(total_usage(groups))


class _Choice:
    """One answer.

    Args:
        echo: what is repeated of the prompt.
        leader: the first answer to the same prompt; None for that one.

    Attributes:
        finished: once it is.
    """

    def __init__(self, echo: Echo, leader: _Choice | None = None) -> None:
        self.finished: Finished
        self.echo = echo
        self._leader = leader
        self._prompt = _none()
        self._tokens: list[TokenLogprob] = []
        self._texts = [echo.text]
        self._characters = len(echo.text)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    @property
    def text(self) -> str:
        """The prompt's if it is repeated, and the answer's."""
        return "".join(self._texts)

    def take(self, event: GenerationEvent) -> None:
        match event:
            case PromptLogprobs():
                self.prompt_part(event.tokens)
            case TextDelta():
                self._texts.append(event.text)
                self._tokens.extend(event.logprobs)
            case Finished():
                self.finished = event

    def all_logprobs(self) -> Logprobs:
        """Of the prompt if it is repeated, and of the answer."""
        prompt = self._prompt if self._leader is None else self._leader._prompt
        return _joined(prompt, self.logprobs(self._tokens))

    def prompt_part(self, tokens: Sequence[TokenLogprob | None]) -> tuple[str, Logprobs]:
        """The next tokens of the prompt: their text, and what the model thinks of them."""
        start = len(self._prompt["tokens"])
        end = start + len(tokens)
        part = _logprobs(tokens, self.echo.offsets[start:end], self.echo.first)
        for name, told in part.items():
            self._prompt[name] += told
        return self.echo.part(start, end), part

    def prompt_of_leader(self) -> tuple[str, Logprobs]:
        """All of the prompt's, once, for a choice that is not told of them as they come."""
        leader, self._leader = self._leader, None
        if leader is None or self.echo.first is None:
            return "", _none()
        return self.echo.text, leader._prompt

    def logprobs(self, tokens: Sequence[TokenLogprob]) -> Logprobs:
        """Of the next tokens of the answer.

        An offset is the place of the first character that a token completes.
        """
        offsets: list[int] = []
        for item in tokens:
            offsets.append(self._characters)
            self._characters += len(self._decoder.decode(item.token.bytes))
        return _logprobs(tokens, offsets)


def _logprobs(
    tokens: Sequence[TokenLogprob | None],
    offsets: Sequence[int],
    first: TokenText | None = None,
) -> Logprobs:
    """``first`` is the token that is None among them: nothing is known of it but itself."""
    return {
        "tokens": [_name(item.token if item else first) for item in tokens],
        "token_logprobs": [item.token.logprob if item else None for item in tokens],
        "top_logprobs": [
            {_name(token): token.logprob for token in (*item.top, item.token)} if item else None
            for item in tokens
        ],
        "text_offset": list(offsets),
    }


def _none() -> Logprobs:
    return _logprobs((), ())


def _joined(first: Logprobs, second: Logprobs) -> Logprobs:
    return {name: [*first[name], *second[name]] for name in first}


def _name(token: TokenText | None) -> str:
    """A token's text; for one that is no whole characters its bytes, so that no two have the same
    name, in the way of OpenAI: ``bytes:\\xf0\\x9f``."""
    if token is None:
        return ""
    try:
        token.bytes.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.bytes)
    return token.text
