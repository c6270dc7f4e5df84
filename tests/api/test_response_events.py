"""What the generator tells, as events of the Responses API, without a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from ds4trio.api.responses.events import Event, ResponseEvents
from ds4trio.api.schemas.responses import ResponseCreate
from ds4trio.errors import BatchFailed
from ds4trio.generate import (
    Finished,
    FinishReason,
    GenerationEvent,
    ReasoningDelta,
    TextDelta,
    Timings,
    TokenLogprob,
    TokenText,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallEnded,
    Usage,
)

OPENAI: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TOOLS = [{"type": "function", "name": "f", "parameters": {}, "strict": True}]
CALL: list[GenerationEvent] = [
    ToolCallBegun(0, "call_1", "f"),
    ToolCallArguments(0, '{"a', 1, 1),
    ToolCallArguments(0, '": 1}', 2, 1),
    ToolCallEnded(0, '{"a": 1}'),
]
SECOND_CALL: list[GenerationEvent] = [
    ToolCallBegun(1, "call_2", "f"),
    ToolCallArguments(1, "{}", 2, 1),
    ToolCallEnded(1, "{}"),
]
THOUGHT: list[GenerationEvent] = [ReasoningDelta("Let me ", 2, 1), ReasoningDelta("see.", 1, 1)]


def text(said: str, logprobs: tuple[TokenLogprob, ...] = ()) -> TextDelta:
    return TextDelta(said, 1, logprobs, 1)


def logprob(token: str) -> TokenLogprob:
    drawn = TokenText(token, token.encode(), -0.5)
    return TokenLogprob(drawn, (drawn,))


def finished(reason: FinishReason = "stop") -> Finished:
    return Finished(reason, Usage(10, 6, 4, 3), Timings(0, 0, 0, 0, 1))


def told(
    generated: Sequence[GenerationEvent], end: FinishReason | None = "stop", **wanted: Any
) -> tuple[list[Event], ResponseEvents]:
    """All events of a response; each is what OpenAI's package says it is."""
    answer = ResponseEvents(ResponseCreate(input="Hi", **wanted), "model")
    events = answer.begin()
    for event in generated:
        events += answer.take(event)
    if end is not None:
        events += answer.take(finished(end))
    checked(events)
    return events, answer


