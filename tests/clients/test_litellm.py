"""litellm, as OpenAI's API (``openai/``), as a vLLM server (``hosted_vllm/``), as Anthropic's."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.scenes import PARAMETERS, QUESTION, WEATHER, Place, forecast
from tests.clients.scripted_server import KEY, MODEL, TalkingServer
from tests.show.real_server import RealServer

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would fetch prices when it is imported

import litellm

REAL_MODEL = "smollm2-135m-instruct"
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": PARAMETERS,
    },
}

litellm.suppress_debug_info = True

# its types are compiled when they are used first
pytestmark = pytest.mark.filterwarnings(r"ignore:Items? .* on TypedDict class:UserWarning")


@pytest.fixture(scope="module", autouse=True)
def its_connections() -> Iterator[None]:
    """It keeps clients for the life of a process."""
    yield
    for client in litellm.in_memory_llm_clients_cache.cache_dict.values():
        if not inspect.iscoroutinefunction(client.close):  # those have no connections
            client.close()


@pytest.fixture(scope="module", autouse=True)
def its_loop() -> Iterator[None]:
    """It asks for the thread's event loop, which makes one that nobody closes."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    loop.close()
    asyncio.set_event_loop(None)


@pytest.fixture(params=["openai", "hosted_vllm", "anthropic"])
def provider(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


def where(provider: str, url: str, model: str = MODEL) -> dict[str, Any]:
    """What makes litellm talk to this server."""
    return {
        "model": f"{provider}/{model}",
        "api_base": url if provider == "anthropic" else f"{url}/v1",
        "api_key": KEY,
        "num_retries": 0,
        "timeout": 60,
    }


def test_it_holds_a_conversation(scripted: TalkingServer, provider: str) -> None:
    there = where(provider, scripted.url)
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello."},
    ]
    first = litellm.completion(messages=messages, **there)
    assert first.choices[0].message.content == "1: Hello."
    assert first.usage.completion_tokens > 0
    messages += [first.choices[0].message, {"role": "user", "content": "Again: 日本 🙂"}]
    second = litellm.completion(messages=messages, **there)
    assert second.choices[0].message.content == "2: Again: 日本 🙂"
    assert second.choices[0].finish_reason == "stop"


def test_it_streams_the_same_text(scripted: TalkingServer, provider: str) -> None:
    chunks = litellm.completion(
        messages=[{"role": "user", "content": "Naïve 👩‍👩‍👧"}],
        stream=True,
        stream_options={"include_usage": True},
        **where(provider, scripted.url),
    )
    whole = litellm.stream_chunk_builder(list(chunks))
    assert whole.choices[0].message.content == "1: Naïve 👩‍👩‍👧"
    assert whole.usage.completion_tokens > 0


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_it_runs_a_tool_loop(scripted: TalkingServer, provider: str, streamed: bool) -> None:
    messages: list[Any] = [{"role": "user", "content": WEATHER}]

    def ask() -> Any:
        answer = litellm.completion(
            messages=messages, tools=[TOOL], stream=streamed, **where(provider, scripted.url)
        )
        whole = litellm.stream_chunk_builder(list(answer)) if streamed else answer
        return whole.choices[0]

    choice = ask()
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert call.function.name == "get_weather"
    result = forecast(call.function.arguments)
    messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": result}]
    assert ask().message.content == "It is sunny in Paris. ☀️"


@pytest.mark.model
def test_the_default_model_names_paris(real: RealServer, provider: str) -> None:
    answer = litellm.completion(
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        max_tokens=16,
        **where(provider, real.url, REAL_MODEL),
    )
    assert "Paris" in answer.choices[0].message.content


@pytest.mark.model
def test_it_gets_a_structured_answer(real: RealServer, provider: str) -> None:
    """For ``anthropic`` it makes a tool of the schema, and a call that must be made."""
    answer = litellm.completion(
        messages=[{"role": "user", "content": "Describe Paris."}],
        response_format=Place,
        temperature=0,
        max_tokens=100,
        **where(provider, real.url, REAL_MODEL),
    )
    Place.model_validate_json(answer.choices[0].message.content)


@pytest.mark.model
def test_a_call_that_must_be_made_is_valid(real: RealServer, provider: str) -> None:
    answer = litellm.completion(
        messages=[{"role": "user", "content": WEATHER}],
        tools=[TOOL],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=200,
        **where(provider, real.url, REAL_MODEL),
    )
    (call,) = answer.choices[0].message.tool_calls
    forecast(call.function.arguments)  # hosted_vllm takes additionalProperties out of the schema


def test_its_errors_have_their_kinds(scripted: TalkingServer, provider: str) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(messages=messages, **where(provider, scripted.url, "imaginary"))
    there = where(provider, scripted.url)
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        litellm.completion(messages=messages, temperature=9, **there)
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(messages=messages, **{**there, "api_key": "wrong"})


def test_it_knows_the_other_doors(scripted: TalkingServer) -> None:
    there = where("openai", scripted.url)
    response = litellm.responses(input="Hello.", **there)
    assert response.output[0].content[0].text == "1: Hello."
    text = litellm.text_completion(
        prompt="<|im_start|>user\nHello.<|im_end|>\n",
        **where("text-completion-openai", scripted.url),
    )
    assert text.choices[0].text == "1: Hello."
