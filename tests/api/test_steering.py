"""``response.steer``: input for a response that runs, at each of its moments; and a socket that is
told anything."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types import responses as types

from ds4trio.api.responses.lanes.register import MAX_STEERS
from ds4trio.events import GenerationEvent
from ds4trio.generate import Generator, Prompt
from ds4trio.settings import Settings
from tests.api.helpers import (
    FINAL_EVENTS,
    ResponsesSocket,
    ScriptedEngine,
    answer_text,
    assert_error_event,
    scripted_generator,
    serving_script,
)
from tests.api.speaking import Speaking, call, finished, text, thought

TOOLS = [{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}]


class Held(Speaking):
    """Waits where a script has an event of Trio's."""

    async def generate(self, prompt: Prompt) -> AsyncGenerator[GenerationEvent, None]:
        steps: Sequence[Any] = self.answers.pop(0)
        for step in steps:
            await trio.lowlevel.checkpoint()
            if isinstance(step, trio.Event):
                await step.wait()
            else:
                yield step


@asynccontextmanager
async def talking(*answers: Sequence[Any]) -> AsyncIterator[tuple[ResponsesSocket, Held]]:
    made: list[Held] = []

    def load(settings: Settings) -> tuple[Generator, str]:
        generator = scripted_generator(ScriptedEngine(), settings, kind=Held)
        assert isinstance(generator, Held)
        generator.answers, generator.asked = list(answers), []
        made.append(generator)
        return generator, "scripted"

    async with serving_script(load=load) as api, api.socket() as socket:
        yield socket, made[0]


async def steer(socket: ResponsesSocket, response_id: str, words: Any = "Be brief.") -> None:
    await socket.send(
        {"type": "response.steer", "previous_response_id": response_id, "input": words}
    )


async def begun(socket: ResponsesSocket, kind: str, **fields: Any) -> str:
    """Ask in lane a and wait for an event; the id of the response."""
    await socket.create(stream_id="a", store=False, **fields)
    events = await socket.until_type(kind)
    response_id: str = events[0]["response"]["id"]
    return response_id


def assert_failed(event: dict[str, Any], code: str, words: Any = "Be brief.") -> None:
    if code != "invalid_input":
        types.ResponseSteerFailedEvent.model_validate(event)
    assert event["type"] == "response.steer.failed"
    assert event["error"]["code"] == code
    assert event["steer"]["input"] == words


async def test_the_item_is_finished_and_a_response_with_the_input_follows() -> None:
    go = trio.Event()
    first = [text("One"), go, text(" two"), finished()]
    async with talking(first, [text("Short"), finished()]) as (socket, generator):
        parent = await begun(socket, "response.output_text.delta", instructions="Count.")
        await steer(socket, parent)
        accepted = await socket.event()
        types.ResponseSteerAcceptedEvent.model_validate(accepted)
        assert accepted["type"] == "response.steer.accepted"
        assert accepted["stream_id"] == "a"
        assert accepted["steer"]["previous_response_id"] == parent
        go.set()
        rest = [accepted, *await socket.until_type(*FINAL_EVENTS)]
        numbers = [event["sequence_number"] for event in rest]
        assert numbers == list(range(numbers[0], numbers[0] + len(rest)))
        assert rest[-1]["type"] == "response.completed"
        assert answer_text(rest[-1]["response"]) == "One two"

        follows = await socket.until_type(*FINAL_EVENTS)
        assert [event["sequence_number"] for event in follows] == list(range(len(follows)))
        assert {event["stream_id"] for event in follows} == {"a"}
        response = follows[-1]["response"]
        assert response["previous_response_id"] == parent
        assert response["instructions"] == "Count."
        assert answer_text(response) == "Short"
        said = [(message["role"], message["content"]) for message in generator.asked[-1].messages]
        assert said[-2:] == [("assistant", "One two"), ("user", "Be brief.")]


