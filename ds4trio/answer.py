"""From drawn tokens to the events of an answer."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from ds4trio.batching.mailbox import Delivery
from ds4trio.chat.detokenizer import Detokenizer
from ds4trio.chat.output import (
    CallArguments,
    CallBegun,
    CallEnded,
    Inside,
    OutputParser,
    Piece,
    ReasoningText,
    Text,
)
from ds4trio.chat.stops import StopMatcher
from ds4trio.chat.tokenizer import Tokenizer
from ds4trio.engine.step import SampledToken
from ds4trio.events import (
    FinishReason,
    GenerationEvent,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    TokenText,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallEnded,
)

__all__ = ["Answer"]


class Answer:
    """One answer as it comes.

    Each token is taken by itself, so that the events joined are the same however many tokens came
    at a time. Stop texts are looked for in the answer's text, not in reasoning or tool calls.

    Args:
        parser: takes it apart.
        stop: the request's stop texts.
        ends: the model's, which are not told of.

    Attributes:
        end: why there is no more, once that is so.
        stop: the stop text of the request that ended it.
        tokens: how many it has, the end token and those of a stop text included.
        reasoning_tokens: how many of them are reasoning.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        parser: OutputParser,
        *,
        stop: Sequence[str] = (),
        ends: Sequence[str] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._parser = parser
        self._told = frozenset(stop)
        self._stops = StopMatcher([*stop, *ends])
        self._detokenizer = Detokenizer(tokenizer)
        self._arguments: list[str] = []
        self._calls = 0
        self._ended_by: str | None = None
        self.end: FinishReason | None = None
        self.stop: str | None = None
        self.tokens = 0
        self.reasoning_tokens = 0

    def take(self, delivery: Delivery) -> list[GenerationEvent]:
        """The events of what has come; neighbours of a kind are one."""
        events = _Events(delivery.rows)
        for sampled in delivery.tokens:
            inside = self._parser.inside
            self.tokens += 1
            self.reasoning_tokens += inside == "reasoning"
            events.token(inside, self.logprob(sampled) if inside == "text" else None)
            text = self._detokenizer.push([sampled.token])
            self._tell(self._parser.push(sampled.token, text), events)
            if self._ended_by is not None:
                break  # how much was drawn beyond depends on how fast the client reads
        if delivery.end is not None and self._ended_by is None:
            self.tokens += delivery.end == "stop"
            self._tell(self._parser.finish(cut=delivery.end == "length"), events)
            if self._ended_by is None:
                events.text(self._stops.finish())
        if self._ended_by is not None:
            self.end = "stop"
            self.stop = self._ended_by if self._ended_by in self._told else None
        elif delivery.end is not None:
            self.end = "tool_calls" if self._calls and delivery.end == "stop" else delivery.end
        return events.all()

    def _tell(self, pieces: Sequence[Piece], events: _Events) -> None:
        for piece in pieces:
            match piece:
                case Text(text):
                    safe, self._ended_by = self._stops.push(text)
                    events.text(safe)
                    if self._ended_by is not None:
                        return
                case ReasoningText(text):
                    events.reasoning(text)
                case CallBegun(name):
                    self._arguments = []
                    call_id = f"call_{uuid.uuid4().hex[:24]}"
                    events.add(ToolCallBegun(self._calls, call_id, name))
                    self._calls += 1
                case CallArguments(text):
                    self._arguments.append(text)
                    events.arguments(self._calls - 1, text)
                case CallEnded():
                    events.add(ToolCallEnded(self._calls - 1, "".join(self._arguments)))

    def logprob(self, sampled: SampledToken) -> TokenLogprob | None:
        """With the texts of the tokens; None where it was not asked for."""
        if sampled.logprob is None:
            return None
        return TokenLogprob(
            self._token_text(sampled.token, sampled.logprob),
            tuple(self._token_text(token, logprob) for token, logprob in sampled.top_logprobs),
        )

    def _token_text(self, token: int, logprob: float) -> TokenText:
        return TokenText(
            self._tokenizer.token_text(token), self._tokenizer.token_bytes(token), logprob
        )


class _Events:
    """The events of one delivery.

    A token counts for the event that it completes; one that completes none, for an event of its
    kind without text.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._events: list[GenerationEvent] = []
        self._tokens = 0
        self._logprobs: tuple[TokenLogprob, ...] = ()
        self._inside: Inside = "text"

    def token(self, inside: Inside, logprob: TokenLogprob | None) -> None:
        """A token has come, and what it says is told next."""
        if inside != self._inside:
            self._settle()
        self._inside = inside
        self._tokens += 1
        if logprob is not None:
            self._logprobs += (logprob,)

    def text(self, text: str) -> None:
        if not text:
            return
        tokens, logprobs = self._counted()
        if self._events and isinstance(last := self._events[-1], TextDelta):
            text, tokens = last.text + text, last.tokens + tokens
            logprobs = last.logprobs + logprobs
            self._events.pop()
        self._events.append(TextDelta(text, tokens, logprobs, self._rows))

    def reasoning(self, text: str) -> None:
        tokens, _ = self._counted()
        if self._events and isinstance(last := self._events[-1], ReasoningDelta):
            text, tokens = last.text + text, last.tokens + tokens
            self._events.pop()
        self._events.append(ReasoningDelta(text, tokens, self._rows))

    def arguments(self, index: int, text: str) -> None:
        tokens, _ = self._counted()
        if self._events and isinstance(last := self._events[-1], ToolCallArguments):
            text, tokens = last.text + text, last.tokens + tokens
            self._events.pop()
        self._events.append(ToolCallArguments(index, text, tokens, self._rows))

    def add(self, event: ToolCallBegun | ToolCallEnded) -> None:
        self._events.append(event)

    def all(self) -> list[GenerationEvent]:
        self._settle()
        return self._events

    def _counted(self) -> tuple[int, tuple[TokenLogprob, ...]]:
        counted = self._tokens, self._logprobs
        self._tokens, self._logprobs = 0, ()
        return counted

    def _settle(self) -> None:
        """Tokens that have completed nothing are told of without text."""
        if not self._tokens:
            return
        if self._inside == "reasoning":
            self.reasoning("")
            return
        tokens, logprobs = self._counted()
        if self._events and isinstance(last := self._events[-1], TextDelta):
            self._events[-1] = TextDelta(
                last.text, last.tokens + tokens, last.logprobs + logprobs, self._rows
            )
        else:
            self._events.append(TextDelta("", tokens, logprobs, self._rows))
