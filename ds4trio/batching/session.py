"""One stream of tokens: a request's task on one side, the coalescer on the other.

A session is touched by both, but only between awaits and only on the event loop, so its fields need
no lock. The engine's worker thread never sees it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import trio

from ds4trio.batching.guessing import Guessing
from ds4trio.batching.mailbox import Delivery, EndReason, Mailbox, Progress
from ds4trio.batching.slot_state import SlotState
from ds4trio.batching.token_sequence import TokenSequence
from ds4trio.engine.step import SampledToken, SamplingParams, StepItem
from ds4trio.errors import ContextLengthExceeded, TokenOutOfVocabulary, WireError

__all__ = ["MAX_UNREAD", "Session", "SessionTimes"]

MAX_UNREAD = 512
"""Tokens that may wait for a slow reader, those told of its prompt too. Beyond this its rows rest
until it has caught up."""


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
class Session(TokenSequence):
    """A slot in the batch. Made by ``Coalescer.session()``; not for two tasks at once.

    Attributes:
        arrival: order of arrival; the older session has the right of way.
        sampling: how it draws.
        notify: called when it has something for the next step.
        cache_salt: it shares cached beginnings only with sessions of the same salt.
        user: whose it is; users are served in turn.
        adapter: the name of the one it is evaluated with; empty for none.
        opened_in_engine: the engine knows the sequence.
        incarnation: rises whenever the engine forgets it; what steps of an earlier one bring is not
            for it.
        reused_at_first: how many tokens of the prompt came from the prefix cache. (It may be opened
            anew when preempted; ``reused`` is of the last time.)
        was_preempted: its pages were taken at least once.
        suspect_until: a step failed that would have brought it to this length. It is stepped alone
            until it has got there.
        lone_deaths: how often the engine's process has died in such a step of it.
        draft: guesses that a decode row of it may carry.
        guessing: sets ``draft`` by what became of the guesses; None leaves it alone.
    """

    sampling: SamplingParams
    notify: Callable[[], None]
    times: SessionTimes
    cache_salt: str = field(default="", repr=False)
    user: str = field(default="", repr=False)
    adapter: str = ""
    arrival: int = field(default_factory=itertools.count().__next__)
    state: SlotState = SlotState.FREE
    opened_in_engine: bool = False
    incarnation: int = 0
    reused_at_first: int = 0
    was_preempted: bool = False
    suspect_until: int | None = None
    lone_deaths: int = 0
    draft: int = 0
    guessing: Guessing | None = None
    _remaining: int = 0
    _stop_tokens: frozenset[int] = frozenset()
    _rests_as: SlotState = SlotState.DONE
    _awaited: int = 0  # tokens of the prompt, while its reader wants to know how far it is
    _told: int = 0
    _next_scored: int = 1  # nothing comes before the first token of a prompt
    _mailbox: Mailbox = field(default_factory=Mailbox, repr=False)

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
        self,
        tokens: Sequence[int],
        *,
        max_new_tokens: int,
        stop_tokens: frozenset[int],
        progress: bool = False,
    ) -> None:
        """Evaluate ``tokens`` and go on decoding, token by token, inside the batch.

        Take the tokens with ``receive()``. The end is the first of ``stop_tokens`` (not delivered),
        ``max_new_tokens``, or the end of the context. With ``progress`` deliveries also come while
        ``tokens`` are evaluated; what they tell never falls, also when it is done anew. Where
        ``sampling`` asks for it, they bring each token of the prompt but the first, once.

        Raises:
            ContextLengthExceeded, TokenOutOfVocabulary: nothing was evaluated.
        """
        if self.sampling.prompt_logprobs is not None:
            self.scored = self.sampling.prompt_length
        self._submit(tokens, max_new_tokens, stop_tokens, SlotState.DONE)
        self._awaited, self._told = len(self.tokens) * progress, 0

    async def receive(self) -> Delivery:
        """Wait until there is something, then take all of it.

        Raises:
            WireError: the session has failed (``BatchFailed``, ``ServerStopping``...). Tokens that
                came before are delivered first.
        """
        delivery = await self._mailbox.take()
        if len(delivery.tokens) + len(delivery.prompt) + self.drawn_in_flight >= MAX_UNREAD:
            self.notify()  # it was full
        return delivery

    def _submit(
        self,
        tokens: Sequence[int],
        max_new_tokens: int,
        stop_tokens: frozenset[int],
        rests_as: SlotState,
    ) -> None:
        if self._mailbox.error is not None:
            raise self._mailbox.error
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
            self.append(tokens)
        self._remaining = min(max_new_tokens, room - known)
        self._stop_tokens = stop_tokens
        self._rests_as = rests_as
        self._mailbox.reopen()
        self.state = SlotState.PREFILLING
        self._update_state()
        self.notify()

    # -- the coalescer's side

    @property
    def full(self) -> bool:
        """The reader is too far behind: the session rests."""
        return len(self._mailbox) + self.drawn_in_flight >= MAX_UNREAD

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

    def opened(self, reused: int) -> None:
        """The engine knows it now, and ``reused`` of its tokens were in the prefix cache."""
        self.opened_in_engine = True
        self.found_in_cache(reused)
        if not self.times.steps:  # it may be preempted before its first step
            self.reused_at_first = reused
        self._update_state()

    @property
    def guesses(self) -> int:
        """How many its next row may carry: none but in a decode row, none beyond its limit."""
        if not self.next_is_on_device:
            return 0
        return max(min(self.draft, self._remaining - self.drawn_in_flight - 1), 0)

    def planned(self, item: StepItem) -> None:
        """The item is part of a step that will run."""
        self.taken_off(item)
        self._update_state()

    def committed(
        self,
        sampled: Sequence[SampledToken],
        rows: int,
        guessed: int = 0,
        prompt: Sequence[SampledToken] = (),
    ) -> int:
        """The engine has committed the oldest item in flight, in a step of ``rows`` rows and with
        so many guesses. ``prompt`` are the tokens of the prompt that follow its positions.

        Returns:
            How many of the drawn tokens it took. Those after the end of the answer are dropped.
        """
        if self.scored:
            self._tell_prompt(prompt)
        self.landed(len(sampled))
        if self.guessing is not None and sampled:
            self.guessing.learn(guessed, len(sampled) - 1)
            self.draft = self.guessing.draft
        self.times.steps += 1
        self.times.rows += rows
        self.times.last_step = trio.current_time()
        if self.suspect_until is not None and self.evaluated >= self.suspect_until:
            self.suspect_until, self.lone_deaths = None, 0
        if self._awaited:
            self._tell_progress()
        taken = 0
        for token in sampled:
            self._sampled(token, rows)
            taken += 1
            if self._mailbox.end is not None:
                break
        self._update_state()
        return taken

    def rolled_back(self) -> None:
        """Its steps in flight do not count. The engine still has what was committed before."""
        self.turned_back()
        self._update_state()

    def _tell_prompt(self, tokens: Sequence[SampledToken]) -> None:
        """Of those that follow the item that lands. Evaluated anew, they are told of already."""
        first = self.evaluated + 1
        self._mailbox.tell_prompt(tokens[max(self._next_scored - first, 0) :])
        self._next_scored = max(self._next_scored, first + len(tokens))

    def _tell_progress(self) -> None:
        if self.evaluated > self._told:
            self._told = self.evaluated
            self._mailbox.tell(Progress(self.evaluated, self.reused_at_first))
        if self.evaluated >= self._awaited:
            self._awaited = 0

    def _sampled(self, sampled: SampledToken, rows: int) -> None:
        now = trio.current_time()
        if self.times.first_token is None:
            self.times.first_token = now
        self.times.last_token = now
        self.drew(sampled.token)
        self._remaining -= 1
        if sampled.token in self._stop_tokens:
            self._finish("stop", rows)
            return
        self._mailbox.put(sampled, rows)
        if self._remaining <= 0:
            self._finish("length", rows)

    def _finish(self, reason: EndReason, rows: int) -> None:
        self.state = self._rests_as
        self._mailbox.close(reason, rows)

    def _update_state(self) -> None:
        """Say what it wants next, unless it rests or has ended."""
        if self.state is SlotState.FREE or self.ended:
            return
        if self.in_flight and self.drawn_in_flight >= self._remaining:
            self.state = SlotState.IN_FLIGHT
        else:
            self.state = SlotState.PENDING if self.waiting == 1 else SlotState.PREFILLING

    def forgotten(self) -> None:
        """The engine has closed it, and holds nothing of it any more."""
        self.opened_in_engine = False
        self.incarnation += 1
        self.lost()

    def preempted(self) -> None:
        """Its pages were taken. All its tokens wait to be evaluated anew; none is lost."""
        self.was_preempted = True
        self.forgotten()
        self._update_state()

    def retry(self) -> None:
        """Its step failed. All its tokens wait to be evaluated anew, in steps of its own until it
        is beyond where that step, or one that failed before, would have brought it."""
        reach = self.evaluated + self.in_flight[0].most
        self.suspect_until = max(reach, self.suspect_until or 0)
        self.preempted()

    def fail(self, error: WireError) -> None:
        """End with an error, which the reader gets after the tokens that came before."""
        self.state = SlotState.INVALID
        self._mailbox.fail(error)

    def close(self) -> None:
        """The request's task has left: nothing more is wanted."""
        if self.state is not SlotState.INVALID:
            self.state = SlotState.DONE
