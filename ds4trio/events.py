"""What comes out of the waist: the events of an answer, the same for every door."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "FinishReason",
    "Finished",
    "GenerationEvent",
    "PrefillProgress",
    "PromptLogprobs",
    "ReasoningDelta",
    "TextDelta",
    "Timings",
    "TokenLogprob",
    "TokenText",
    "ToolCallArguments",
    "ToolCallBegun",
    "ToolCallEnded",
    "Usage",
]

FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class TokenText:
    """A token with its log-probability, for requests that ask for it."""

    text: str
    bytes: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A drawn token, or one of the prompt, and the likeliest ones at its place."""

    token: TokenText
    top: tuple[TokenText, ...]


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """How far the prompt is: tokens evaluated (those found in the prefix cache included), of all
    of them. Only for requests that ask for it."""

    evaluated: int
    cached: int
    total: int


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """What the model thinks of the next tokens of the prompt; all of them come before the answer.

    Only for requests that ask for it.

    Attributes:
        tokens: None for the first of the prompt, which nothing comes before.
    """

    tokens: tuple[TokenLogprob | None, ...]


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
class ReasoningDelta:
    """More of what the model thinks before it answers. Attributes as in ``TextDelta``."""

    text: str
    tokens: int
    batch_size: int


@dataclass(frozen=True, slots=True)
class ToolCallBegun:
    """The model calls a function.

    Attributes:
        index: of the call in this answer, from 0.
        id: for the client to name it by when it sends the result.
        name: of the function.
    """

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """More of the JSON text of the arguments of the call that began last."""

    index: int
    text: str
    tokens: int
    batch_size: int


@dataclass(frozen=True, slots=True)
class ToolCallEnded:
    """The arguments of the call that began last are complete: all of their JSON text. A call that a
    token limit cuts ends too, with what there is of it."""

    index: int
    arguments: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of the prompt and of the answer (an end token or a stop text's tokens included).

    ``reasoning_tokens`` are part of ``output_tokens``, ``cached_tokens`` of ``input_tokens``.
    """

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


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
    """The last event.

    Attributes:
        reason: ``stop`` is the model's end token or a stop text, ``length`` a limit of tokens,
            ``tool_calls`` an end after at least one call.
        stop: the stop text of the request that ended it, if one did.
    """

    reason: FinishReason
    usage: Usage
    timings: Timings
    stop: str | None = None


GenerationEvent = (
    PrefillProgress
    | PromptLogprobs
    | TextDelta
    | ReasoningDelta
    | ToolCallBegun
    | ToolCallArguments
    | ToolCallEnded
    | Finished
)
