"""Tools, formats, reasoning and half-written answers at the waist, no door and no tensors."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from ds4trio.app import build_coalescer
from ds4trio.chat.dialect import Dialect
from ds4trio.chat.template import ChatTemplate
from ds4trio.chat.tool import Tool
from ds4trio.errors import InvalidRequest
from ds4trio.generate import (
    Finished,
    GenerationEvent,
    GenerationRequest,
    Generator,
    Reasoning,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallEnded,
    Tools,
)
from ds4trio.settings import Settings
from tests.api.helpers import END, ScriptedEngine, scripted_generator, tiny_tokenizer
from tests.tiny import CONTROL_TOKENS

WEATHER = Tool(
    "get_weather",
    "The weather of a city.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
ASKED: Sequence[dict[str, Any]] = ({"role": "user", "content": "How is the weather in Paris?"},)


@asynccontextmanager
async def generating(engine: ScriptedEngine) -> AsyncIterator[Generator]:
    generator = scripted_generator(engine, Settings())
    async with trio.open_nursery() as nursery:
        await nursery.start(generator.run)
        yield generator
        nursery.cancel_scope.cancel()


async def events_of(generator: Generator, request: GenerationRequest) -> list[GenerationEvent]:
    prompt = await generator.prepare(request)
    async with contextlib.aclosing(generator.generate(prompt)) as events:
        return [event async for event in events]


async def prompt_of(generator: Generator, request: GenerationRequest) -> str:
    prompt = await generator.prepare(request)
    return tiny_tokenizer().decode(prompt.tokens)


def joined(events: Sequence[GenerationEvent], kind: type[TextDelta | ReasoningDelta]) -> str:
    return "".join(event.text for event in events if isinstance(event, kind))


async def test_a_call_is_told_as_it_comes() -> None:
    async with generating(ScriptedEngine(f"Let me see.\n{CALL}")) as generator:
        events = await events_of(generator, GenerationRequest(ASKED, tools=Tools([WEATHER])))
    (begun,) = [event for event in events if isinstance(event, ToolCallBegun)]
    (ended,) = [event for event in events if isinstance(event, ToolCallEnded)]
    pieces = [event.text for event in events if isinstance(event, ToolCallArguments)]
    assert begun.name == "get_weather"
    assert ended.arguments == "".join(pieces) == '{"city": "Paris"}'
    assert joined(events, TextDelta).strip() == "Let me see."
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert finished.reason == "tool_calls"


async def test_without_tools_a_call_is_only_text() -> None:
    async with generating(ScriptedEngine(CALL)) as generator:
        events = await events_of(generator, GenerationRequest(ASKED))
    assert joined(events, TextDelta) == CALL
    assert not any(isinstance(event, ToolCallBegun) for event in events)


async def test_a_prompt_as_it_is_knows_no_calls() -> None:
    async with generating(ScriptedEngine(CALL)) as generator:
        events = await events_of(
            generator, GenerationRequest(prompt="Weather:", tools=Tools([WEATHER]))
        )
    assert joined(events, TextDelta) == CALL


async def test_a_template_that_knows_no_tools_is_told_of_them_in_words() -> None:
    async with generating(ScriptedEngine()) as generator:
        told = await prompt_of(generator, GenerationRequest(ASKED, tools=Tools([WEATHER])))
        untold = await prompt_of(
            generator, GenerationRequest(ASKED, tools=Tools([WEATHER], choice="none"))
        )
    assert "get_weather" in told
    assert "get_weather" not in untold


async def test_an_answer_can_be_continued_where_it_breaks_off() -> None:
    half = {"role": "assistant", "content": "The weather in Paris is "}
    async with generating(ScriptedEngine()) as generator:
        prompt = await prompt_of(generator, GenerationRequest([*ASKED, half], continues=True))
        assert prompt.endswith("assistant\nThe weather in Paris is ")
        with pytest.raises(InvalidRequest, match="continued"):
            await generator.prepare(GenerationRequest(ASKED, continues=True))


async def test_a_required_call_needs_a_tool() -> None:
    async with generating(ScriptedEngine()) as generator:
        with pytest.raises(InvalidRequest, match="no tool"):
            await generator.prepare(GenerationRequest(ASKED, tools=Tools(choice="required")))


async def test_a_model_that_does_not_reason_takes_any_limit_of_it() -> None:
    async with generating(ScriptedEngine("Yes.")) as generator:
        for reasoning in (Reasoning("none"), Reasoning("high", 100), Reasoning(tokens=0)):
            events = await events_of(generator, GenerationRequest(ASKED, reasoning=reasoning))
            assert joined(events, TextDelta) == "Yes."
        with pytest.raises(InvalidRequest, match="negative"):
            await generator.prepare(GenerationRequest(ASKED, reasoning=Reasoning(tokens=-1)))


# -- reasoning

THINKING = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}"
    "{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
"""In the way of Qwen3: the model begins to think by itself."""


@asynccontextmanager
async def thinking(script: str) -> AsyncIterator[Generator]:
    engine = ScriptedEngine(script)
    template = ChatTemplate(THINKING, control_tokens=CONTROL_TOKENS)
    coalescer = build_coalescer(engine, Settings())
    generator = Generator(
        coalescer,
        tiny_tokenizer(),
        template,
        stop_tokens=frozenset({END}),
        bos_token=None,
        add_bos=False,
        default_max_tokens=1000,
        dialect=Dialect(THINKING, tiny_tokenizer(), template=template),
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(generator.run)
        yield generator
        nursery.cancel_scope.cancel()


async def test_what_is_thought_is_told_apart_and_counted() -> None:
    async with thinking("<think>\nHm, Paris.\n</think>\n\nIt rains.") as generator:
        events = await events_of(generator, GenerationRequest(ASKED))
    assert joined(events, ReasoningDelta) == "Hm, Paris."
    assert joined(events, TextDelta) == "It rains."
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert 0 < finished.usage.reasoning_tokens < finished.usage.output_tokens


async def test_a_limit_of_reasoning_begins_it_in_the_prompt_and_ends_it_in_the_sampler() -> None:
    async with thinking("Hm.\n</think>\n\nIt rains.") as generator:
        request = GenerationRequest(ASKED, reasoning=Reasoning(tokens=20))
        prompt = await generator.prepare(request)
        assert tiny_tokenizer().decode(prompt.tokens).endswith("assistant\n<think>\n")
        assert prompt.sampling.reasoning_limit == 20
        assert "</think>" in tiny_tokenizer().decode(list(prompt.sampling.reasoning_end))
        events = await events_of(generator, request)
        assert joined(events, ReasoningDelta) == "Hm."
        assert joined(events, TextDelta) == "It rains."


@pytest.mark.parametrize("reasoning", [Reasoning("none"), Reasoning(tokens=0)])
async def test_no_reasoning_is_said_in_the_prompt(reasoning: Reasoning) -> None:
    async with thinking("It rains.") as generator:
        request = GenerationRequest(ASKED, reasoning=reasoning)
        prompt = await generator.prepare(request)
        assert tiny_tokenizer().decode(prompt.tokens).endswith("</think>\n\n")
        assert prompt.sampling.reasoning_limit is None
        events = await events_of(generator, request)
        assert joined(events, ReasoningDelta) == ""
        assert joined(events, TextDelta) == "It rains."
