"""The waist: every door calls ``Generator``, and nothing below it.

A door turns its wire format into a ``GenerationRequest``; ``prepare`` refuses what is wrong with it
while a plain HTTP error can still be sent; ``generate`` yields plain events, which the door turns
back into its wire format.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import trio

from ds4trio.batching.coalescer import Coalescer
from ds4trio.batching.session import Session
from ds4trio.chat.detokenizer import Detokenizer
from ds4trio.chat.stops import StopMatcher
from ds4trio.chat.template import ChatTemplate, encode_prompt
from ds4trio.chat.tokenizer import Tokenizer
from ds4trio.engine.step import SampledToken, SamplingParams
from ds4trio.errors import ContextLengthExceeded, InternalError, InvalidRequest, WireError
from ds4trio.sampling import Sampling

__all__ = [
    "Finished",
    "GenerationEvent",
    "GenerationRequest",
    "Generator",
    "Prompt",
    "Sampling",
    "TextDelta",
    "Timings",
    "TokenText",
    "Usage",
]

_log = logging.getLogger(__name__)

FinishReason = Literal["stop", "length"]

LONG_TEXT = 16_000
"""Characters beyond which a prompt is tokenised in a worker thread (about 10 ms of work)."""

PER_MESSAGE = 100
"""Characters that writing a message costs besides its content."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What every door asks for.

    Attributes:
        messages: the conversation, each with ``role`` and ``content`` (text).
        max_tokens: most tokens of the answer, or None for the server's default.
        stop: texts that end the answer; they are not part of it.
        cache_salt: cached beginnings are shared only between requests of the same salt, so that
            how fast an answer comes tells nobody what others have asked.
        user: who asks; users are served in turn.
        adapter: the name of the one to answer with; empty for the model alone.
    """

    messages: Sequence[Mapping[str, Any]]
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None
    stop: Sequence[str] = ()
    cache_salt: str = ""
    user: str = ""
    adapter: str = ""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request that was checked and tokenised."""

    tokens: list[int]
    sampling: SamplingParams
    max_tokens: int
    stop: tuple[str, ...]
    cache_salt: str
    user: str
    adapter: str


