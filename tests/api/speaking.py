"""A generator that yields the events of a test in place of a model's."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from ds4trio.errors import WireError
from ds4trio.events import (
    Finished,
    FinishReason,
    GenerationEvent,
    ReasoningDelta,
    TextDelta,
    Timings,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallEnded,
    Usage,
)
from ds4trio.generate import Generator, Prompt
from ds4trio.request import GenerationRequest, Reasoning, Tools
from ds4trio.settings import Settings
from tests.api.helpers import Api, ScriptedEngine, scripted_generator, serving_script

__all__ = ["Script", "Speaking", "call", "finished", "serving_events", "text", "thought"]


Script = Sequence[GenerationEvent | WireError]
"""The events of one answer; an error among them is raised."""


class Speaking(Generator):
    """Takes everything that a request may ask for.

    Attributes:
        answers: those to come.
        asked: what was asked for so far.
    """

    answers: list[Script]
    asked: list[GenerationRequest]

    async def prepare(self, request: GenerationRequest) -> Prompt:
        self.asked.append(request)
        return await super().prepare(_plain(request))

    async def count(self, request: GenerationRequest) -> int:
        self.asked.append(request)
        return await super().count(_plain(request))

    async def generate(self, prompt: Prompt) -> AsyncGenerator[GenerationEvent, None]:
        for event in self.answers.pop(0):
            if isinstance(event, WireError):
                raise event
            yield event


def _plain(request: GenerationRequest) -> GenerationRequest:
    return dataclasses.replace(
        request, tools=Tools(), format=None, reasoning=Reasoning(), continues=False
    )


def finished(
    reason: FinishReason = "stop",
    *,
    stop: str | None = None,
    tokens: int = 7,
    cached: int = 3,
    thought: int = 0,
) -> Finished:
    """The last event of an answer to a prompt of 10 tokens."""
    return Finished(reason, Usage(10, tokens, cached, thought), Timings(0, 0, 0, 0, 1), stop)


def text(words: str) -> TextDelta:
    return TextDelta(words, 1, (), 1)


def thought(words: str) -> ReasoningDelta:
    return ReasoningDelta(words, 1, 1)


def call(index: int, name: str, *parts: str) -> list[GenerationEvent]:
    """A tool call whose arguments come in parts."""
    arguments = [ToolCallArguments(index, part, 1, 1) for part in parts]
    begun = ToolCallBegun(index, f"call_{index:024}", name)
    return [begun, *arguments, ToolCallEnded(index, "".join(parts))]


@asynccontextmanager
async def serving_events(
    *answers: Script, engine: ScriptedEngine | None = None, **fields: Any
) -> AsyncIterator[tuple[Api, Speaking]]:
    """A server that gives these answers, one after the other; ``fields`` are settings.

    Args:
        engine: has the limits, and is never asked to speak.
    """
    made: list[Speaking] = []

    def load(settings: Settings) -> tuple[Generator, str]:
        generator = scripted_generator(engine or ScriptedEngine(), settings, kind=Speaking)
        assert isinstance(generator, Speaking)
        generator.answers, generator.asked = list(answers), []
        made.append(generator)
        return generator, "scripted"

    async with serving_script(load=load, **fields) as api:
        yield api, made[0]
