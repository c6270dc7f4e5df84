"""OpenAI's package, sync and async: Chat Completions, Completions, Responses over HTTP and over a
WebSocket. What the default model must know is in ``tests/show/test_official_client.py`` too."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.resources.responses.responses import ResponsesConnection
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from openai.types.responses import FunctionToolParam, Response, ResponseInputParam

from tests.clients.scenes import PARAMETERS, QUESTION, WEATHER, Place, forecast
from tests.clients.scripted_server import KEY, MODEL, TalkingServer
from tests.show.real_server import RealServer

REAL_MODEL = "smollm2-135m-instruct"

CHAT_TOOL: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": PARAMETERS,
        "strict": True,
    },
}
TOOL: FunctionToolParam = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": PARAMETERS,
    "strict": True,
}


@pytest.fixture
def client(scripted: TalkingServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=scripted.v1, api_key=KEY, max_retries=0, timeout=30) as client:
        yield client


@pytest.fixture
def real_client(real: RealServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{real.url}/v1", api_key=KEY, max_retries=0, timeout=60) as client:
        yield client


# Chat Completions


def test_chat_holds_a_conversation(client: OpenAI) -> None:
    messages: list[ChatCompletionMessageParam] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Hello."},
    ]
    first = client.chat.completions.create(model=MODEL, messages=messages).choices[0].message
    assert first.content == "1: Hello."
    messages.append(first)  # type: ignore[arg-type]  # as its documentation does
    messages.append({"role": "user", "content": [{"type": "text", "text": "Again: 日本 🙂"}]})
    second = client.chat.completions.create(model=MODEL, messages=messages)
    assert second.choices[0].message.content == "2: Again: 日本 🙂"
    assert second.choices[0].finish_reason == "stop"


def test_chat_streams_the_same_text(client: OpenAI) -> None:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Naïve 🏳️‍🌈 e\u0301"}]
    whole = client.chat.completions.create(model=MODEL, messages=messages)
    with client.chat.completions.stream(
        model=MODEL, messages=messages, stream_options={"include_usage": True}
    ) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == whole.choices[0].message.content == "1: Naïve 🏳️‍🌈 e\u0301"
    assert final.choices[0].message.content == whole.choices[0].message.content
    assert final.usage is not None
    assert whole.usage is not None
    assert final.usage.total_tokens == whole.usage.total_tokens


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_chat_runs_a_tool_loop(client: OpenAI, streamed: bool) -> None:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": WEATHER}]

    def ask() -> Any:
        if not streamed:
            return client.chat.completions.parse(model=MODEL, messages=messages, tools=[CHAT_TOOL])
        with client.chat.completions.stream(
            model=MODEL, messages=messages, tools=[CHAT_TOOL]
        ) as stream:
            return stream.get_final_completion()

    choice = ask().choices[0]
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert call.function.name == "get_weather"
    assert not choice.message.content
    result = forecast(call.function.arguments)
    messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": result}]
    choice = ask().choices[0]
    assert choice.message.content == "It is sunny in Paris. ☀️"
    assert choice.finish_reason == "stop"


@pytest.mark.model
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_chat_keeps_to_a_schema(real_client: OpenAI, stream: bool) -> None:
    request: dict[str, Any] = {
        "model": REAL_MODEL,
        "messages": [{"role": "user", "content": "Describe Paris."}],
        "response_format": Place,
        "temperature": 0,
    }
    if stream:
        with real_client.chat.completions.stream(**request) as answer:
            place = answer.get_final_completion().choices[0].message.parsed
    else:
        place = real_client.chat.completions.parse(**request).choices[0].message.parsed
    assert isinstance(place, Place)


@pytest.mark.model
@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}], ids=str
)
def test_a_call_that_chat_must_make_has_valid_arguments(real_client: OpenAI, choice: Any) -> None:
    completion = real_client.chat.completions.create(
        model=REAL_MODEL,
        messages=[{"role": "user", "content": QUESTION}],
        tools=[CHAT_TOOL],
        tool_choice=choice,
        parallel_tool_calls=False,  # it would go on calling for long
        temperature=1,
        seed=1,
    )
    assert completion.choices[0].message.tool_calls is not None
    for call in completion.choices[0].message.tool_calls:
        assert call.type == "function"
        assert call.function.name == "get_weather"
        forecast(call.function.arguments)


def test_chat_refuses_in_the_shape_of_openai(client: OpenAI, scripted: TalkingServer) -> None:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hi"}]
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-imaginary", messages=messages)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as hot:
        client.chat.completions.create(model=MODEL, messages=messages, temperature=9)
    assert hot.value.param == "temperature"
    with OpenAI(base_url=scripted.v1, api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError):
            stranger.chat.completions.create(model=MODEL, messages=messages)


# Completions


def test_completions_go_on_with_a_text(client: OpenAI) -> None:
    prompt = "<|im_start|>user\nHello.<|im_end|>\n"
    whole = client.completions.create(model=MODEL, prompt=prompt, echo=True)
    assert whole.choices[0].text == prompt + "1: Hello."
    streamed = client.completions.create(model=MODEL, prompt=prompt, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == "1: Hello."


# Responses over HTTP


def test_responses_hold_a_conversation(client: OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="Hello.", instructions="Be brief.")
    assert first.output_text == "1: Hello."
    second = client.responses.create(
        model=MODEL, input="Again.", previous_response_id=first.id, metadata={"a": "b"}
    )
    assert second.output_text == "2: Again."
    again = client.responses.retrieve(second.id)
    assert again.output_text == second.output_text
    assert again.metadata == {"a": "b"}
    items = list(client.responses.input_items.list(second.id))
    assert any("Again." in item.model_dump_json() for item in items)
    client.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(second.id)


def test_responses_stream_the_same_text(client: OpenAI) -> None:
    with client.responses.stream(model=MODEL, input="Naïve 👩‍👩‍👧") as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text == "1: Naïve 👩‍👩‍👧"
    assert final.usage is not None
    assert final.usage.output_tokens > 0


def test_a_background_response_can_be_joined_late(client: OpenAI) -> None:
    begun = client.responses.create(model=MODEL, input="Hello.", background=True, stream=True)
    events = [next(begun), next(begun)]
    begun.close()
    created = events[0]
    assert created.type == "response.created"
    rest = client.responses.retrieve(
        created.response.id, stream=True, starting_after=events[-1].sequence_number
    )
    events += list(rest)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    final = events[-1]
    assert final.type == "response.completed"
    assert final.response.output_text == "1: Hello."


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_responses_run_a_tool_loop(client: OpenAI, streamed: bool) -> None:
    items: ResponseInputParam = [{"role": "user", "content": WEATHER}]

    def ask() -> Any:
        if not streamed:
            return client.responses.parse(model=MODEL, input=items, tools=[TOOL], store=False)
        with client.responses.stream(model=MODEL, input=items, tools=[TOOL]) as stream:
            return stream.get_final_response()

    response = ask()
    (call,) = [item for item in response.output if item.type == "function_call"]
    items += response.output
    items += [
        {
            "type": "function_call_output",
            "call_id": call.call_id,
            "output": forecast(call.arguments),
        }
    ]
    assert ask().output_text == "It is sunny in Paris. ☀️"


@pytest.mark.model
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_responses_keep_to_a_schema(real_client: OpenAI, stream: bool) -> None:
    request: dict[str, Any] = {
        "model": REAL_MODEL,
        "input": "Describe Paris.",
        "text_format": Place,
        "temperature": 0,
    }
    if stream:
        with real_client.responses.stream(**request) as answer:
            response = answer.get_final_response()
    else:
        response = real_client.responses.parse(**request)
    assert isinstance(response.output_parsed, Place)


@pytest.mark.model
def test_a_call_that_a_response_must_make_has_valid_arguments(real_client: OpenAI) -> None:
    response = real_client.responses.create(
        model=REAL_MODEL,
        input=QUESTION,
        tools=[TOOL],
        tool_choice="required",
        parallel_tool_calls=False,
    )
    calls = [item for item in response.output if item.type == "function_call"]
    assert calls
    for call in calls:
        forecast(call.arguments)


def test_responses_refuse_in_the_shape_of_openai(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.responses.create(model="gpt-imaginary", input="Hi")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as lost:
        client.responses.create(model=MODEL, input="Hi", previous_response_id="resp_unknown")
    assert lost.value.code == "previous_response_not_found"


# Responses over a WebSocket


def test_the_websocket_runs_a_tool_loop(client: OpenAI) -> None:
    with client.responses.connect() as connection:
        connection.response.create(model=MODEL, input=WEATHER, tools=[TOOL], store=False)
        first = finals(connection, 1)[None]
        (call,) = [item for item in first.output if item.type == "function_call"]
        connection.response.create(
            model=MODEL,
            previous_response_id=first.id,
            input=[
                {
                    "type": "function_call_output",
                    "call_id": call.call_id,
                    "output": forecast(call.arguments),
                }
            ],
            tools=[TOOL],
            store=False,
        )
        assert finals(connection, 1)[None].output_text == "It is sunny in Paris. ☀️"


def test_lanes_run_side_by_side_on_one_socket(client: OpenAI) -> None:
    with client.responses.connect() as connection:
        for lane in ("left", "right"):
            connection.response.create(model=MODEL, input=f"From {lane}.", stream_id=lane)
        first = finals(connection, 2)
        assert {lane: response.output_text for lane, response in first.items()} == {
            "left": "1: From left.",
            "right": "1: From right.",
        }
        # each goes on by itself, and a third lane forks what the first has said
        for lane, parent in (("left", "left"), ("right", "right"), ("fork", "left")):
            connection.response.create(
                model=MODEL,
                input=f"More {lane}.",
                previous_response_id=first[parent].id,
                stream_id=lane,
            )
        second = finals(connection, 3)
        assert {lane: response.output_text for lane, response in second.items()} == {
            "left": "2: More left.",
            "right": "2: More right.",
            "fork": "2: More fork.",
        }


def test_an_error_leaves_the_websocket_usable(client: OpenAI) -> None:
    with client.responses.connect() as connection:
        connection.response.create(model="gpt-imaginary", input="Hi", stream_id="a")
        event = connection.recv()
        assert event.type == "error"
        assert event.error.code == "model_not_found"
        connection.response.create(model=MODEL, input="Hi", stream_id="a")
        assert finals(connection, 1)["a"].output_text == "1: Hi"


@pytest.mark.model
def test_the_websocket_keeps_to_a_schema(real_client: OpenAI) -> None:
    schema = Place.model_json_schema() | {"additionalProperties": False}
    with real_client.responses.connect() as connection:
        connection.response.create(
            model=REAL_MODEL,
            input="Describe Paris.",
            temperature=0,
            text={
                "format": {"type": "json_schema", "name": "place", "schema": schema, "strict": True}
            },
        )
        Place.model_validate_json(finals(connection, 1)[None].output_text)


def finals(connection: ResponsesConnection, count: int) -> dict[str | None, Response]:
    """Read until so many responses are complete; they are returned by lane."""
    done: dict[str | None, Response] = {}
    numbers: dict[str | None, int] = {}
    deltas: dict[str | None, str] = {}
    while len(done) < count:
        event = connection.recv()
        assert event.type != "error", event
        lane = getattr(event, "stream_id", None)
        number = getattr(event, "sequence_number", None)
        assert number == numbers.setdefault(lane, 0), event
        numbers[lane] += 1
        if event.type == "response.output_text.delta":
            deltas[lane] = deltas.get(lane, "") + event.delta
        elif event.type == "response.completed":
            assert event.response.output_text == deltas.get(lane, "")
            done[lane] = event.response
    return done


# asyncio


def test_the_async_client_asks_many_things_at_once(scripted: TalkingServer) -> None:
    async def stream(client: AsyncOpenAI, text: str) -> str:
        async with client.responses.stream(model=MODEL, input=text) as events:
            return (await events.get_final_response()).output_text

    async def chat(client: AsyncOpenAI, text: str) -> str | None:
        completion = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": text}]
        )
        return completion.choices[0].message.content

    async def main() -> None:
        async with AsyncOpenAI(base_url=scripted.v1, api_key=KEY, max_retries=0) as client:
            texts = [f"Number {number}." for number in range(8)]
            streams = asyncio.gather(*(stream(client, text) for text in texts))
            chats = asyncio.gather(*(chat(client, text) for text in texts))
            assert await streams == await chats == [f"1: {text}" for text in texts]
            async with client.responses.connect() as connection:
                await connection.response.create(model=MODEL, input="Hello.")
                async for event in connection:
                    if event.type == "response.completed":
                        assert event.response.output_text == "1: Hello."
                        break

    asyncio.run(main())
