"""A generator that tells given events, for doors whose wishes no scripted engine can fulfil."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from ds4trio.errors import WireError
from ds4trio.events import Finished, FinishReason, GenerationEvent, TextDelta, Timings, Usage
from ds4trio.generate import GenerationRequest, Generator, Prompt, Reasoning, Tools
from ds4trio.settings import Settings
from tests.api.helpers import Api, ScriptedEngine, scripted_generator, serving_script

__all__ = ["ToldGenerator", "end", "telling", "text"]


def text(said: str) -> TextDelta:
    return TextDelta(said, 1, (), 1)


def end(reason: FinishReason = "stop", reasoning: int = 0) -> Finished:
    return Finished(reason, Usage(7, 5, 3, reasoning), Timings(0.5, 1.5, 2.0, 2.0, 1.0))


class ToldGenerator(Generator):
    """Answers everything with the same events; one of them may be an error.

    Attributes:
        events: what it tells.
        asked: the latest request that a door made.
    """

    events: Sequence[GenerationEvent | WireError]
    asked: GenerationRequest

    async def prepare(self, request: GenerationRequest) -> Prompt:
        self.asked = request
        plain = replace(request, tools=Tools(), format=None, reasoning=Reasoning(), continues=False)
        return await super().prepare(plain)

    async def generate(self, prompt: Prompt) -> AsyncGenerator[GenerationEvent, None]:
        for event in self.events:
            if isinstance(event, WireError):
                raise event
            yield event


@asynccontextmanager
async def telling(
    *events: GenerationEvent | WireError,
) -> AsyncGenerator[tuple[Api, ToldGenerator], None]:
    """A server whose generator tells these events."""
    made: list[ToldGenerator] = []

    def load(settings: Settings) -> tuple[Generator, str]:
        generator = scripted_generator(ScriptedEngine(), settings)
        generator.__class__ = ToldGenerator
        assert isinstance(generator, ToldGenerator)
        generator.events = events
        made.append(generator)
        return generator, "told"

    async with serving_script(load=load) as api:
        yield api, made[0]