def checked(events: Sequence[Event]) -> None:
    for event in events:
        OPENAI.validate_python(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def kinds(events: Sequence[Event]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def joined(events: Sequence[Event]) -> list[dict[str, Any]]:
    """The output as a client that reads only the stream puts it together."""
    items: list[dict[str, Any]] = []
    for event in events:
        match event["type"]:
            case "response.output_item.added":
                assert event["output_index"] == len(items)
                items.append({**event["item"], "text": ""})
            case "response.output_item.done":
                item = items[event["output_index"]]
                assert item["id"] == event["item"]["id"]
            case kind if kind.endswith(".delta"):
                item = items[event["output_index"]]
                assert item["id"] == event["item_id"]
                item["text"] += event["delta"]
    return items


def said(item: dict[str, Any]) -> str:
    if item["type"] == "function_call":
        return str(item["arguments"])
    return "".join(part["text"] for part in item["content"])


@pytest.mark.parametrize(
    ("generated", "types"),
    [
        ([text("Hel"), text("lo")], ["message"]),
        ([*THOUGHT, text("Yes")], ["reasoning", "message"]),
        (CALL, ["function_call"]),
        (
            [*THOUGHT, text("I ask."), *CALL, *SECOND_CALL],
            ["reasoning", "message", "function_call", "function_call"],
        ),
        ([*CALL, text("Done.")], ["function_call", "message"]),
        ([], ["message"]),
    ],
)
def test_stream_and_object_are_the_same(generated: list[GenerationEvent], types: list[str]) -> None:
    events, answer = told(generated, tools=TOOLS)
    final = answer.response
    Response.model_validate(final)
    assert events[-1]["response"] == final
    assert [item["type"] for item in final["output"]] == types
    assert {item["status"] for item in final["output"]} == {"completed"}
    assert [item["text"] for item in joined(events)] == [said(item) for item in final["output"]]
    done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert done == final["output"]
    assert final["usage"]["input_tokens_details"]["cached_tokens"] == 4
    assert final["usage"]["output_tokens_details"]["reasoning_tokens"] == 3


def test_items_have_their_events_in_order() -> None:
    events, _ = told([*THOUGHT, *CALL, text("Done.")], tools=TOOLS)
    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]


@pytest.mark.parametrize(
    "cut",
    [
        [ReasoningDelta("Let", 1, 1)],
        [text("Hel")],
        [ToolCallBegun(0, "call_1", "f"), ToolCallArguments(0, '{"a', 1, 1)],
        [
            ToolCallBegun(0, "call_1", "f"),
            ToolCallArguments(0, '{"a', 1, 1),
            ToolCallEnded(0, '{"a'),
        ],
    ],
)
def test_limit_leaves_the_last_item_incomplete(cut: list[GenerationEvent]) -> None:
    events, answer = told([*THOUGHT, text("So"), *cut], end="length", tools=TOOLS)
    statuses = [item["status"] for item in answer.response["output"]]
    assert statuses == ["completed"] * (len(statuses) - 1) + ["incomplete"]
    assert events[-1]["type"] == "response.incomplete"
    assert answer.response["incomplete_details"] == {"reason": "max_output_tokens"}


def test_call_that_was_complete_before_the_limit_stays_so() -> None:
    _, answer = told([*CALL, TextDelta("", 1, (), 1)], end="length", tools=TOOLS)
    assert [item["status"] for item in answer.response["output"]] == ["completed"]


def test_logprobs_come_with_their_text_and_none_is_lost() -> None:
    tokens = [logprob(letter) for letter in "abcd"]
    events, answer = told(
        [
            text("", (tokens[0],)),
            text("ab", (tokens[1],)),
            text("c", (tokens[2],)),
            text("", (tokens[3],)),
        ],
        include=["message.output_text.logprobs"],
    )
    in_deltas = [
        entry["token"]
        for event in events
        if event["type"] == "response.output_text.delta"
        for entry in event["logprobs"]
    ]
    assert in_deltas == ["a", "b", "c", "d"]
    (part,) = answer.response["output"][0]["content"]
    assert [entry["token"] for entry in part["logprobs"]] == in_deltas
    assert part["logprobs"][0]["bytes"] == [97]


def test_logprobs_come_only_when_asked_for() -> None:
    events, answer = told([text("a", (logprob("a"),))])
    assert all(event.get("logprobs", []) == [] for event in events)
    assert answer.response["output"][0]["content"][0]["logprobs"] == []


def test_cancelled_response_has_what_there_is() -> None:
    events, answer = told([*THOUGHT, text("Hel")], end=None)
    events += answer.cut("cancelled", 10, status="cancelled")
    checked_but_reason = events[:-1]
    checked(checked_but_reason)
    final = events[-1]["response"]
    assert (final["status"], events[-1]["type"]) == ("cancelled", "response.incomplete")
    assert [item["status"] for item in final["output"]] == ["completed", "incomplete"]
    assert final["usage"]["output_tokens"] == 4
    assert final["usage"]["output_tokens_details"]["reasoning_tokens"] == 3


def test_failed_response_says_why_and_closes_its_item() -> None:
    events, answer = told([text("Hel")], end=None)
    events += answer.failed(BatchFailed("the step failed"))
    assert kinds(events)[-4:] == [
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "failed",
    ]
    assert answer.response["error"] == {"code": "batch_failed", "message": "the step failed"}
    assert answer.response["output"][0]["status"] == "incomplete"


def test_lane_is_echoed_on_every_event() -> None:
    answer = ResponseEvents(ResponseCreate(input="Hi"), "model", stream_id="lane 1")
    events = [*answer.begin(), *answer.take(text("Hi")), *answer.take(finished())]
    assert {event["stream_id"] for event in events} == {"lane 1"}


def test_queued_response_is_in_progress_later() -> None:
    answer = ResponseEvents(ResponseCreate(input="Hi", background=True), "model")
    events = [*answer.begin(queued=True), *answer.started(), *answer.take(finished())]
    checked(events)
    assert kinds(events)[:3] == ["created", "queued", "in_progress"]
    assert [event["response"]["status"] for event in events[:3]] == [
        "queued",
        "queued",
        "in_progress",
    ]


def test_events_sent_before_do_not_change() -> None:
    answer = ResponseEvents(ResponseCreate(input="Hi"), "model")
    (created, _) = answer.begin()
    answer.take(text("Hi"))
    answer.take(finished())
    assert (created["response"]["status"], created["response"]["output"]) == ("in_progress", [])
