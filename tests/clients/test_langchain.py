"""``ChatOpenAI`` of langchain-openai, over Chat Completions and over Responses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Literal

import openai
import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    SystemMessage,
)
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from tests.clients.scenes import QUESTION, WEATHER, Place, weather
from tests.clients.scripted_server import KEY, MODEL, TalkingServer
from tests.show.real_server import RealServer

REAL_MODEL = "smollm2-135m-instruct"

Make = Callable[..., ChatOpenAI]


@tool
def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """The weather of a city."""
    return weather(city)


connections = openai.DefaultHttpxClient()
"""For all tests: left to itself, the package keeps some for the life of the process."""


@pytest.fixture(scope="module", autouse=True)
def closed_at_the_end() -> Iterator[None]:
    with connections:
        yield


@pytest.fixture(params=[False, True], ids=["chat", "responses"])
def over(request: pytest.FixtureRequest) -> bool:
    """Whether the Responses API is used."""
    chosen: bool = request.param
    return chosen


def chat(url: str, over: bool, *, key: str = KEY, **fields: Any) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=url,
        api_key=SecretStr(key),
        max_retries=0,
        timeout=60,
        use_responses_api=over,
        http_client=connections,
        **{"model": MODEL, **fields},
    )


def joined(chunks: list[AIMessageChunk]) -> AIMessageChunk:
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    return whole


def test_it_holds_a_conversation(scripted: TalkingServer, over: bool) -> None:
    model = chat(scripted.v1, over)
    messages: list[BaseMessage] = [SystemMessage("Be brief."), HumanMessage("Hello.")]
    first = model.invoke(messages)
    assert first.text == "1: Hello."
    assert first.usage_metadata is not None
    assert first.usage_metadata["output_tokens"] > 0
    second = model.invoke([*messages, first, HumanMessage("Again: 日本 🙂")])
    assert second.text == "2: Again: 日本 🙂"


def test_it_streams_the_same_text(scripted: TalkingServer, over: bool) -> None:
    chunks = list(chat(scripted.v1, over, stream_usage=True).stream("Naïve 👩‍👩‍👧"))
    assert "".join(chunk.text for chunk in chunks) == "1: Naïve 👩‍👩‍👧"
    usage = joined(chunks).usage_metadata
    assert usage is not None
    assert usage["output_tokens"] > 0


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_it_runs_a_tool_loop(scripted: TalkingServer, over: bool, streamed: bool) -> None:
    model = chat(scripted.v1, over).bind_tools([get_weather])
    messages: list[BaseMessage] = [HumanMessage(WEATHER)]

    def ask() -> AIMessage:
        if streamed:
            return joined(list(model.stream(messages)))  # type: ignore[arg-type]
        return model.invoke(messages)

    answer = ask()
    (call,) = answer.tool_calls
    assert call["name"] == "get_weather"
    messages += [answer, get_weather.invoke(call)]
    assert ask().text == "It is sunny in Paris. ☀️"


def test_it_sends_only_what_is_new(scripted: TalkingServer) -> None:
    model = chat(scripted.v1, True, use_previous_response_id=True)
    first = model.invoke("Hello.")
    second = model.invoke([HumanMessage("Hello."), first, HumanMessage("Again.")])
    assert second.text == "2: Again."


@pytest.mark.model
def test_the_default_model_names_paris(real: RealServer, over: bool) -> None:
    model = chat(f"{real.url}/v1", over, model=REAL_MODEL, temperature=0, max_tokens=16)
    text = "".join(chunk.text for chunk in model.stream(QUESTION))
    assert "Paris" in text


@pytest.mark.model
@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_it_gets_a_structured_answer(
    real: RealServer, over: bool, method: Literal["json_schema", "function_calling"]
) -> None:
    model = chat(f"{real.url}/v1", over, model=REAL_MODEL, temperature=0, max_tokens=100)
    answer = model.with_structured_output(Place, method=method).invoke("Describe Paris.")
    assert isinstance(answer, Place)


@pytest.mark.model
# its own model of a message does not know the type of what it has parsed
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")
def test_it_streams_a_structured_answer(real: RealServer, over: bool) -> None:
    model = chat(f"{real.url}/v1", over, model=REAL_MODEL, temperature=0, max_tokens=100)
    *_, last = model.with_structured_output(Place).stream("Describe Paris.")
    assert isinstance(last, Place)


@pytest.mark.model
def test_a_call_that_must_be_made_is_valid(real: RealServer, over: bool) -> None:
    model = chat(f"{real.url}/v1", over, model=REAL_MODEL, max_tokens=200)
    bound = model.bind_tools([get_weather], tool_choice="any", parallel_tool_calls=False)
    (call,) = bound.invoke(WEATHER).tool_calls
    assert get_weather.invoke(call).content in (weather("Paris"), weather("Rome"))


def test_its_errors_are_those_of_openai(scripted: TalkingServer, over: bool) -> None:
    with pytest.raises(openai.NotFoundError):
        chat(scripted.v1, over, model="gpt-imaginary").invoke("Hi")
    with pytest.raises(openai.BadRequestError, match="temperature"):
        chat(scripted.v1, over, temperature=9).invoke("Hi")
    with pytest.raises(openai.AuthenticationError):
        chat(scripted.v1, over, key="wrong").invoke("Hi")


def test_it_asks_many_things_at_once(scripted: TalkingServer, over: bool) -> None:
    async def main() -> list[AIMessage]:
        async with openai.DefaultAsyncHttpxClient() as connections:
            model = chat(scripted.v1, over, http_async_client=connections)
            return await model.abatch(list(texts))

    texts = [f"Number {number}." for number in range(8)]
    assert [answer.text for answer in asyncio.run(main())] == [f"1: {text}" for text in texts]
