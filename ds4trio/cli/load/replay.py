"""The batches of a measured round once more, on the engine alone: no server, no connections.

Lengths are replayed and not words. The sequences hold random tokens, as many as the server counted,
and answers go on to the length that theirs had, whatever the model would say.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ds4trio.batching.schedule import Budget
from ds4trio.cli.load.tally import Tally
from ds4trio.engine.ledger import Ledger
from ds4trio.engine.step import Evaluated, Refused, SamplingParams, StepItem
from ds4trio.errors import Ds4TrioError

__all__ = ["Job", "Order", "RawFailed", "RawRound", "Replayer", "jobs_of"]


class RawFailed(Ds4TrioError):
    """The engine alone cannot do what the server did. One line says why."""


class Job(msgspec.Struct, frozen=True):
    """One request, as lengths in tokens.

    Attributes:
        prompt: all of it, what was cached included.
        cached: how much of it was not evaluated but found.
        output: of the answer.
    """

    prompt: int
    cached: int
    output: int


class Order(msgspec.Struct, frozen=True):
    """A round to replay: so many at once, one job after the other, in this order."""

    users: int
    temperature: float
    jobs: Sequence[Job]


class RawRound(msgspec.Struct, frozen=True):
    """What a replay took.

    Attributes:
        requests, output_tokens: what was done.
        steps: batches that were evaluated.
        seconds: from the first step to the end of the last.
    """

    requests: int
    output_tokens: int
    steps: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return self.output_tokens / self.seconds if self.seconds else 0.0


def jobs_of(tally: Tally) -> list[Job]:
    """The answered requests of a round, in the order they were sent.

    Raises:
        RawFailed: the server does not say how many tokens they had.
    """
    jobs = []
    for request in sorted(tally.requests, key=lambda request: request.due):
        answer = request.answer
        if answer.input_tokens is None or answer.output_tokens is None:
            raise RawFailed("--raw: the server does not count its tokens")
        if answer.output_tokens:
            jobs.append(Job(answer.input_tokens, answer.cached_tokens or 0, answer.output_tokens))
    return jobs


@dataclass(slots=True)
class _Live:
    """A sequence that is open in the engine: prompt still to evaluate, tokens still to draw."""

    sequence: int
    prompt: Sequence[int]
    to_draw: int


class Replayer:
    """Drives an engine through orders, as plainly as can be: a loop around ``eval_batch``.

    Args:
        engine: nobody else uses it.
        budget: what a step may hold, as the server has it.
    """

    def __init__(self, engine: Ledger, budget: Budget) -> None:
        self._engine = engine
        self._budget = budget
        self._ids = itertools.count()

    def __call__(self, order: Order) -> RawRound:
        """Do all jobs.

        Raises:
            RawFailed: the engine refuses one, for want of memory for instance.
        """
        waiting = deque((next(self._ids), job) for job in order.jobs)
        prompts = {sequence: self._prompt(sequence, job) for sequence, job in waiting}
        at_once = min(order.users, self._budget.sessions)
        live: dict[int, _Live] = {}
        steps = 0
        began = time.perf_counter()
        while waiting or live:
            while waiting and len(live) < at_once:
                sequence, job = waiting.popleft()
                sampling = SamplingParams(
                    temperature=order.temperature, seed=sequence, prompt_length=job.prompt
                )
                self._engine.open(sequence, sampling)
                found = self._engine.reuse(sequence, prompts[sequence])
                live[sequence] = _Live(sequence, prompts[sequence][found:], job.output)
            self._step(live)
            steps += 1
        return RawRound(
            requests=len(order.jobs),
            output_tokens=sum(job.output for job in order.jobs),
            steps=steps,
            seconds=time.perf_counter() - began,
        )

    def _step(self, live: dict[int, _Live]) -> None:
        items = [StepItem(one.sequence) for one in live.values() if not one.prompt]
        room = self._budget.step_tokens - len(items)
        if items:
            room = min(room, self._budget.prefill_chunk)
        for one in live.values():
            if one.prompt and room > 0:
                chunk, one.prompt = one.prompt[:room], one.prompt[room:]
                items.append(StepItem(one.sequence, tuple(chunk), sample=not one.prompt))
                room -= len(chunk)
        for outcome in self._engine.eval_batch(items).outcomes:
            if isinstance(outcome, Refused):
                raise RawFailed(f"--raw: the engine alone: {outcome.error}")
            self._drawn(outcome, live)

    def _drawn(self, outcome: Evaluated, live: dict[int, _Live]) -> None:
        if not outcome.sampled:
            return
        one = live[outcome.sequence]
        one.to_draw -= len(outcome.sampled)
        if one.to_draw <= 0:
            self._engine.close(one.sequence)
            del live[one.sequence]

    def _prompt(self, sequence: int, job: Job) -> list[int]:
        """What the server found in its cache begins all prompts alike, so it is found here too."""
        vocabulary = range(self._engine.info.vocab_size)
        cached = min(job.cached, job.prompt - 1)
        return [
            *random.Random("the same").choices(vocabulary, k=cached),
            *random.Random(f"its own {sequence}").choices(vocabulary, k=job.prompt - cached),
        ]
