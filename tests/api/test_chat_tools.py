"""Chat Completions: tools, reasoning and formats, as they go in and as they come out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from ds4trio.chat.formats import Choice, Format, JsonObject, JsonSchema, Lark, Regex
from ds4trio.chat.tool import Tool
from ds4trio.errors import BatchFailed, WireError
from ds4trio.events import (
    Finished,
    FinishReason,
    GenerationEvent,
    PrefillProgress,
    ReasoningDelta,
    Timings,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallEnded,
    Usage,
)
from ds4trio.generate import Reasoning
from tests.api.helpers import USER, Api, assert_openai_error, delta_text
from tests.api.speaking import Speaking, serving_events, text

THOUGHT = (ReasoningDelta("Hmm, ", 1, 1), ReasoningDelta("", 1, 1), ReasoningDelta("two.", 1, 1))
CALLS = (
    ToolCallBegun(0, "call_a", "now"),
    ToolCallArguments(0, '{"zone": ', 3, 1),
    ToolCallArguments(0, '"UTC"}', 2, 1),
    ToolCallEnded(0, '{"zone": "UTC"}'),
    ToolCallBegun(1, "call_b", "roll"),
    ToolCallArguments(1, "{}", 1, 1),
    ToolCallEnded(1, "{}"),
)
NOW = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}
ROLL = {
    "type": "function",
    "function": {"name": "roll", "description": "Rolls dice.", "strict": True},
}
TOOLS = [NOW, ROLL]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def end(reason: FinishReason = "stop", reasoning: int = 0) -> Finished:
    return Finished(reason, Usage(7, 5, 3, reasoning), Timings(0.5, 1.5, 2.0, 2.0, 1.0))


@asynccontextmanager
async def telling(
    *events: GenerationEvent | WireError,
) -> AsyncIterator[tuple[Api, Speaking]]:
    """A server that answers everything with the same events."""
    async with serving_events(*[events] * 100) as told:
        yield told


def joined(chunks: list[Any]) -> dict[str, Any]:
    """The message that the deltas of a stream make, in the way that clients join them."""
    assert chunks[-1] == "[DONE]"
    message: dict[str, Any] = {}
    for chunk in chunks[:-1]:
        ChatCompletionChunk.model_validate(chunk)
        for choice in chunk["choices"]:
            for name, value in choice["delta"].items():
                if name == "tool_calls":
                    for piece in value:
                        _join_call(message.setdefault("tool_calls", []), piece)
                elif name == "role" or value is None or message.get(name) is None:
                    message[name] = value
                else:
                    message[name] += value
    return message


def _join_call(calls: list[Any], piece: dict[str, Any]) -> None:
    if piece["index"] == len(calls):
        calls.append({"id": piece["id"], "type": piece["type"], "function": piece["function"]})
    else:
        calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]


@pytest.mark.parametrize(
    ("events", "content", "reason"),
    [
        ((text("Four."),), "Four.", "stop"),
        ((*THOUGHT, text("Four")), "Four", "stop"),
        ((*THOUGHT, *CALLS), None, "tool_calls"),
        ((text("Let me see."), *CALLS), "Let me see.", "tool_calls"),
        ((*THOUGHT,), "", "length"),
        ((), "", "stop"),
    ],
)
async def test_a_stream_and_a_whole_answer_are_the_same(
    events: Any, content: str | None, reason: Any
) -> None:
    async with telling(*events, end(reason, reasoning=2)) as (api, _):
        whole = await api.completion(tools=TOOLS)
        chunks = await api.streamed(tools=TOOLS, stream_options={"include_usage": True})
    ChatCompletion.model_validate(whole)
    (choice,) = whole["choices"]
    message = choice["message"]
    assert message["content"] == content
    assert choice["finish_reason"] == reason
    assert message.pop("refusal") is None
    assert joined(chunks) == message
    assert message.get("reasoning_content") == ("Hmm, two." if THOUGHT[0] in events else None)
    called = [call["function"]["arguments"] for call in message.get("tool_calls", [])]
    assert called == (['{"zone": "UTC"}', "{}"] if CALLS[0] in events else [])
    assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}
    assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    assert chunks[-2]["usage"] == whole["usage"]
    assert chunks[-3]["choices"][0]["finish_reason"] == reason
    assert chunks[-3]["timings"] == whole["timings"]


async def test_a_call_begins_with_its_name_and_goes_on_with_arguments() -> None:
    async with telling(*CALLS, end("tool_calls")) as (api, _):
        chunks = await api.streamed(tools=TOOLS)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert deltas[0] == {"role": "assistant", "content": None}
    begun = {"name": "now", "arguments": ""}
    assert deltas[1]["tool_calls"] == [
        {"index": 0, "type": "function", "id": "call_a", "function": begun}
    ]
    assert deltas[2]["tool_calls"] == [{"index": 0, "function": {"arguments": '{"zone": '}}]


async def test_times_are_told_as_llama_cpp_does() -> None:
    async with telling(text("x"), end()) as (api, _):
        timings = (await api.completion())["timings"]
    assert timings == {
        "cache_n": 3,
        "prompt_n": 4,
        "prompt_ms": 1000.0,
        "prompt_per_second": 4.0,
        "predicted_n": 5,
        "predicted_ms": 2000.0,
        "predicted_per_second": 2.0,
    }


async def test_progress_is_told_in_a_stream_that_asks_for_it() -> None:
    async with telling(PrefillProgress(5, 3, 7), text("x"), end()) as (api, generator):
        chunks = await api.streamed(return_progress=True)
        asked = [generator.asked[-1].progress]
        await api.completion(return_progress=True)
        assert [*asked, generator.asked[-1].progress] == [True, False]
    (progress,) = [chunk for chunk in chunks if "prompt_progress" in chunk]
    assert progress["choices"][0]["delta"] == {}
    assert progress["prompt_progress"].pop("time_ms") >= 0
    assert progress["prompt_progress"] == {"total": 7, "cache": 3, "processed": 5}
    assert joined(chunks)["content"] == "x"


async def test_a_failure_behind_a_call_is_an_error_and_no_end() -> None:
    failure = BatchFailed("the step failed")
    async with telling(*CALLS[:2], failure) as (api, _):
        chunks = await api.streamed(tools=TOOLS)
        assert_openai_error(await api.chat(tools=TOOLS), 500, code="batch_failed")
    assert chunks[-1]["error"]["code"] == "batch_failed"
    assert "[DONE]" not in chunks


# -- what is asked of the waist


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ("auto", None)),
        ("auto", ("auto", None)),
        ("none", ("none", None)),
        ("required", ("required", None)),
        ({"type": "function", "function": {"name": "roll"}}, ("required", ("roll",))),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NOW]}},
            None,
        ),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "auto",
                    "tools": [{"type": "function", "function": {"name": "now"}}],
                },
            },
            ("auto", ("now",)),
        ),
    ],
    ids=str,
)
async def test_tools_and_the_choice_of_them(choice: Any, expected: Any) -> None:
    async with telling(text("x"), end()) as (api, generator):
        response = await api.chat(tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
        if expected is None:  # a tool is named there, not described
            assert_openai_error(response, 400)
            return
        assert response.status_code == 200, response.text
        known = (Tool("now", "", {"type": "object"}), Tool("roll", "Rolls dice.", {}, strict=True))
        asked = generator.asked[-1].tools
        assert tuple(asked.known) == known
        assert (asked.choice, asked.allowed) == expected
        assert not asked.parallel


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("tools", {"tools": [{"type": "custom", "custom": {"name": "x"}}]}),
    ("tools", {"tools": [{"type": "function"}]}),
    ("tools", {"tools": [{"type": "function", "function": {"name": "a b"}}]}),
    ("tools", {"tools": [{"type": "function", "function": {"name": "now\n"}}]}),
    ("tools", {"tools": [{"type": "function", "function": {"name": "x" * 65}}]}),
    ("tools", {"tools": [NOW, NOW]}),
    ("tools", {"tools": [NOW] * 129}),
    ("tools", {"tools": {}}),
    ("tool_choice", {"tool_choice": "required"}),
    ("tool_choice", {"tool_choice": "sometimes", "tools": TOOLS}),
    ("tool_choice", {"tool_choice": {"type": "function"}, "tools": TOOLS}),
    ("tool_choice", {"tool_choice": {"type": "allowed_tools"}, "tools": TOOLS}),
    (
        "tool_choice",
        {"tool_choice": {"type": "function", "function": {"name": "fly"}}, "tools": TOOLS},
    ),
    ("functions", {"functions": [{"name": "now"}]}),
    ("function_call", {"function_call": {"name": "now"}}),
    ("response_format", {"response_format": {"type": "xml"}}),
    ("response_format", {"response_format": {"type": "json_schema"}}),
    ("response_format", {"response_format": {"type": "text", "schema": SCHEMA}}),
    ("response_format", {"response_format": {"type": "json_schema", "json_schema": {"name": ""}}}),
    ("json_schema", {"response_format": {"type": "json_object"}, "json_schema": SCHEMA}),
    ("grammar", {"grammar": ""}),
    ("structured_outputs", {"structured_outputs": {}}),
    ("structured_outputs", {"structured_outputs": {"regex": "a", "choice": ["a"]}}),
    ("structured_outputs", {"structured_outputs": {"choice": []}}),
    ("structured_outputs", {"structured_outputs": {"choice": [""]}}),
    ("reasoning_effort", {"reasoning_effort": "utmost"}),
    ("reasoning_effort", {"reasoning_effort": "low", "reasoning": {"effort": "high"}}),
    ("reasoning", {"reasoning": {"max_tokens": -1}}),
    ("add_generation_prompt", {"add_generation_prompt": False}),
    ("continue_final_message", {"continue_final_message": True}),
    ("messages", {"messages": [{"role": "user", "content": "Hi", "tool_calls": [{}]}]}),
    (
        "messages",
        {"messages": [*USER, {"role": "assistant", "function_call": {"name": "now"}}]},
    ),
    ("guided_json", {"guided_json": SCHEMA}),
    ("moderation", {"moderation": {"model": "x"}}),
]


async def test_what_is_refused_is_named() -> None:
    async with telling(text("x"), end()) as (api, _):
        for param, fields in REFUSED:
            error = assert_openai_error(await api.chat(**fields), 400)
            assert error["param"].startswith(param), (fields, error)
        assert (await api.chat()).status_code == 200


FORMATS: list[tuple[dict[str, Any], Format | None]] = [
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": {"type": "json_object"}}, JsonObject()),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, JsonSchema(SCHEMA)),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "strict": True, "schema": SCHEMA},
            }
        },
        JsonSchema(SCHEMA),
    ),
    ({"json_schema": SCHEMA}, JsonSchema(SCHEMA)),
    ({"grammar": 'root ::= "a"'}, Lark('root ::= "a"')),
    ({"structured_outputs": {"json": SCHEMA}}, JsonSchema(SCHEMA)),
    ({"structured_outputs": {"json_object": True}}, JsonObject()),
    ({"structured_outputs": {"regex": "[ab]+"}}, Regex("[ab]+")),
    ({"structured_outputs": {"choice": ["a", "b"]}}, Choice(("a", "b"))),
    ({"structured_outputs": {"grammar": 'start: "a"'}}, Lark('start: "a"')),
]


async def test_formats_in_each_way_that_clients_write_them() -> None:
    async with telling(text("x"), end()) as (api, generator):
        for fields, expected in FORMATS:
            await api.completion(**fields)
            assert generator.asked[-1].format == expected, fields
            body = {"prompt": "x", **fields}
            response = await api.http.post("/v1/completions", json=body)
            assert response.status_code == 200, response.text
            assert generator.asked[-1].format == expected, fields


async def test_reasoning_and_the_template_are_steered() -> None:
    async with telling(text("x"), end()) as (api, generator):
        await api.completion(reasoning_effort="low")
        assert generator.asked[-1].reasoning == Reasoning("low")
        await api.completion(reasoning={"effort": "high", "max_tokens": 100})
        assert generator.asked[-1].reasoning == Reasoning("high", 100)
        await api.completion(reasoning_effort="low", reasoning={"max_tokens": 0})
        assert generator.asked[-1].reasoning == Reasoning("low", 0)
        await api.completion(reasoning_effort="max")
        assert generator.asked[-1].reasoning == Reasoning("xhigh")
        await api.completion(chat_template_kwargs={"enable_thinking": False})
        assert generator.asked[-1].template_switches == {"enable_thinking": False}
        begun = [*USER, {"role": "assistant", "content": "It is"}]
        for said in (None, False):
            await api.completion(
                messages=begun, continue_final_message=True, add_generation_prompt=said
            )
            assert generator.asked[-1].continues
        both: dict[str, Any] = {"continue_final_message": True, "add_generation_prompt": True}
        refusal = await api.chat(messages=begun, **both)
        assert_openai_error(refusal, 400, param="add_generation_prompt")


async def _messages(api: Api, generator: Any, messages: list[Any]) -> list[Any]:
    await api.completion(messages=messages)
    return list(generator.asked[-1].messages)


async def test_a_round_of_tools_reaches_the_template() -> None:
    call = {"id": "call_a", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    answer = {
        "role": "assistant",
        "content": None,
        "reasoning_content": "Hmm.",
        "refusal": None,
        "function_call": None,
        "audio": None,
        "annotations": [],
        "tool_calls": [{**call, "index": 0}],
    }
    result = {"role": "tool", "tool_call_id": "call_a", "content": "noon"}
    async with telling(text("x"), end()) as (api, generator):
        kept = await _messages(api, generator, [*USER, answer, result])
        assert kept[1:] == [
            {"role": "assistant", "reasoning_content": "Hmm.", "tool_calls": [call]},
            result,
        ]
        refused = {"role": "assistant", "content": None, "refusal": "No."}
        assert (await _messages(api, generator, [*USER, refused]))[1]["content"] == "No."


async def test_text_alone_needs_no_null_at_its_beginning() -> None:
    async with telling(text("x"), end()) as (api, _):
        chunks = await api.streamed()
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert delta_text(chunks) == "x"