async def test_between_two_items_the_response_ends_as_steered() -> None:
    go = trio.Event()
    first = [thought("Hm"), go, text("Never said"), finished()]
    async with talking(first, [text("Short"), finished()]) as (socket, generator):
        parent = await begun(socket, "response.reasoning_text.delta")
        await steer(socket, parent, [{"role": "user", "content": "Be"}])
        await steer(
            socket, parent, [{"role": "user", "content": [{"type": "input_text", "text": "brief"}]}]
        )
        assert [(await socket.event())["type"] for _ in "ab"] == ["response.steer.accepted"] * 2
        go.set()
        steered = (await socket.until_type(*FINAL_EVENTS))[-1]
        types.ResponseIncompleteEvent.model_validate(steered)
        assert steered["response"]["incomplete_details"] == {"reason": "steered"}
        (item,) = steered["response"]["output"]
        assert (item["type"], item["status"]) == ("reasoning", "completed")
        assert answer_text(await socket.finish()) == "Short"
        assert [m["content"] for m in generator.asked[-1].messages][-2:] == ["Be", "brief"]


async def test_before_the_first_item_the_response_ends_at_once() -> None:
    async with talking([trio.Event()], [text("Short"), finished()]) as (socket, generator):
        parent = await begun(socket, "response.in_progress")
        await steer(socket, parent)
        assert (await socket.event())["type"] == "response.steer.accepted"
        steered = await socket.finish()
        assert steered["incomplete_details"] == {"reason": "steered"}
        assert steered["output"] == []
        assert answer_text(await socket.finish()) == "Short"
        assert [message["role"] for message in generator.asked[-1].messages] == ["user", "user"]


async def test_input_waits_for_the_results_of_calls() -> None:
    go = trio.Event()
    first = [*call(0, "look", "{}"), go, finished("tool_calls")]
    answers = (first, [text("Fork"), finished()], [text("Done"), finished()])
    async with talking(*answers) as (socket, generator):
        parent = await begun(socket, "response.output_item.done", tools=TOOLS)
        await steer(socket, parent)
        assert (await socket.event())["type"] == "response.steer.accepted"
        go.set()
        response = await socket.finish()
        pending = await socket.event()
        types.ResponseSteerPendingEvent.model_validate(pending)
        assert (pending["type"], pending["stream_id"]) == ("response.steer.pending", "a")
        call_id = response["output"][0]["call_id"]
        stub = {"type": "function_call_output", "call_id": call_id, "name": "look"}
        assert pending["required_input"] == [stub]

        result = [{**stub, "output": "seen"}, {"role": "user", "content": "Now?"}]
        more = {"previous_response_id": parent, "tools": TOOLS, "store": False}
        await socket.answer(result, stream_id="b", **more)  # another lane has no part in it
        assert [m["content"] for m in generator.asked[-1].messages][-2:] == ["seen", "Now?"]
        await socket.answer(result, stream_id="a", **more)
        contents = [message["content"] for message in generator.asked[-1].messages]
        assert contents[-3:] == ["seen", "Be brief.", "Now?"]


async def test_input_that_comes_too_late_or_for_nobody_goes_back() -> None:
    async with talking([text("Hi"), finished()], [text("x"), finished("length")]) as (socket, _):
        await steer(socket, "resp_unknown")
        assert_failed(await socket.event(), "response_not_found")
        for code in ("response_already_completed", "response_not_active"):
            parent = (await socket.answer(store=False))["id"]
            await steer(socket, parent)
            assert_failed(await socket.event(), code)


async def test_input_that_is_none_goes_back() -> None:
    async with talking([text("Hi"), trio.Event()]) as (socket, _):
        parent = await begun(socket, "response.output_text.delta")
        for words in (
            "",
            [],
            5,
            None,
            [{"role": "system", "content": "x"}],
            [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}],
            [{"type": "function_call_output", "call_id": "c", "output": ""}],
        ):
            await steer(socket, parent, words)
            event = await socket.event()
            assert_failed(event, "invalid_input", words)
            assert event["stream_id"] == "a"
        await socket.send(
            {
                "type": "response.steer",
                "previous_response_id": parent,
                "input": "Hi",
                "stream_id": "a",
            }
        )
        assert_error_event(await socket.event(), 400, "unknown_parameter")
        for _ in range(MAX_STEERS):
            await steer(socket, parent)
            assert (await socket.event())["type"] == "response.steer.accepted"
        await steer(socket, parent)
        assert_failed(await socket.event(), "too_many_pending_steers")


