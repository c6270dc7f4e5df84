"""The openai-agents package: its Responses WebSocket model, and its HTTP models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

import openai
import pytest
from agents import (
    Agent,
    Model,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    OpenAIResponsesWSModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from agents.models.openai_responses import ResponsesWebSocketError
from openai import AsyncOpenAI
from openai.types.responses import ResponseTextDeltaEvent

from tests.clients.scenes import QUESTION, WEATHER, Place, weather
from tests.clients.scripted_server import KEY, MODEL, TalkingServer
from tests.show.real_server import RealServer

REAL_MODEL = "smollm2-135m-instruct"

set_tracing_disabled(True)  # it would report to its makers

Kind = Callable[..., Model]

kinds = pytest.mark.parametrize(
    "kind",
    [OpenAIResponsesWSModel, OpenAIResponsesModel, OpenAIChatCompletionsModel],
    ids=["websocket", "responses", "chat"],
)


@function_tool
def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """The weather of a city."""
    return weather(city)


@asynccontextmanager
async def model(kind: Kind, url: str, name: str = MODEL) -> AsyncIterator[Model]:
    """A model of the package, whose connections end with the block."""
    async with AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0, timeout=60) as client:
        made = kind(model=name, openai_client=client)
        try:
            yield made
        finally:
            await made.close()


@kinds
def test_an_agent_holds_a_conversation(scripted: TalkingServer, kind: Kind) -> None:
    async def main() -> None:
        async with model(kind, scripted.v1) as used:
            agent: Agent[Any] = Agent(name="A", instructions="Be brief.", model=used)
            first = await Runner.run(agent, "Hello.")
            assert first.final_output == "1: Hello."
            history = [*first.to_input_list(), {"role": "user", "content": "Again."}]
            second = await Runner.run(agent, history)  # type: ignore[arg-type]
            assert second.final_output == "2: Again."
            assert second.context_wrapper.usage.output_tokens > 0

    asyncio.run(main())


@kinds
def test_an_agent_streams_its_answer(scripted: TalkingServer, kind: Kind) -> None:
    async def main() -> None:
        async with model(kind, scripted.v1) as used:
            run = Runner.run_streamed(Agent(name="A", model=used), "Naïve 👩‍👩‍👧")
            deltas = [
                event.data.delta
                async for event in run.stream_events()
                if event.type == "raw_response_event"
                and isinstance(event.data, ResponseTextDeltaEvent)
            ]
            assert "".join(deltas) == run.final_output == "1: Naïve 👩‍👩‍👧"

    asyncio.run(main())


@kinds
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_an_agent_loops_through_a_function_tool(
    scripted: TalkingServer, kind: Kind, streamed: bool
) -> None:
    async def main() -> None:
        async with model(kind, scripted.v1) as used:
            agent: Agent[Any] = Agent(name="A", model=used, tools=[get_weather])
            if streamed:
                run = Runner.run_streamed(agent, WEATHER)
                async for _ in run.stream_events():
                    pass
            else:
                run = await Runner.run(agent, WEATHER)  # type: ignore[assignment]
            assert run.final_output == "It is sunny in Paris. ☀️"
            kinds = [item.type for item in run.new_items]
            assert kinds == ["tool_call_item", "tool_call_output_item", "message_output_item"]

    asyncio.run(main())


@pytest.mark.parametrize(
    "kind", [OpenAIResponsesWSModel, OpenAIResponsesModel], ids=["websocket", "responses"]
)
def test_an_agent_sends_only_what_is_new(scripted: TalkingServer, kind: Kind) -> None:
    async def main() -> None:
        async with model(kind, scripted.v1) as used:
            agent: Agent[Any] = Agent(name="A", model=used, tools=[get_weather])
            run = await Runner.run(agent, WEATHER, auto_previous_response_id=True)
            assert run.final_output == "It is sunny in Paris. ☀️"
            more = await Runner.run(agent, "Thanks.", previous_response_id=run.last_response_id)
            assert more.final_output == "2: Thanks."

    asyncio.run(main())


@pytest.mark.model
@kinds
def test_the_default_model_names_paris(real: RealServer, kind: Kind) -> None:
    async def main() -> None:
        async with model(kind, f"{real.url}/v1", REAL_MODEL) as used:
            settings = ModelSettings(temperature=0)
            agent: Agent[Any] = Agent(name="A", model=used, model_settings=settings)
            assert "Paris" in (await Runner.run(agent, QUESTION)).final_output

    asyncio.run(main())


@pytest.mark.model
@kinds
def test_an_agent_keeps_to_its_output_type(real: RealServer, kind: Kind) -> None:
    async def main() -> None:
        async with model(kind, f"{real.url}/v1", REAL_MODEL) as used:
            agent: Agent[Any] = Agent(
                name="A",
                model=used,
                output_type=Place,
                model_settings=ModelSettings(temperature=0, max_tokens=100),
            )
            run = await Runner.run(agent, "Describe Paris.")
            assert isinstance(run.final_output, Place)

    asyncio.run(main())


@pytest.mark.model
@kinds
def test_an_agent_that_must_call_calls_rightly(real: RealServer, kind: Kind) -> None:
    """The tool's own result ends the run, so that nothing depends on what the model makes of it."""

    async def main() -> None:
        async with model(kind, f"{real.url}/v1", REAL_MODEL) as used:
            agent: Agent[Any] = Agent(
                name="A",
                model=used,
                tools=[get_weather],
                tool_use_behavior="stop_on_first_tool",
                model_settings=ModelSettings(tool_choice="required", parallel_tool_calls=False),
            )
            run = await Runner.run(agent, WEATHER)
            assert run.final_output in (weather("Paris"), weather("Rome"))

    asyncio.run(main())


@kinds
def test_an_agent_is_told_of_an_error_and_can_go_on(scripted: TalkingServer, kind: Kind) -> None:
    async def main() -> None:
        async with model(kind, scripted.v1) as used:
            agent: Agent[Any] = Agent(name="A", model=used)
            hot = agent.clone(model_settings=ModelSettings(temperature=9))
            error = (
                ResponsesWebSocketError
                if kind is OpenAIResponsesWSModel
                else openai.BadRequestError
            )
            with pytest.raises(error, match="temperature"):
                await Runner.run(hot, "Hello.")
            assert (await Runner.run(agent, "Hello.")).final_output == "1: Hello."

    asyncio.run(main())
