"""Plain data that goes into a step of the engine and comes out of it.

Nothing here holds a tensor, so that the same values can cross to an engine in another process. The
batching floor speaks of items and results; below it, the ledger makes a command of the items, and
the runner answers that.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field

from ds4trio.errors import WireError

__all__ = [
    "Command",
    "EngineInfo",
    "Evaluated",
    "Opening",
    "Ran",
    "Refused",
    "Row",
    "SampledToken",
    "SamplingParams",
    "Step",
    "StepItem",
    "StepResult",
]

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: dividing by them says nothing more than the maximum does."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one sequence draws its tokens. Fixed when the sequence is opened.

    Attributes:
        temperature: 0 (or below 1e-5) is greedy.
        top_k: keep the k likeliest tokens; 0 keeps all.
        top_p: keep the smallest set of tokens whose probabilities reach this sum; 1 keeps all.
        min_p: keep tokens at least this fraction as likely as the likeliest; 0 keeps all.
        repetition_penalty: over prompt and output, 1 is none (CTRL, arXiv:1909.05858).
        frequency_penalty, presence_penalty: over the output only, 0 is none (OpenAI's definition).
        logit_bias: added to the logits, by token id.
        seed: of the sequence's own random stream; draw number n depends on (seed, n) alone.
        logprobs: return the log-probability of each sampled token.
        top_logprobs: and of this many likeliest tokens.
        prompt_logprobs: return the log-probability of each token of the prompt but the first, and
            of this many likeliest ones at its place; None for none. Such a sequence takes nothing
            from the prefix cache, since what is not evaluated has no logits.
        prompt_length: how many of the first tokens are prompt, for the two output penalties.
            After preemption or recovery a sequence is opened anew with its output as part of the
            tokens to prefill; this keeps penalties and the random stream where they were.
        grammar: the output is held to it: a text of ``chat.grammar.compose``. Empty for none.
        reasoning_limit: after this many tokens of output, ``reasoning_end`` is given in place of
            what would be drawn, unless it was in them. None for no limit.
        reasoning_end: the tokens that end the model's reasoning.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    logprobs: bool = False
    top_logprobs: int = 0
    prompt_logprobs: int | None = None
    prompt_length: int = 0
    grammar: str = field(default="", repr=False)
    reasoning_limit: int | None = None
    reasoning_end: tuple[int, ...] = ()

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW


@dataclass(frozen=True, slots=True)
class StepItem:
    """One sequence's part of a step.

    Attributes:
        sequence: the id it was opened under.
        tokens: ids to append and evaluate, a prefill chunk. Empty: evaluate the token that this
            sequence sampled last (a decode row); the token need not travel out and back.
        sample: draw the next token from the logits of the last position.
        draft: for a decode row, the most tokens that the engine may guess and verify with it, so
            that 1 to 1 + draft tokens come of it.
        follows: the token of the prompt behind ``tokens``, where its log-probability is wanted; the
            others that are, the engine finds in ``tokens``.
    """

    sequence: int
    tokens: tuple[int, ...] = ()
    sample: bool = True
    draft: int = 0
    follows: int | None = None

    @property
    def most(self) -> int:
        """Positions that it evaluates at most."""
        return (len(self.tokens) or 1) + self.draft

    def evaluated(self, sampled: int) -> int:
        """Positions that it did evaluate, when so many tokens came of it."""
        return (len(self.tokens) or 1) + max(sampled - 1, 0)


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A drawn token, or one of the prompt; log-probabilities are of the model's own distribution,
    natural logarithm."""

    token: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The item was evaluated and committed.

    Attributes:
        sampled: the tokens that came of it, in order: none where none was asked for, and several
            where guesses held. All but the last are evaluated too.
        guessed: how many guesses were verified with it.
        prompt: the tokens of the prompt that follow its positions, from the first, where their
            log-probabilities were asked for.
    """

    sequence: int
    sampled: tuple[SampledToken, ...]
    guessed: int = 0
    prompt: tuple[SampledToken, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """The item failed a check before any tensor moved, and its sequence is unchanged; or that one
    cannot be held to its grammar any further, and is to be closed."""

    sequence: int
    error: WireError


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step did: one outcome per item, in order, and the pool afterwards."""

    outcomes: tuple[Evaluated | Refused, ...]
    free_pages: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Opening:
    """A sequence that a runner is to know from now on.

    Attributes:
        tokens: ids of the positions that are in the cache already.
        pages: where their keys and values are.
        pending: a token that was drawn after them and waits to be evaluated.
        adapter: the name of the adapter that it is evaluated with; empty for none.
    """

    sequence: int
    sampling: SamplingParams
    tokens: array[int]
    pages: tuple[int, ...]
    pending: int | None = None
    adapter: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """What a runner does for one sequence; ``StepItem`` has the meaning of the other fields.

    Attributes:
        pages: to be appended to those the sequence has.
    """

    sequence: int
    tokens: tuple[int, ...]
    pages: tuple[int, ...]
    sample: bool
    draft: int = 0
    follows: int | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """A step as a runner gets it. Nothing in it is checked again.

    Attributes:
        number: commands are carried out in the order of their numbers, from 0, none left out.
        reset: forget every sequence first. After a command that failed a runner carries out
            nothing until it gets one like this.
        closes: sequences to forget.
        opens: sequences to begin, after that.
        rows: one for each sequence that takes part.
    """

    number: int
    reset: bool
    closes: tuple[int, ...]
    opens: tuple[Opening, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Ran:
    """What a runner says of a command.

    Attributes:
        sampled: the tokens drawn for each row.
        seconds: the time it took.
        guessed: how many guesses were verified with each row; empty where there were none.
        faults: rows whose sequence cannot go on, and why. What was drawn for them is not to be
            told; the others are as if nothing had been.
        prompts: what ``Evaluated.prompt`` is to say, by row, of those that have any.
    """

    sampled: tuple[tuple[SampledToken, ...], ...]
    seconds: float
    guessed: tuple[int, ...] = ()
    faults: Mapping[int, str] = field(default_factory=dict)
    prompts: Mapping[int, tuple[SampledToken, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Step:
    """A step that is prepared: checked, with pages for all of its rows.

    Attributes:
        items: as they were asked for.
        refused: those that failed a check, by their place; the others are the command's rows.
    """

    items: tuple[StepItem, ...]
    refused: Mapping[int, Refused]
    command: Command


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What the floors above may know of an engine.

    Attributes:
        vocab_size: ids are below this.
        context_length: the most positions a sequence can hold.
        page_size: positions in one page of the KV cache.
        total_pages: pages in the pool.
        device, dtype: for people.
        adapters: names of those that sequences may have.
    """

    vocab_size: int
    context_length: int
    page_size: int
    total_pages: int
    device: str
    dtype: str
    adapters: tuple[str, ...] = ()

    def pages_for(self, positions: int) -> int:
        """Pages that hold this many positions."""
        return -(-positions // self.page_size)

    @property
    def longest_sequence(self) -> int:
        """The most positions one sequence can have here: context, or the whole pool if smaller."""
        return min(self.context_length, self.total_pages * self.page_size)
