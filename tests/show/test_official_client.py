"""OpenAI's own Python client against ``ds4trio serve`` with its default model."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from openai import OpenAI
from openai.resources.responses.responses import ResponsesConnection
from openai.types.responses import Response
from websockets.exceptions import InvalidStatus

from tests.show.real_server import KEY, RealServer

pytestmark = pytest.mark.model

MODEL = "smollm2-135m-instruct"
QUESTION = "What is the capital of France?"


@pytest.fixture
def client(server: RealServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=120) as client:
        yield client


def test_the_model_is_listed(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]


def test_a_chat_completion_names_paris(client: OpenAI) -> None:
    completion = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": QUESTION}], temperature=0
    )
    choice = completion.choices[0]
    assert "Paris" in (choice.message.content or "")
    assert choice.finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.prompt_tokens > 0
    assert completion.usage.completion_tokens > 0


def test_a_streamed_completion_says_the_same(client: OpenAI) -> None:
    whole = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        max_completion_tokens=24,
    )
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        max_completion_tokens=24,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert choices[0].delta.role == "assistant"
    text = "".join(choice.delta.content or "" for choice in choices)
    assert text == whole.choices[0].message.content
    assert choices[-1].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage


def test_a_conversation_over_the_responses_websocket(client: OpenAI) -> None:
    with client.responses.connect() as connection:
        connection.response.create(model=MODEL, input=QUESTION, temperature=0, store=False)
        first = final_response(connection)
        assert first.status == "completed"
        assert "Paris" in first.output_text
        assert first.usage is not None

        connection.response.create(
            model=MODEL,
            input="And of Italy?",
            previous_response_id=first.id,
            temperature=0,
            max_output_tokens=24,
            store=False,
        )
        second = final_response(connection)
        assert second.previous_response_id == first.id
        assert second.output_text
        assert second.usage is not None
        # question and answer of the first turn are part of the second prompt
        assert second.usage.input_tokens > first.usage.total_tokens


def test_an_unknown_previous_response_leaves_the_socket_usable(client: OpenAI) -> None:
    with client.responses.connect() as connection:
        connection.response.create(input="Go on.", previous_response_id="resp_unknown")
        event = connection.recv()
        assert event.type == "error"
        assert event.error.code == "previous_response_not_found"
        connection.response.create(input=QUESTION, temperature=0, max_output_tokens=8)
        assert "Paris" in final_response(connection).output_text


def test_an_unknown_model_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        client.chat.completions.create(
            model="gpt-imaginary", messages=[{"role": "user", "content": "Hi"}]
        )
    assert raised.value.code == "model_not_found"
    assert raised.value.param == "model"


def test_a_wrong_key_is_refused_on_both_doors(server: RealServer) -> None:
    with OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as raised:
            client.models.list()
        assert raised.value.code == "invalid_api_key"
        with pytest.raises(InvalidStatus) as refused, client.responses.connect():
            pass
        assert refused.value.response.status_code == 401


def test_a_prompt_beyond_the_context_names_both_sizes(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "one " * 9000}]
        )
    assert raised.value.code == "context_length_exceeded"
    sizes = [int(word) for word in raised.value.message.split() if word.isdigit()]
    assert 8192 in sizes
    assert any(size > 9000 for size in sizes)


def final_response(connection: ResponsesConnection) -> Response:
    """Read one response to its end, and check that its events are whole and in order."""
    deltas: list[str] = []
    for number, event in enumerate(connection):
        assert event.type != "error", event
        assert event.sequence_number == number
        if event.type == "response.output_text.delta":
            deltas.append(event.delta)
        elif event.type in ("response.completed", "response.incomplete"):
            assert "".join(deltas) == event.response.output_text
            return event.response
        else:
            assert event.type != "response.failed", event
    raise AssertionError("the server closed the connection")