async def test_a_cancelled_response_gives_its_input_back_and_nothing_follows() -> None:
    async with talking([text("Hi"), trio.Event()], [text("Next"), finished()]) as (socket, _):
        parent = await begun(socket, "response.output_text.delta")
        await steer(socket, parent)
        accepted = await socket.event()
        await socket.cancel(stream_id="a")
        assert (await socket.finish())["incomplete_details"] == {"reason": "cancelled"}
        failed = await socket.event()
        assert_failed(failed, "response_not_active")
        assert failed["steer"]["id"] == accepted["steer"]["id"]
        assert (await socket.answer(store=False))["previous_response_id"] is None


# -- anything at all

NAMES = st.sampled_from([None, "a", "b", "c.1", "", "not one", 7])
WORDS: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(["Hi", "", [], None, 5, [{"role": "user", "content": "Hi"}], [{"role": "x"}]]),
    st.text(max_size=20),
)
IDS = st.sampled_from([None, "resp_unknown", "LATEST", "LATEST", 5])


CANCEL = st.fixed_dictionaries(
    {"type": st.just("response.cancel")},
    optional={
        "stream_id": st.sampled_from([None, "a", "b", "c.1", "unused"]),
        "response_id": st.sampled_from([None, "resp_unknown", "LATEST"]),
    },
)
STEER = st.fixed_dictionaries(
    {
        "type": st.just("response.steer"),
        "previous_response_id": st.sampled_from(["resp_unknown", "LATEST"]),
        "input": WORDS,
    }
)
CREATE = st.fixed_dictionaries(
    {"type": st.just("response.create"), "input": WORDS},
    optional={
        "stream_id": NAMES,
        "previous_response_id": IDS,
        "generate": st.booleans(),
        "max_output_tokens": st.sampled_from([1, 3, 30, 0, "x"]),
        "temperature": st.sampled_from([0, 1, 9, None, "hot"]),
        "store": st.sampled_from([False, None, 1]),
        "dance": st.booleans(),
    },
)
MESSAGES = st.one_of(
    CREATE,
    CREATE,
    CANCEL,
    STEER,
    st.sampled_from(["", "{", "null", "[1]", b"\x00\xff", b"", "{}", '{"type": "x"}']),
)


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.lists(st.lists(MESSAGES, min_size=1, max_size=12), min_size=1, max_size=4))
def test_whatever_a_socket_is_told_each_request_has_one_end(rounds: list[list[Any]]) -> None:
    trio.run(tell, rounds)


async def tell(rounds: list[list[Any]]) -> None:
    async with serving_script(ScriptedEngine("Hello there")) as api:
        async with api.socket() as socket:
            latest = "resp_none"
            for messages in rounds:
                latest = await tell_all(socket, messages, latest)
            assert (await socket.answer("Hi"))["status"] == "completed"
        await api.at_rest()


async def tell_all(socket: ResponsesSocket, messages: list[Any], latest: str) -> str:
    """Send a round and read all that must come of it; the id of its last response.

    A request has one end, an error or a final event; a frame that is no message has an error, and
    steering of what has ended an answer. Cancels may have an error.
    """
    due = 0
    for one in messages:
        if isinstance(one, dict):
            one = {key: latest if value == "LATEST" else value for key, value in one.items()}
        await socket.send(one)
        due += not (isinstance(one, dict) and one["type"] == "response.cancel")
    # A refusal of this comes at once, and so behind those of all cancels.
    await socket.send({"type": "response.create", "input": "", "stream_id": ""})
    due += 1
    running: set[str] = set()
    while due:
        event = await socket.event()
        kind = event["type"]
        if kind == "response.created":
            assert event["response"]["id"] not in running
            latest = event["response"]["id"]
            running.add(latest)
        elif kind in FINAL_EVENTS:
            running.remove(event["response"]["id"])
            due -= 1
        elif kind == "error":
            due -= event["code"] != "response_cancel_not_active"
        elif kind == "response.steer.failed":
            due -= 1
    assert not running
    return latest
