"""One stream of tokens: a request's task on one side, the coalescer on the other.

A session is touched by both, but only between awaits and only on the event loop, so its fields need
no lock. The engine's worker thread never sees it.
"""

from __future__ import annotations

import enum
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import trio

from ds4trio.batching.guessing import Guessing
from ds4trio.engine.step import EngineInfo, SampledToken, SamplingParams, StepItem
from ds4trio.errors import ContextLengthExceeded, TokenOutOfVocabulary, WireError

__all__ = ["MAX_UNREAD", "Delivery", "EndReason", "Session", "SessionTimes", "SlotState"]

EndReason = Literal["stop", "length"]

MAX_UNREAD = 512
"""Tokens that may wait for a slow reader. Beyond this its rows rest until it has caught up."""


class SlotState(enum.Enum):
    """Where a session is when the steps in flight have succeeded. The transitions are::

    FREE -> PREFILLING -> PENDING -> IN_FLIGHT -> FREE | DONE
    any but DONE -> INVALID; any -> DONE
    """

    FREE = "free"
    """Holds a slot and has submitted nothing (or took the answer to its last ``eval``)."""
    PREFILLING = "prefilling"
    """Several tokens wait to be evaluated."""
    PENDING = "pending"
    """One token waits to be evaluated: a decode row."""
    IN_FLIGHT = "in flight"
    """Everything it wants is part of steps that run or wait to run."""
    DONE = "done"
    """Ended."""
    INVALID = "invalid"
    """Its step failed, and with it the state on the device."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """Everything that has come since the last delivery.

    Attributes:
        tokens: in order; empty only with ``end``.
        rows: how many sessions shared the step of the last token.
        end: why no more will come, or None.
    """

    tokens: list[SampledToken]
    rows: int
    end: EndReason | None


@dataclass(slots=True)
class SessionTimes:
    """When things happened, in seconds of Trio's clock, and how full the batches were."""

    opened: float
    started: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    steps: int = 0
    rows: int = 0
    last_step: float = 0.0

    @property
    def mean_batch_size(self) -> float:
        """Sessions in a step, on average over the steps this one took part in."""
        return self.rows / self.steps if self.steps else 0.0


