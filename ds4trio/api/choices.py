"""Several answers side by side: to one prompt, to several, or both."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import trio

from ds4trio.errors import Ds4TrioError
from ds4trio.events import GenerationEvent, PrefillProgress, PromptLogprobs
from ds4trio.generate import Generator, Prompt

__all__ = ["AT_ONCE", "Take", "answer_all", "variants"]

AT_ONCE = 16
"""Answers of one request that are made at the same time."""

SEED_STEP = 0x9E3779B97F4A7C15
"""Between the seeds of neighbours; odd, so that no two of 2**63 neighbours share one."""

Take = Callable[[int, GenerationEvent], Awaitable[None]]
"""Is given an event and the number of the answer that it belongs to."""


def variants(prompt: Prompt, count: int) -> list[Prompt]:
    """A prompt for each of so many answers; the first is the prompt as it is.

    Each has a seed of its own that follows from the prompt's. Only the first tells of its progress
    and of what the model thinks of it, since the others find the prompt evaluated.
    """
    seed = prompt.sampling.seed
    others = [
        replace(
            prompt,
            sampling=replace(
                prompt.sampling,
                seed=(seed + number * SEED_STEP) % 2**63,
                prompt_logprobs=None,
            ),
            progress=False,
        )
        for number in range(1, count)
    ]
    return [prompt, *others]


async def answer_all(
    generator: Generator, prompts: Sequence[Sequence[Prompt]], max_sessions: int, take: Take
) -> None:
    """Answer prompts; return when all answers are complete.

    Args:
        prompts: groups of prompts of the same text (``variants``). The first of a group goes ahead
            until its prompt is evaluated, which the others then find in the prefix cache.
        max_sessions: slots of the server; beyond ``AT_ONCE`` or these, answers wait their turn.
        take: is waited for; while it waits, tokens of that answer pile up in its session, and come
            as one event. Answers are numbered from 0 through all groups.

    Raises:
        Ds4TrioError: of the first answer that failed, or what ``take`` raised. The others are
            cancelled.
    """
    failures: list[Ds4TrioError] = []
    limiter = trio.CapacityLimiter(min(AT_ONCE, max_sessions))

    async def answer(number: int, prompt: Prompt, followers: Sequence[Prompt] = ()) -> None:
        try:
            async with limiter, contextlib.aclosing(generator.generate(prompt)) as events:
                async for event in events:
                    if not isinstance(event, PrefillProgress | PromptLogprobs):
                        for place, follower in enumerate(followers, number + 1):
                            nursery.start_soon(answer, place, follower)
                        followers = ()
                    await take(number, event)
        except Ds4TrioError as error:
            failures.append(error)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        number = 0
        for group in prompts:
            nursery.start_soon(answer, number, group[0], group[1:])
            number += len(group)
    if failures:
        raise failures[0]
