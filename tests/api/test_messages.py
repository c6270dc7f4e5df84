"""Anthropic's Messages, with Anthropic's own client."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types import Message
from pydantic import BaseModel

from ds4trio.api import sse
from ds4trio.chat.formats import JsonSchema
from tests.api.helpers import ScriptedEngine, serving_script
from tests.api.messages_client import HELLO, MODEL, PATH, WEATHER, ask, client_of, events_of
from tests.api.speaking import Script, call, finished, serving_events, text, thought


async def test_a_conversation() -> None:
    async with serving_script(ScriptedEngine("Ahoy 👋 sailor.")) as api, client_of(api) as client:
        history: list[Any] = [{"role": "user", "content": "Greet me."}]
        first = await client.messages.create(
            model=MODEL, max_tokens=100, system="Be a pirate.", messages=history
        )
        assert [block.to_dict() for block in first.content] == [
            {"type": "text", "text": "Ahoy 👋 sailor."}
        ]
        assert (first.stop_reason, first.stop_sequence) == ("end_turn", None)
        assert first.id.startswith("msg_")
        assert first._request_id is not None
        history += [first.to_param(), {"role": "user", "content": [{"type": "text", "text": "?"}]}]
        second = await client.messages.create(
            model=MODEL, max_tokens=100, system="Be a pirate.", messages=history
        )
        assert second.usage.cache_read_input_tokens
        told = second.usage.input_tokens + second.usage.cache_read_input_tokens
        counted = await client.messages.count_tokens(
            model=MODEL, system="Be a pirate.", messages=history
        )
        assert told == counted.input_tokens


async def test_streamed_or_not_it_is_the_same_message() -> None:
    async with serving_script(ScriptedEngine("one two three")) as api, client_of(api) as client:
        whole = await client.messages.create(model=MODEL, max_tokens=9, messages=HELLO)
        async with client.messages.stream(model=MODEL, max_tokens=9, messages=HELLO) as stream:
            texts = [piece async for piece in stream.text_stream]
            streamed = await stream.get_final_message()
        assert len(texts) > 1
        assert "".join(texts) == "one two three"
        varies: Any = {"id", "usage", "ds4trio"}
        assert streamed.to_dict().keys() - varies == whole.to_dict().keys() - varies
        for name in whole.to_dict().keys() - varies:
            assert streamed.to_dict()[name] == whole.to_dict()[name]
        assert streamed.usage.output_tokens == whole.usage.output_tokens


@pytest.mark.parametrize("stream", [False, True])
async def test_why_it_stopped(stream: bool) -> None:
    engine = ScriptedEngine("Count: 1 2 3 STOP 4", pages=100, context_length=60)
    async with serving_script(engine) as api, client_of(api) as client:

        async def stopped(**fields: Any) -> tuple[str | None, str | None, str]:
            asked = {"model": MODEL, "max_tokens": 50, "messages": HELLO, **fields}
            if stream:
                async with client.messages.stream(**asked) as events:
                    message: Any = await events.get_final_message()
            else:
                message = await client.messages.create(**asked)
            return message.stop_reason, message.stop_sequence, message.content[0].text

        assert await stopped() == ("end_turn", None, "Count: 1 2 3 STOP 4")
        assert await stopped(stop_sequences=["5", "STOP"]) == (
            "stop_sequence",
            "STOP",
            "Count: 1 2 3 ",
        )
        assert (await stopped(max_tokens=3))[:2] == ("max_tokens", None)
        engine.repeat = True
        assert (await stopped(max_tokens=10_000))[:2] == ("model_context_window_exceeded", None)


@pytest.mark.parametrize("stream", [False, True])
async def test_no_tokens_only_warm_the_cache(stream: bool) -> None:
    async with serving_script(ScriptedEngine("word")) as api:
        if stream:
            kinds = [event["type"] for event in await events_of(api, max_tokens=0)]
            assert kinds == ["message_start", "ping", "message_delta", "message_stop"]
        else:
            message = Message.model_validate((await ask(api, max_tokens=0)).json())
            assert (message.content, message.stop_reason) == ([], "max_tokens")
            assert message.usage.output_tokens == 0
        after = Message.model_validate((await ask(api)).json())
        assert after.usage.cache_read_input_tokens


async def test_a_tool_loop() -> None:
    first: Script = [
        thought("They ask for "),
        thought("weather."),
        text("Let me "),
        text("look."),
        *call(0, "get_weather", '{"city": ', '"Ber', 'lin"}'),
        *call(1, "get_weather", '{"city":"Rome"}'),
        finished("tool_calls", thought=2),
    ]
    last: Script = [text("Sunny in both."), finished()]
    async with serving_events(first, first, last) as (api, generator), client_of(api) as client:
        asked: Any = {"model": MODEL, "max_tokens": 2000, "tools": [WEATHER]}
        history: list[Any] = [{"role": "user", "content": "Weather in Berlin and Rome?"}]
        whole = await client.messages.create(messages=history, **asked)
        async with client.messages.stream(messages=history, **asked) as stream:
            message = await stream.get_final_message()
        assert [b.to_dict() for b in message.content] == [b.to_dict() for b in whole.content]
        assert message.stop_reason == whole.stop_reason == "tool_use"
        assert whole.usage.output_tokens_details is not None
        assert whole.usage.output_tokens_details.thinking_tokens == 2
        kinds = [block.type for block in message.content]
        assert kinds == ["thinking", "text", "tool_use", "tool_use"]
        uses = [block for block in message.content if block.type == "tool_use"]
        assert [use.input for use in uses] == [{"city": "Berlin"}, {"city": "Rome"}]
        results = [
            {
                "type": "tool_result",
                "tool_use_id": uses[0].id,
                "content": [{"type": "text", "text": "sun"}],
            },
            {
                "type": "tool_result",
                "tool_use_id": uses[1].id,
                "content": "no such city",
                "is_error": True,
            },
            {"type": "text", "text": "Well?"},
        ]
        history += [message.to_param(), {"role": "user", "content": results}]
        answer = await client.messages.create(messages=history, **asked)
        assert answer.content[0].to_dict()["text"] == "Sunny in both."
    (tool,) = generator.asked[0].tools.known
    assert (tool.name, tool.description) == ("get_weather", "The weather of a city.")
    assert tool.parameters == WEATHER["input_schema"]
    user, assistant, *told, question = generator.asked[-1].messages
    assert user == {"role": "user", "content": "Weather in Berlin and Rome?"}
    assert assistant["content"] == "Let me look."
    assert assistant["reasoning_content"] == "They ask for weather."
    assert [json.loads(c["function"]["arguments"]) for c in assistant["tool_calls"]] == [
        {"city": "Berlin"},
        {"city": "Rome"},
    ]
    assert told == [
        {"role": "tool", "tool_call_id": uses[0].id, "content": "sun"},
        {"role": "tool", "tool_call_id": uses[1].id, "content": "Error: no such city"},
    ]
    assert question == {"role": "user", "content": "Well?"}


async def test_the_order_of_events() -> None:
    answer: Script = [
        thought("hm"),
        text(""),
        text("a"),
        *call(0, "f", "{}"),
        text("b"),
        finished("tool_calls"),
    ]
    async with serving_events(answer) as (api, _):
        events = await events_of(api)
    told = [(e["type"], e.get("index"), e.get("delta", {}).get("type")) for e in events]
    assert told == [
        ("message_start", None, None),
        ("ping", None, None),
        ("content_block_start", 0, None),
        ("content_block_delta", 0, "thinking_delta"),
        ("content_block_delta", 0, "signature_delta"),
        ("content_block_stop", 0, None),
        ("content_block_start", 1, None),
        ("content_block_delta", 1, "text_delta"),
        ("content_block_stop", 1, None),
        ("content_block_start", 2, None),
        ("content_block_delta", 2, "input_json_delta"),
        ("content_block_stop", 2, None),
        ("content_block_start", 3, None),
        ("content_block_delta", 3, "text_delta"),
        ("content_block_stop", 3, None),
        ("message_delta", None, None),
        ("message_stop", None, None),
    ]
    usage = events[-2]["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (7, 3)
    assert usage["output_tokens"] == 7


async def test_a_silent_stream_is_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_SECONDS", 0.01)
    engine = ScriptedEngine("said")
    async with serving_script(engine) as api:
        engine.gate.clear()
        body = {"model": MODEL, "max_tokens": 9, "messages": HELLO, "stream": True}
        async with api.http.stream("POST", PATH, json=body) as response:
            names: list[str] = []
            async for line in response.aiter_lines():
                names += [line] if line.startswith("event:") else []
                if names.count("event: ping") == 3:
                    engine.gate.set()
        names = [name for name in names if name != "event: ping"]
        assert names[0] == "event: message_start"
        assert names[-1] == "event: message_stop"


async def test_thinking_may_be_left_out_of_the_answer() -> None:
    answer: Script = [thought("secret"), text("said"), finished()]
    thinking: Any = {"type": "adaptive", "display": "omitted"}
    async with serving_events(answer, answer) as (api, _), client_of(api) as client:
        asked: Any = {"model": MODEL, "max_tokens": 10, "messages": HELLO, "thinking": thinking}
        whole = await client.messages.create(**asked)
        async with client.messages.stream(**asked) as stream:
            streamed = await stream.get_final_message()
        for message in (whole, streamed):
            thinks, says = [block.to_dict() for block in message.content]
            assert thinks["thinking"] == ""
            assert thinks["signature"]
            assert says["text"] == "said"


async def test_a_call_that_a_limit_cuts_has_no_input() -> None:
    answer: Script = [*call(0, "f", '{"city": "Ber'), finished("length", tokens=100)]
    async with serving_events(answer) as (api, _):
        message = Message.model_validate((await ask(api)).json())
    assert message.stop_reason == "max_tokens"
    assert message.content[0].to_dict()["input"] == {}


class City(BaseModel):
    """What the structured answer is."""

    name: str
    people: int


async def test_a_structured_answer() -> None:
    answer: Script = [text('{"name": "Rome", '), text('"people": 3}'), finished()]
    async with serving_events(answer, answer) as (api, generator), client_of(api) as client:
        asked: Any = {"model": MODEL, "max_tokens": 50, "messages": HELLO, "output_format": City}
        parsed = await client.messages.parse(**asked)
        assert parsed.parsed_output == City(name="Rome", people=3)
        async with client.messages.stream(**asked) as stream:
            assert (await stream.get_final_message()).parsed_output == City(name="Rome", people=3)
    for request in generator.asked:
        assert isinstance(request.format, JsonSchema)
        assert isinstance(request.format.schema, dict)
        assert set(request.format.schema["properties"]) == {"name", "people"}