@dataclass(eq=False, slots=True)
class Session:
    """A slot in the batch. Made by ``Coalescer.session()``; not for two tasks at once.

    Attributes:
        id: the engine's name for the sequence.
        arrival: order of arrival; the older session has the right of way.
        tokens: every token known: evaluated ones, then those that wait.
        evaluated: how many of them the engine has committed.
        in_flight: its parts of the steps that run or wait to run, in order.
        last_is_drawn: the last token was drawn and has not been evaluated yet.
        last_is_on_device: moreover the engine still holds it, so it need not be sent.
        opened_in_engine: the engine knows the sequence.
        incarnation: rises whenever the engine forgets it; what steps of an earlier one bring is not
            for it.
        cache_salt: it shares cached beginnings only with sessions of the same salt.
        user: whose it is; users are served in turn.
        reused: how many of ``evaluated`` came from the prefix cache when it was opened.
        reused_at_first: the same, of the prompt alone (it may be opened anew when preempted).
        was_preempted: its pages were taken at least once.
        charged: how many of its tokens, from the first, were charged for or came from the cache.
        suspect_until: a step failed that would have brought it to this length. It is stepped alone
            until it has got there.
        draft: guesses that a decode row of it may carry.
        guessing: sets ``draft`` by what became of the guesses; None leaves it alone.
    """

    id: int
    sampling: SamplingParams
    info: EngineInfo
    notify: Callable[[], None]
    times: SessionTimes
    cache_salt: str = field(default="", repr=False)
    user: str = field(default="", repr=False)
    arrival: int = field(default_factory=itertools.count().__next__)
    state: SlotState = SlotState.FREE
    tokens: list[int] = field(default_factory=list, repr=False)
    evaluated: int = 0
    in_flight: deque[StepItem] = field(default_factory=deque)
    last_is_drawn: bool = False
    last_is_on_device: bool = False
    opened_in_engine: bool = False
    incarnation: int = 0
    reused: int = 0
    reused_at_first: int = 0
    was_preempted: bool = False
    charged: int = 0
    suspect_until: int | None = None
    draft: int = 0
    guessing: Guessing | None = None
    _reach: int = 0
    """The farthest that a step could have brought it: pages are held up to there."""
    _remaining: int = 0
    _stop_tokens: frozenset[int] = frozenset()
    _rests_as: SlotState = SlotState.DONE
    _unread: list[SampledToken] = field(default_factory=list)
    _rows: int = 0
    _end: EndReason | None = None
    _error: WireError | None = None
    _wake: trio.Event = field(default_factory=trio.Event)

    # -- the request's side

    async def eval(self, tokens: Sequence[int] = ()) -> SampledToken:
        """Evaluate ``tokens`` and return the token drawn after them.

        Empty ``tokens`` evaluate the one drawn last. Otherwise they follow what was evaluated: a
        drawn token that its caller does not repeat is forgotten.

        Raises:
            ContextLengthExceeded, TokenOutOfVocabulary: nothing was evaluated.
            BatchFailed: the step failed; the session is invalid.
        """
        self._submit(tokens, 1, frozenset(), SlotState.FREE)
        return (await self.receive()).tokens[0]

    def start(
        self, tokens: Sequence[int], *, max_new_tokens: int, stop_tokens: frozenset[int]
    ) -> None:
        """Evaluate ``tokens`` and go on decoding, token by token, inside the batch.

        Take the tokens with ``receive()``. The end is the first of ``stop_tokens`` (not delivered),
        ``max_new_tokens``, or the end of the context.

        Raises:
            ContextLengthExceeded, TokenOutOfVocabulary: nothing was evaluated.
        """
        self._submit(tokens, max_new_tokens, stop_tokens, SlotState.DONE)

    async def receive(self) -> Delivery:
        """Wait until there is something, then take all of it.

        Raises:
            WireError: the session has failed (``BatchFailed``, ``ServerStopping``...). Tokens that
                came before are delivered first.
        """
        while not self._unread and self._end is None and self._error is None:
            self._wake = trio.Event()
            await self._wake.wait()
        await trio.lowlevel.checkpoint()
        if self._error is not None and not self._unread:
            raise self._error
        was_full = self.full
        delivery = Delivery(self._unread, self._rows, self._end)
        self._unread = []
        if was_full:
            self.notify()
        return delivery

    def _submit(
        self,
        tokens: Sequence[int],
        max_new_tokens: int,
        stop_tokens: frozenset[int],
        rests_as: SlotState,
    ) -> None:
        if self._error is not None:
            raise self._error
        if self.state is not SlotState.FREE:
            raise RuntimeError(f"a session that is {self.state.value} cannot take more tokens")
        if not tokens and not self.last_is_drawn:
            raise ValueError("there is no token to evaluate")
        for token in tokens:
            if not 0 <= token < self.info.vocab_size:
                raise TokenOutOfVocabulary(
                    f"token {token} is outside the vocabulary of {self.info.vocab_size} tokens"
                )
        known = len(self.tokens)
        if tokens:
            known += len(tokens) - self.last_is_drawn
        room = self.info.longest_sequence
        if known >= room:
            raise ContextLengthExceeded(
                f"the prompt has {known} tokens; this server has room for {room} tokens in all, "
                "prompt and answer together"
            )
        if tokens:
            if self.last_is_drawn:
                self.tokens.pop()
            self.tokens.extend(tokens)
            self.last_is_drawn = self.last_is_on_device = False
        self._remaining = min(max_new_tokens, room - known)
        self._stop_tokens = stop_tokens
        self._rests_as = rests_as
        self._end = None
        self.state = SlotState.PREFILLING
        self._update_state()
        self.notify()

    # -- the coalescer's side

    @property
    def full(self) -> bool:
        """The reader is too far behind: the session rests."""
        return len(self._unread) + self._drawn_in_flight >= MAX_UNREAD

    @property
    def runnable(self) -> bool:
        """Has something for the next step."""
        return self.state in (SlotState.PREFILLING, SlotState.PENDING) and not self.full

    @property
    def ended(self) -> bool:
        """Nothing more is wanted, or can be given."""
        return self.state in (SlotState.DONE, SlotState.INVALID)

    @property
    def live(self) -> bool:
        """May yet submit something for the step that is being gathered."""
        return self.state in (SlotState.FREE, SlotState.PREFILLING, SlotState.PENDING) and (
            not self.full
        )

    @property
    def scheduled(self) -> int:
        """Its length in the engine when the steps in flight have succeeded, and every guess."""
        return self.evaluated + sum(item.most for item in self.in_flight)

    @property
    def _drawn_in_flight(self) -> int:
        """Tokens that the steps in flight will draw, if every guess holds."""
        return sum(1 + item.draft for item in self.in_flight if item.sample)

    @property
    def waiting(self) -> int:
        """Tokens that wait to be evaluated, those not drawn yet among them."""
        return len(self.tokens) + self._drawn_in_flight - self.scheduled

    def opened(self, reused: int) -> None:
        """The engine knows it now, and ``reused`` of its tokens were in the prefix cache."""
        self.opened_in_engine = True
        self.evaluated = self.reused = self._reach = reused
        self.charged = max(self.charged, reused)
        if not self.times.steps:  # it may be preempted before its first step
            self.reused_at_first = reused
        self._update_state()

    @property
    def begun(self) -> bool:
        """Has evaluated something itself since it was opened in the engine."""
        return self.scheduled > self.reused

    def pages_for_next(self, count: int) -> int:
        """Pages that ``count`` more tokens need beyond those it holds."""
        held = self.info.pages_for(max(self.scheduled, self._reach))
        return max(self.info.pages_for(self.scheduled + count) - held, 0)

    @property
    def _next_is_on_device(self) -> bool:
        return self._drawn_in_flight > 0 or (self.last_is_on_device and not self.in_flight)

    @property
    def guesses(self) -> int:
        """How many its next row may carry: none but in a decode row, none beyond its limit."""
        if not self._next_is_on_device:
            return 0
        return max(min(self.draft, self._remaining - self._drawn_in_flight - 1), 0)

    def item(self, count: int) -> StepItem:
        """The next ``count`` waiting tokens as a part of a step; for a decode row, ``count - 1``
        guesses besides the one token that waits."""
        if self._next_is_on_device:
            return StepItem(self.id, draft=count - 1)
        start = self.scheduled
        chunk = tuple(self.tokens[start : start + count])
        return StepItem(self.id, chunk, sample=start + count == len(self.tokens))

    def planned(self, item: StepItem) -> None:
        """The item is part of a step that will run."""
        self.in_flight.append(item)
        self._reach = max(self._reach, self.scheduled)
        self._update_state()

    def committed(self, sampled: Sequence[SampledToken], rows: int, guessed: int = 0) -> int:
        """The engine has committed the oldest item in flight, in a step of ``rows`` rows and with
        so many guesses.

        Returns:
            How many of the drawn tokens it took. Those after the end of the answer are dropped.
        """
        self.evaluated += self.in_flight.popleft().evaluated(len(sampled))
        if self.guessing is not None and sampled:
            self.guessing.learn(guessed, len(sampled) - 1)
            self.draft = self.guessing.draft
        self.times.steps += 1
        self.times.rows += rows
        self.times.last_step = trio.current_time()
        self.last_is_on_device = False
        if self.evaluated == len(self.tokens):
            self.last_is_drawn = False
        if self.suspect_until is not None and self.evaluated >= self.suspect_until:
            self.suspect_until = None
        taken = 0
        for token in sampled:
            self._sampled(token, rows)
            taken += 1
            if self._end is not None:
                break
        self._update_state()
        return taken

    def take_uncharged(self) -> int:
        """Tokens to charge for now: what is evaluated, or will be when the steps in flight have
        succeeded and none of their guesses holds, less what was charged for before."""
        certain = self.evaluated + sum(item.evaluated(0) for item in self.in_flight)
        before, self.charged = self.charged, max(self.charged, certain)
        return self.charged - before

    def rolled_back(self) -> None:
        """Its steps in flight do not count. The engine still has what was committed before."""
        self.in_flight.clear()
        self._reach = self.evaluated
        self._update_state()

    def _sampled(self, sampled: SampledToken, rows: int) -> None:
        now = trio.current_time()
        if self.times.first_token is None:
            self.times.first_token = now
        self.times.last_token = now
        self.tokens.append(sampled.token)
        self.last_is_drawn = self.last_is_on_device = True
        self._rows = rows
        self._remaining -= 1
        if sampled.token in self._stop_tokens:
            self._finish("stop")
        else:
            self._unread.append(sampled)
            if self._remaining <= 0:
                self._finish("length")
        self._wake.set()

    def _finish(self, reason: EndReason) -> None:
        self.state = self._rests_as
        self._end = reason

    def _update_state(self) -> None:
        """Say what it wants next, unless it rests or has ended."""
        if self.state is SlotState.FREE or self.ended:
            return
        if self.in_flight and self._drawn_in_flight >= self._remaining:
            self.state = SlotState.IN_FLIGHT
        else:
            self.state = SlotState.PENDING if self.waiting == 1 else SlotState.PREFILLING

    def forgotten(self) -> None:
        """The engine has closed it, and holds nothing of it any more."""
        self.opened_in_engine = False
        self.incarnation += 1
        self.evaluated = self.reused = 0
        self.last_is_on_device = False
        self.in_flight.clear()

    def preempted(self) -> None:
        """Its pages were taken. All its tokens wait to be evaluated anew; none is lost."""
        self.was_preempted = True
        self.forgotten()
        self._update_state()

    def retry(self) -> None:
        """Its step failed. All its tokens wait to be evaluated anew, in steps of its own until it
        is beyond where that step would have brought it."""
        self.suspect_until = self.evaluated + self.in_flight[0].most
        self.preempted()

    def fail(self, error: WireError) -> None:
        """End with an error, which the reader gets after the tokens that came before."""
        self.state = SlotState.INVALID
        self._error = error
        self._wake.set()

    def close(self) -> None:
        """The request's task has left: nothing more is wanted."""
        if self.state is not SlotState.INVALID:
            self.state = SlotState.DONE