@dataclass(frozen=True, slots=True)
class TokenText:
    """A token with its log-probability, for requests that ask for it."""

    text: str
    bytes: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A drawn token and the likeliest ones at its place."""

    token: TokenText
    top: tuple[TokenText, ...]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the answer: everything since the last event.

    Attributes:
        text: whole characters; may be empty while a character or a stop text is incomplete.
        tokens: how many tokens have come since the last event.
        logprobs: one for each of them, if they were asked for.
        batch_size: sessions that shared the latest step.
    """

    text: str
    tokens: int
    logprobs: tuple[TokenLogprob, ...]
    batch_size: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of the prompt and of the answer (an end token or a stop text's tokens included)."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time went, in seconds, and how full the batches were."""

    queue_seconds: float
    first_token_seconds: float
    decode_seconds: float
    tokens_per_second: float
    mean_batch_size: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event."""

    reason: FinishReason
    usage: Usage
    timings: Timings


GenerationEvent = TextDelta | Finished


class Generator:
    """Text in, events out: joins template, tokenizer and coalescer.

    Args:
        coalescer: runs elsewhere.
        stop_tokens: ids that end an answer.
        bos_token, add_bos: the model's BOS token, and whether a prompt must begin with it.
        default_max_tokens: for requests that name no limit.
    """

    def __init__(
        self,
        coalescer: Coalescer,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        *,
        stop_tokens: frozenset[int],
        bos_token: str | None,
        add_bos: bool,
        default_max_tokens: int,
    ) -> None:
        self.coalescer = coalescer
        self._tokenizer = tokenizer
        self._template = template
        self._stop_tokens = stop_tokens
        self._bos_token = bos_token
        self._add_bos = add_bos
        self._default_max_tokens = default_max_tokens
        self._one_long_text_at_a_time = trio.CapacityLimiter(1)

    async def prepare(self, request: GenerationRequest) -> Prompt:
        """Check, render and tokenise.

        Raises:
            InvalidRequest, ContextLengthExceeded, TokenOutOfVocabulary: with the field at fault.
            ServerBusy, ServerStopping: it could not even wait.
        """
        self.coalescer.check_capacity()
        request.sampling.check(self.coalescer.info.vocab_size)
        if request.max_tokens is not None and request.max_tokens < 1:
            raise InvalidRequest("the answer needs room for at least 1 token", param="max_tokens")
        if any(not stop for stop in request.stop):
            raise InvalidRequest("a stop text must not be empty", param="stop")
        if not request.messages:
            raise InvalidRequest("there must be at least one message", param="messages")
        tokens = await self._tokens(request.messages)
        if not tokens:
            raise InvalidRequest("the prompt is empty", param="messages")
        if len(tokens) >= self.coalescer.info.longest_sequence:
            raise self._too_long(f"{len(tokens)}")
        return Prompt(
            tokens=tokens,
            sampling=request.sampling.params(len(tokens)),
            max_tokens=request.max_tokens or self._default_max_tokens,
            stop=(*request.stop, *self._template.ends),
            cache_salt=request.cache_salt,
            user=request.user,
            adapter=request.adapter,
        )

    async def generate(self, prompt: Prompt) -> AsyncGenerator[GenerationEvent, None]:
        """Answer a prompt. Close it (``contextlib.aclosing``) to cancel.

        Raises:
            WireError: ``BatchFailed``, ``ServerBusy``, ``ServerStopping``; a defect of ours is
                logged and raised as ``InternalError``.
        """
        try:
            async with contextlib.aclosing(self._generate(prompt)) as events:
                async for event in events:
                    yield event
        except WireError:
            raise
        except Exception as error:
            _log.error("an answer failed for a reason that is ours", exc_info=error)
            raise InternalError("the server failed; its log says why") from error

    async def _generate(self, prompt: Prompt) -> AsyncGenerator[GenerationEvent, None]:
        opened = self.coalescer.session(
            prompt.sampling,
            cache_salt=prompt.cache_salt,
            user=prompt.user,
            adapter=prompt.adapter,
        )
        async with opened as session:
            session.start(
                prompt.tokens, max_new_tokens=prompt.max_tokens, stop_tokens=self._stop_tokens
            )
            detokenizer = Detokenizer(self._tokenizer)
            stops = StopMatcher(prompt.stop)
            output_tokens = 0
            while True:
                delivery = await session.receive()
                text, matched = "", None
                tokens: list[SampledToken] = []
                for sampled in delivery.tokens:
                    tokens.append(sampled)
                    safe, matched = stops.push(detokenizer.push([sampled.token]))
                    text += safe
                    if matched is not None:
                        break  # how much was drawn beyond depends on how fast the client reads
                output_tokens += len(tokens)
                if delivery.end is not None and matched is None:
                    tail, matched = stops.push(detokenizer.finish())
                    text += tail
                    if matched is None:
                        text += stops.finish()
                if text or tokens:
                    yield self._delta(text, tokens, delivery.rows)
                if matched is not None:
                    yield _finished("stop", prompt, output_tokens, session)
                    return
                if delivery.end is not None:
                    output_tokens += delivery.end == "stop"
                    yield _finished(delivery.end, prompt, output_tokens, session)
                    return

    async def _tokens(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Render and tokenise; what takes long does not hold the event loop."""
        # Everything that a template might write counts for where it is done...
        size = sum(len(str(part)) for message in messages for part in message.values())
        if size + PER_MESSAGE * len(messages) <= LONG_TEXT:
            return self._encode(messages)
        # ...and what every template writes, for whether it can fit at all.
        written = sum(len(message.get("content") or "") for message in messages)
        least = written // self._tokenizer.longest_token
        if least >= self.coalescer.info.longest_sequence:
            raise self._too_long(f"at least {least}")
        # One at a time: a long text takes hundreds of times its size while it is tokenised.
        return await trio.to_thread.run_sync(
            self._encode, messages, limiter=self._one_long_text_at_a_time
        )

    def _too_long(self, tokens: str) -> ContextLengthExceeded:
        room = self.coalescer.info.longest_sequence
        return ContextLengthExceeded(
            f"the prompt has {tokens} tokens, and this server's context holds {room} tokens, "
            "prompt and answer together; please shorten the conversation",
            param="messages",
        )

    def _encode(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        segments = self._template.render([dict(message) for message in messages])
        return encode_prompt(
            self._tokenizer, segments, bos_token=self._bos_token, add_bos=self._add_bos
        )

    def _delta(self, text: str, tokens: Sequence[SampledToken], rows: int) -> TextDelta:
        logprobs = tuple(self._logprob(token) for token in tokens if token.logprob is not None)
        return TextDelta(text, len(tokens), logprobs, rows)

    def _logprob(self, sampled: SampledToken) -> TokenLogprob:
        assert sampled.logprob is not None
        return TokenLogprob(
            self._token_text(sampled.token, sampled.logprob),
            tuple(self._token_text(token, logprob) for token, logprob in sampled.top_logprobs),
        )

    def _token_text(self, token: int, logprob: float) -> TokenText:
        return TokenText(
            self._tokenizer.token_text(token), self._tokenizer.token_bytes(token), logprob
        )


def _finished(
    reason: FinishReason, prompt: Prompt, output_tokens: int, session: Session
) -> Finished:
    times = session.times
    started = times.started if times.started is not None else times.opened
    first = times.first_token if times.first_token is not None else trio.current_time()
    last = times.last_token if times.last_token is not None else first
    decode = last - first
    return Finished(
        reason,
        Usage(len(prompt.tokens), output_tokens, session.reused_at_first),
        Timings(
            queue_seconds=started - times.opened,
            first_token_seconds=first - times.opened,
            decode_seconds=decode,
            tokens_per_second=(output_tokens - 1) / decode if decode > 0 else 0.0,
            mean_batch_size=times.mean_batch_size,
        ),
    )
