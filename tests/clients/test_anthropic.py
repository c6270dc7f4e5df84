"""Anthropic's package at the Messages door."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic
from anthropic.types import Message, MessageParam, ToolParam

from tests.clients.scenes import PARAMETERS, QUESTION, WEATHER, Place, forecast, weather
from tests.clients.scripted_server import KEY, MODEL, TalkingServer
from tests.show.real_server import RealServer

REAL_MODEL = "smollm2-135m-instruct"

TOOL: ToolParam = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": PARAMETERS,
}


@pytest.fixture
def client(scripted: TalkingServer) -> Iterator[Anthropic]:
    with Anthropic(base_url=scripted.url, api_key=KEY, max_retries=0, timeout=30) as client:
        yield client


@pytest.fixture
def real_client(real: RealServer) -> Iterator[Anthropic]:
    with Anthropic(base_url=real.url, api_key=KEY, max_retries=0, timeout=60) as client:
        yield client


def text_of(message: Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def test_messages_hold_a_conversation(client: Anthropic) -> None:
    messages: list[MessageParam] = [{"role": "user", "content": "Hello."}]
    first = client.messages.create(
        model=MODEL, max_tokens=100, system="Be brief.", messages=messages
    )
    assert text_of(first) == "1: Hello."
    assert first.stop_reason == "end_turn"
    messages += [
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [{"type": "text", "text": "Again: 日本 🙂"}]},
    ]
    second = client.messages.create(model=MODEL, max_tokens=100, messages=messages)
    assert text_of(second) == "2: Again: 日本 🙂"


def test_messages_stream_the_same_text(client: Anthropic) -> None:
    messages: list[MessageParam] = [{"role": "user", "content": "Naïve 👩‍👩‍👧"}]
    with client.messages.stream(model=MODEL, max_tokens=100, messages=messages) as stream:
        deltas = list(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(deltas) == text_of(final) == "1: Naïve 👩‍👩‍👧"
    assert final.usage.output_tokens > 0


def test_tokens_are_counted_as_they_are_used(client: Anthropic) -> None:
    messages: list[MessageParam] = [{"role": "user", "content": "Hello."}]
    counted = client.messages.count_tokens(model=MODEL, messages=messages, system="Be brief.")
    used = client.messages.create(
        model=MODEL, max_tokens=9, messages=messages, system="Be brief."
    ).usage
    cached = used.cache_read_input_tokens or 0
    assert counted.input_tokens == used.input_tokens + cached


def test_what_beta_clients_send_in_headers_is_accepted(client: Anthropic) -> None:
    messages: list[Any] = [{"role": "user", "content": "Hello."}]
    whose: Any = {"betas": ["context-management-2025-06-27"], "workspace_id": "a"}
    whose["user_profile_id"] = "b"
    answer = client.beta.messages.create(model=MODEL, max_tokens=9, messages=messages, **whose)
    assert answer.content[0].type == "text"
    counted = client.beta.messages.count_tokens(model=MODEL, messages=messages, **whose)
    assert counted.input_tokens > 0


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_messages_run_a_tool_loop(client: Anthropic, streamed: bool) -> None:
    messages: list[MessageParam] = [{"role": "user", "content": WEATHER}]

    def ask() -> Message:
        if not streamed:
            return client.messages.create(
                model=MODEL, max_tokens=100, messages=messages, tools=[TOOL]
            )
        with client.messages.stream(
            model=MODEL, max_tokens=100, messages=messages, tools=[TOOL]
        ) as stream:
            return stream.get_final_message()

    message = ask()
    assert message.stop_reason == "tool_use"
    (call,) = [block for block in message.content if block.type == "tool_use"]
    assert call.name == "get_weather"
    messages += [
        {"role": "assistant", "content": message.content},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": call.id, "content": forecast(call.input)}
            ],
        },
    ]
    assert text_of(ask()) == "It is sunny in Paris. ☀️"


def test_the_tool_runner_runs_the_loop_by_itself(client: Anthropic) -> None:
    """It asks the server to hold the conversation, and goes on alone when it does not."""

    @anthropic.beta_tool
    def get_weather(city: Literal["Paris", "Rome"]) -> str:
        """The weather of a city."""
        return weather(city)

    runner = client.beta.messages.tool_runner(
        model=MODEL,
        max_tokens=100,
        messages=[{"role": "user", "content": WEATHER}],
        tools=[get_weather],
    )
    (block,) = runner.until_done().content
    assert block.type == "text"
    assert block.text == "It is sunny in Paris. ☀️"


@pytest.mark.model
def test_the_default_model_names_paris(real_client: Anthropic) -> None:
    message = real_client.messages.create(
        model=REAL_MODEL,
        max_tokens=16,
        messages=[{"role": "user", "content": QUESTION}],
        extra_body={"temperature": 0},
    )
    assert "Paris" in text_of(message)


@pytest.mark.model
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_messages_keep_to_a_schema(real_client: Anthropic, streamed: bool) -> None:
    messages: list[MessageParam] = [{"role": "user", "content": "Describe Paris."}]
    if streamed:
        with real_client.messages.stream(
            model=REAL_MODEL,
            max_tokens=100,
            messages=messages,
            extra_body={"temperature": 0},
            output_format=Place,
        ) as stream:
            place = stream.get_final_message().parsed_output
    else:
        place = real_client.messages.parse(
            model=REAL_MODEL,
            max_tokens=100,
            messages=messages,
            extra_body={"temperature": 0},
            output_format=Place,
        ).parsed_output
    assert isinstance(place, Place)


@pytest.mark.model
def test_a_call_that_must_be_made_has_valid_input(real_client: Anthropic) -> None:
    message = real_client.messages.create(
        model=REAL_MODEL,
        max_tokens=100,
        messages=[{"role": "user", "content": WEATHER}],
        tools=[TOOL],
        tool_choice={"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True},
    )
    (call,) = [block for block in message.content if block.type == "tool_use"]
    assert message.stop_reason == "tool_use"
    assert isinstance(call.input, dict)
    forecast(call.input)


def test_messages_refuse_in_the_shape_of_anthropic(
    client: Anthropic, scripted: TalkingServer
) -> None:
    messages: list[MessageParam] = [{"role": "user", "content": "Hi"}]
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="claude-imaginary", max_tokens=9, messages=messages)
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        client.messages.create(
            model=MODEL, max_tokens=9, messages=messages, extra_body={"temperature": 9}
        )
    for stranger in (
        Anthropic(base_url=scripted.url, api_key="wrong", max_retries=0),
        Anthropic(base_url=scripted.url, auth_token="wrong", max_retries=0),
    ):
        with stranger, pytest.raises(anthropic.AuthenticationError):
            stranger.messages.create(model=MODEL, max_tokens=9, messages=messages)


def test_the_async_client_asks_many_things_at_once(scripted: TalkingServer) -> None:
    async def ask(client: AsyncAnthropic, text: str) -> str:
        async with client.messages.stream(
            model=MODEL, max_tokens=100, messages=[{"role": "user", "content": text}]
        ) as stream:
            return await stream.get_final_text()

    async def main() -> list[str]:
        async with AsyncAnthropic(base_url=scripted.url, api_key=KEY, max_retries=0) as client:
            return await asyncio.gather(*(ask(client, text) for text in texts))

    texts = [f"Number {number}." for number in range(8)]
    assert asyncio.run(main()) == [f"1: {text}" for text in texts]
