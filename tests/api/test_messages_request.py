"""What requests of Anthropic's Messages ask for, and what of it is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ds4trio.api.anthropic.request import prompt_request
from ds4trio.api.schemas.messages import CountTokensRequest
from ds4trio.api.wire import decode
from ds4trio.errors import InvalidRequest
from ds4trio.generate import GenerationRequest
from ds4trio.request import Reasoning
from tests.api.helpers import USER, serving_script
from tests.api.messages_client import MODEL, WEATHER, ask, assert_error, client_of
from tests.api.speaking import finished, serving_events, text


def asked(**fields: Any) -> GenerationRequest:
    body = {"model": MODEL, "messages": USER, **fields}
    return prompt_request(decode(json.dumps(body), CountTokensRequest))


@pytest.mark.parametrize(
    ("fields", "reasoning"),
    [
        ({}, Reasoning()),
        ({"thinking": {"type": "disabled"}}, Reasoning("none")),
        ({"thinking": {"type": "adaptive"}}, Reasoning()),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, Reasoning(None, 1024)),
        (
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}},
            Reasoning("xhigh"),
        ),
        ({"output_config": {"effort": "low"}}, Reasoning("low")),
    ],
)
def test_how_much_it_may_think(fields: dict[str, Any], reasoning: Reasoning) -> None:
    assert asked(**fields).reasoning == reasoning


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ("auto", None, True)),
        ({"type": "auto", "disable_parallel_tool_use": True}, ("auto", None, False)),
        ({"type": "any"}, ("required", None, True)),
        ({"type": "tool", "name": "get_weather"}, ("required", ("get_weather",), True)),
        ({"type": "none"}, ("none", None, True)),
    ],
)
def test_which_tools_it_may_call(choice: Any, expected: tuple[Any, ...]) -> None:
    tools = asked(tools=[WEATHER, {**WEATHER, "name": "other"}], tool_choice=choice).tools
    assert (tools.choice, tools.allowed, tools.parallel) == expected
    assert len(tools.known) == 2


def test_turns_of_one_role_are_one_and_the_system_comes_first() -> None:
    request = asked(
        system=[
            {"type": "text", "text": "Be ", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
            {"type": "text", "text": "brief."},
        ],
        messages=[
            {"role": "user", "content": "a"},
            {"role": "user", "content": [{"type": "text", "text": "b"}]},
            {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]},
            {"role": "assistant", "content": "c"},
            {"role": "system", "content": "The user is gone."},
        ],
    )
    assert request.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a\n\nb"},
        {"role": "assistant", "content": "c"},
        {"role": "system", "content": "The user is gone."},
    ]
    assert not request.continues


def test_an_answer_goes_on_with_the_assistants_last_message() -> None:
    begun = asked(messages=[*USER, {"role": "assistant", "content": "The answer is ("}])
    assert begun.continues
    assert begun.messages[-1]["content"] == "The answer is ("
    empty = asked(messages=[*USER, {"role": "assistant", "content": ""}])
    assert not empty.continues
    assert empty.messages == USER


async def test_what_a_coding_agent_sends_is_taken() -> None:
    """Many tools with large schemas, marks for a cache, betas, fields of accounting."""
    ephemeral = {"type": "ephemeral", "ttl": "1h", "scope": "global"}
    properties = {
        f"option_{n}": {
            "type": ["string", "null"],
            "description": "x" * 300,
            "enum": ["a", "b", None],
            "$comment": "y",
        }
        for n in range(50)
    }
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    tools: list[Any] = [
        {
            "name": f"mcp__server__tool_{n}",
            "description": "does things",
            "input_schema": schema,
            "eager_input_streaming": True,
        }
        for n in range(120)
    ]
    tools[-1]["cache_control"] = ephemeral
    marked: Any = {"type": "text", "text": "You are an agent.", "cache_control": ephemeral}
    async with serving_events([text("Done."), finished()]) as (api, generator):
        async with client_of(api) as client:
            async with client.beta.messages.stream(
                model=MODEL,
                max_tokens=32_000,
                system=[{"type": "text", "text": "cc_version=2"}, marked],
                messages=[{"role": "user", "content": [{"type": "text", "text": "go"}, marked]}],
                tools=tools,
                metadata={"user_id": '{"device_id":"x","session_id":"y"}'},
                thinking={"type": "adaptive"},
                output_config={"effort": "high"},
                context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
                cache_control={"type": "ephemeral"},
                service_tier="auto",
                speed="standard",
                betas=["context-management-2025-06-27", "interleaved-thinking-2025-05-14"],
                extra_headers={"x-app": "cli"},
                extra_body={"temperature": 1},
            ) as stream:
                message = await stream.get_final_message()
        assert message.content[0].to_dict()["text"] == "Done."
        assert message.context_management is not None
        assert message.context_management.applied_edits == []
    assert len(generator.asked[0].tools.known) == 120
    assert generator.asked[0].reasoning == Reasoning("high")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": ...}, "missing_parameter"),
    ({"model": ...}, "missing_parameter"),
    ({"messages": []}, "invalid_request"),
    ({"messages": [{"role": "assistant", "content": ""}]}, "invalid_request"),
    ({"max_tokens": -1}, "invalid_request"),
    ({"temperature": 3}, "invalid_request"),
    ({"unheard_of": 1}, "unknown_parameter"),
    ({"stop_sequences": [""]}, "invalid_request"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "unsupported_parameter"),
    ({"tools": [{"name": "f"}]}, "missing_parameter"),
    ({"tools": [{"name": "f g", "input_schema": {}}]}, "invalid_request"),
    ({"tools": [WEATHER, WEATHER]}, "invalid_request"),
    ({"tool_choice": {"type": "any"}}, "invalid_request"),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}}, "invalid_request"),
    ({"thinking": {"type": "enabled"}}, "missing_parameter"),
    ({"mcp_servers": [{"name": "x"}]}, "unsupported_parameter"),
    ({"container": "c"}, "unsupported_parameter"),
]


async def test_what_is_refused() -> None:
    async with serving_script() as api:
        for fields, code in REFUSED:
            assert_error(await ask(api, **fields), 400, "invalid_request_error", code)


@pytest.mark.parametrize("kind", ["image", "document", "search_result"])
def test_only_text_is_read(kind: str) -> None:
    block = {"type": kind, "source": {"type": "url", "url": "http://x"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [block]}
    for content, place in (
        ([block], "messages[0].content[0]"),
        ([{"type": "text", "text": "see"}, result], "messages[0].content[1].content[0]"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            asked(messages=[{"role": "user", "content": content}])
        assert (refused.value.code, refused.value.param) == ("unsupported_content", place)


def test_an_answer_cannot_go_on_with_a_tool_call() -> None:
    use = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    with pytest.raises(InvalidRequest, match="tool_result"):
        asked(messages=[*USER, {"role": "assistant", "content": [use]}])
