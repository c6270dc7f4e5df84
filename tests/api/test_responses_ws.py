"""``/v1/responses`` as a WebSocket: events, turns, conversations, cancelling, hostile clients."""

from __future__ import annotations

from typing import Any

import openai
import pytest
import trio
from openai.types import responses as openai_types
from pydantic import BaseModel

from ds4trio.api.responses.lanes.lane import MAX_WAITING
from tests.api.helpers import (
    ENDLESS,
    FINAL_EVENTS,
    WALL,
    Api,
    ResponsesSocket,
    ScriptedEngine,
    answer_text,
    assert_error_event,
    delta_text,
    serving_script,
    until,
)
from tests.api.transport_harness import TEXT, frame, upgrade

OPENAI_EVENTS: dict[str, type[BaseModel]] = {
    "response.created": openai_types.ResponseCreatedEvent,
    "response.in_progress": openai_types.ResponseInProgressEvent,
    "response.output_item.added": openai_types.ResponseOutputItemAddedEvent,
    "response.content_part.added": openai_types.ResponseContentPartAddedEvent,
    "response.output_text.delta": openai_types.ResponseTextDeltaEvent,
    "response.output_text.done": openai_types.ResponseTextDoneEvent,
    "response.content_part.done": openai_types.ResponseContentPartDoneEvent,
    "response.output_item.done": openai_types.ResponseOutputItemDoneEvent,
    "response.completed": openai_types.ResponseCompletedEvent,
    "response.incomplete": openai_types.ResponseIncompleteEvent,
}
KINDS_BEFORE = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
]
KINDS_AFTER = [
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
]


def endless() -> ScriptedEngine:
    return ScriptedEngine(repeat=True)


async def usable(socket: ResponsesSocket) -> None:
    """The socket answers a request as if nothing had been."""
    response = await socket.answer(max_output_tokens=2)
    assert response["error"] is None
    assert answer_text(response)


# -- the events of a response


async def test_events_come_in_order_and_are_numbered() -> None:
    async with serving_script(ScriptedEngine("Hello there")) as api, api.socket() as socket:
        await socket.create()
        events = await socket.until_type(*FINAL_EVENTS)
    for event in events:
        OPENAI_EVENTS[event["type"]].model_validate(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"] for event in events]
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    between = ["response.output_text.delta"] * len(deltas)
    assert kinds == [*KINDS_BEFORE, *between, *KINDS_AFTER, "response.completed"]

    final = events[-1]["response"]
    assert "".join(event["delta"] for event in deltas) == "Hello there"
    assert events[-4]["text"] == events[-3]["part"]["text"] == answer_text(final) == "Hello there"
    (item,) = final["output"]
    assert events[-2]["item"] == item
    assert {e["item_id"] for e in events if "item_id" in e} == {item["id"]}
    assert {e["response"]["id"] for e in events if "response" in e} == {final["id"]}
    assert [e["response"]["status"] for e in events[:2]] == ["in_progress", "in_progress"]
    assert (final["status"], item["status"]) == ("completed", "completed")
    assert final["incomplete_details"] is None


async def test_usage_and_timings_come_at_the_end() -> None:
    async with serving_script(ScriptedEngine("HELLO")) as api, api.socket() as socket:
        response = await socket.answer()
        prompt_tokens = (await api.completion())["usage"]["prompt_tokens"]
    usage = response["usage"]
    assert usage["input_tokens"] == prompt_tokens
    assert usage["output_tokens"] == len("HELLO") + 1  # and the end token
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["input_tokens_details"]["cached_tokens"] == 0
    assert usage["output_tokens_details"]["reasoning_tokens"] == 0
    times = response["ds4trio"]
    assert all(
        times[name] >= 0
        for name in ("queue_seconds", "first_token_seconds", "decode_seconds", "tokens_per_second")
    )
    assert times["mean_batch_size"] == 1


async def test_deltas_tell_how_many_tokens_they_carry_and_who_shared_the_batch() -> None:
    async with serving_script() as api, api.socket() as socket:
        await socket.create(max_output_tokens=20)
        events = await socket.until_type(*FINAL_EVENTS)
    extras = [event["ds4trio"] for event in events if event["type"].endswith("text.delta")]
    assert sum(extra["tokens"] for extra in extras) == 20
    assert all(extra["batch_size"] == 1 for extra in extras)


async def test_limit_makes_the_response_incomplete() -> None:
    async with serving_script() as api, api.socket() as socket:
        await socket.create(max_output_tokens=3)
        events = await socket.until_type(*FINAL_EVENTS)
        openai_types.ResponseIncompleteEvent.model_validate(events[-1])
        response = events[-1]["response"]
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert answer_text(response) == ENDLESS[:3]
        await usable(socket)


async def test_answer_of_no_text_has_all_its_events() -> None:
    async with serving_script(ScriptedEngine("")) as api, api.socket() as socket:
        await socket.create()
        events = await socket.until_type(*FINAL_EVENTS)
    assert [e["type"] for e in events] == [*KINDS_BEFORE, *KINDS_AFTER, "response.completed"]
    assert answer_text(events[-1]["response"]) == ""


# -- input


async def _input_tokens(socket: ResponsesSocket, text: Any, **fields: Any) -> int:
    response = await socket.answer(text, max_output_tokens=1, **fields)
    tokens: int = response["usage"]["input_tokens"]
    return tokens


async def test_forms_of_input_say_the_same() -> None:
    parts = [{"type": "input_text", "text": "Say "}, {"type": "input_text", "text": "it."}]
    async with serving_script() as api, api.socket() as socket:
        counts = {
            await _input_tokens(socket, "Say it."),
            await _input_tokens(socket, [{"role": "user", "content": "Say it."}]),
            await _input_tokens(
                socket, [{"type": "message", "role": "user", "content": "Say it."}]
            ),
            await _input_tokens(socket, [{"type": "message", "role": "user", "content": parts}]),
        }
        assert len(counts) == 1


async def test_instructions_are_a_system_message_for_this_response_alone() -> None:
    async with serving_script() as api, api.socket() as socket:
        plain = await _input_tokens(socket, "Say it.")
        system = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Say it."},
        ]
        instructed = await socket.answer("Say it.", instructions="Be brief.", max_output_tokens=1)
        assert instructed["instructions"] == "Be brief."
        assert instructed["usage"]["input_tokens"] == await _input_tokens(socket, system) > plain
        more = {"max_output_tokens": 1, "previous_response_id": instructed["id"]}
        without = await socket.answer("And?", **more)
        again = await socket.answer("And?", **more, instructions="Be brief.")
        extra = instructed["usage"]["input_tokens"] - plain
        assert again["usage"]["input_tokens"] - without["usage"]["input_tokens"] == extra


@pytest.mark.parametrize(
    "fields",
    [
        {"input": ""},
        {"input": []},
        {"input": None},
        {"input": 5},
        {"input": {"role": "user", "content": "Hi"}},
        {"input": ["Hi"]},
        {"input": [{"role": "user"}]},
        {"input": [{"content": "Hi"}]},
        {"input": [{"role": "robot", "content": "Hi"}]},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]},
        {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
        {"input": [{"type": "function_call_output", "call_id": "1", "output": ""}]},
        {"temperature": -1},
        {"temperature": 3},
        {"temperature": "hot"},
        {"top_p": 1.1},
        {"max_output_tokens": 0},
        {"max_output_tokens": -1},
        {"max_output_tokens": 1.5},
        {"instructions": 5},
        {"previous_response_id": 5},
        {"store": "no"},
        {"max_output_tokenz": 5},
    ],
    ids=str,
)
async def test_refused_requests_name_the_field_and_leave_the_socket(fields: Any) -> None:
    (name,) = fields
    async with serving_script() as api, api.socket() as socket:
        await socket.send({"type": "response.create", "input": "Hi", **fields})
        event = await socket.event()
        assert_error_event(event, 400)
        assert name in (event["param"] or "")
        await usable(socket)


@pytest.mark.parametrize(
    "fields",
    [
        {"store": False},
        {"previous_response_id": None},
        {"temperature": None, "top_p": None, "max_output_tokens": None, "instructions": None},
        {"metadata": {"place": "here"}},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "truncation": "disabled"},
        {"model": "scripted"},
    ],
    ids=str,
)
async def test_fields_that_ask_for_nothing_more_are_taken(fields: Any) -> None:
    async with serving_script(ScriptedEngine("Hi")) as api, api.socket() as socket:
        assert (await socket.answer(**fields))["status"] == "completed"


async def test_other_model_is_not_found() -> None:
    async with serving_script() as api, api.socket() as socket:
        await socket.create(model="gpt-4o")
        assert_error_event(await socket.event(), 404, "model_not_found")
        await usable(socket)


async def test_prompt_beyond_the_context_names_both_sizes() -> None:
    async with serving_script(ScriptedEngine(context_length=64)) as api, api.socket() as socket:
        await socket.create("z" * 100)
        event = await socket.event()
        assert_error_event(event, 400, "context_length_exceeded")
        assert "64" in event["message"]
        await usable(socket)


BAD_FRAMES: list[Any] = [
    "",
    "{",
    "null",
    "5",
    '"response.create"',
    "[]",
    '[{"type": "response.create", "input": "Hi"}]',
    "{}",
    '{"type": 5}',
    '{"type": null}',
    '{"type": "response.dance"}',
    '{"input": "Hi"}',
    '{"type": "response.create", "input": "Hi"} and more',
    '{"type": "response.create", "input": "Hi", "temperature": NaN}',
    '{"type": "response.create", "input": "Hi", "temperature": 1e999}',
    '{"type": "response.create", "input": "\\ud800"',
    '{"type": "response.cancel", "and": "more"}',
    '{"type": "response.create", "input": ' + "[" * 50_000,
    '{"a":' * 50_000,
    b'{"type": "response.create", "input": "Hi"}',
    b"\x00\xff",
]


async def test_frames_that_are_no_requests_leave_the_socket() -> None:  # 20
    async with serving_script() as api, api.socket() as socket:
        for message in BAD_FRAMES:
            await socket.send(message)
            assert_error_event(await socket.event(), 400)
        await usable(socket)


# -- turns


async def test_second_request_waits_its_turn() -> None:
    engine = ScriptedEngine("Hello there")
    async with serving_script(engine) as api, api.socket() as socket:
        for number in range(3):
            await socket.create(f"Question {number}", metadata={"number": f"{number}"})
        for number in range(3):
            events = await socket.until_type(*FINAL_EVENTS)
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
            assert events[0]["type"] == "response.created"
            assert events[0]["response"]["metadata"] == {"number": f"{number}"}
            assert answer_text(events[-1]["response"]) == "Hello there"
    assert engine.deepest_company == 1


async def test_too_many_waiting_requests_are_refused_and_the_others_answered() -> None:
    engine = ScriptedEngine("Hi")
    async with serving_script(engine) as api, api.socket() as socket:
        await socket.create(metadata={"number": "0"})
        async with api.step_held(engine):
            await socket.until_type("response.in_progress")
            for number in range(1, MAX_WAITING + 4):
                await socket.create(metadata={"number": f"{number}"})
            for _ in range(3):  # errors come at once, though the running response says nothing
                assert_error_event(await socket.event(), 400, "websocket_stream_limit_reached")
        responses = [await socket.finish() for _ in range(MAX_WAITING + 1)]
        numbers = [int(response["metadata"]["number"]) for response in responses]
        assert numbers == list(range(MAX_WAITING + 1))
        await usable(socket)


async def test_sockets_share_the_batch() -> None:
    engine = endless()
    async with serving_script(engine, coalesce_us=100_000) as api:
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                async with api.socket() as socket:
                    response = await socket.answer(max_output_tokens=300)
                    assert answer_text(response) == (ENDLESS * 12)[:300]
                    assert response["ds4trio"]["mean_batch_size"] > 1

            for _ in range(4):
                nursery.start_soon(ask)
        assert engine.deepest_company == 4
        await api.at_rest()


# -- conversations


async def test_conversation_goes_on_from_a_response() -> None:
    async with serving_script(ScriptedEngine("Hello there")) as api, api.socket() as socket:
        first = await socket.answer("Who are you?")
        second = await socket.answer("And I?", previous_response_id=first["id"])
        assert second["previous_response_id"] == first["id"]
        third = await socket.answer("Why?", previous_response_id=second["id"])
        history: list[Any] = []
        for question in ("Who are you?", "And I?", "Why?"):
            history += [{"role": "user", "content": question}]
            history += [{"role": "assistant", "content": "Hello there"}]
        counts = [response["usage"]["input_tokens"] for response in (first, second, third)]
        assert counts == [await _input_tokens(socket, history[:end]) for end in (1, 3, 5)]


async def test_conversation_can_branch() -> None:
    async with serving_script(ScriptedEngine("HELLO")) as api, api.socket() as socket:
        root = await socket.answer("Who are you?")
        one = await socket.answer("And I?", previous_response_id=root["id"])
        other = await socket.answer("And I?", previous_response_id=root["id"])
        assert one["id"] != other["id"]
        assert one["usage"]["input_tokens"] == other["usage"]["input_tokens"]


async def test_answers_and_questions_in_parts_can_be_sent_again() -> None:
    """The items that a client got back, as a new connection's input."""
    async with serving_script(ScriptedEngine("Hello there")) as api:
        async with api.socket() as socket:
            first = await socket.answer("Who are you?")
            more = await socket.answer("And I?", previous_response_id=first["id"])
        async with api.socket() as socket:
            history = [
                {"role": "user", "content": "Who are you?"},
                *first["output"],
                {"role": "user", "content": [{"type": "input_text", "text": "And I?"}]},
            ]
            assert await _input_tokens(socket, history) == more["usage"]["input_tokens"]


async def test_unknown_response_is_an_error_event() -> None:
    async with serving_script(ScriptedEngine("HELLO")) as api, api.socket() as socket:
        await socket.create(previous_response_id="resp_unknown")
        event = await socket.event()
        assert_error_event(event, 400, "previous_response_not_found")
        assert event["param"] == "previous_response_id"
        await usable(socket)


async def test_conversations_that_are_not_stored_stay_in_their_connection() -> None:
    async with serving_script(ScriptedEngine("HELLO")) as api:
        async with api.socket() as mine, api.socket() as other:
            response = await mine.answer("A secret.", store=False)
            await other.create("What is it?", previous_response_id=response["id"])
            assert_error_event(await other.event(), 400, "previous_response_not_found")
            followed = await mine.answer("What is it?", previous_response_id=response["id"])
            assert followed["status"] == "completed"


# -- cancelling


async def test_cancel_ends_the_answer_with_what_there_is() -> None:
    async with serving_script(endless()) as api, api.socket() as socket:
        await socket.create(max_output_tokens=40_000)
        events = await socket.until_type("response.output_text.delta")
        await socket.cancel()
        events += await socket.until_type(*FINAL_EVENTS)
        await api.at_rest()
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events[-1]["type"] == "response.incomplete"
        response = events[-1]["response"]
        assert response["incomplete_details"]["reason"] == "cancelled"
        said = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
        assert answer_text(response) == said
        assert (ENDLESS * 2000).startswith(said)

        history = [
            {"role": "user", "content": "Say something."},
            {"role": "assistant", "content": said},
            {"role": "user", "content": "Go on."},
        ]
        followed = await socket.answer(
            "Go on.", previous_response_id=response["id"], max_output_tokens=1
        )
        assert followed["usage"]["input_tokens"] == await _input_tokens(socket, history)


async def test_cancelled_response_says_what_it_used() -> None:
    async with serving_script(endless()) as api, api.socket() as socket:
        await socket.create(max_output_tokens=40_000)
        await socket.until_type("response.output_text.delta")
        await socket.cancel()
        response = await socket.finish()
        assert response["usage"]["input_tokens"] > 0
        assert response["usage"]["output_tokens"] >= len(answer_text(response))


async def test_cancel_right_behind_its_request_finds_it() -> None:
    """A client that changes its mind at once: its request was sent first, so it is the one."""
    async with serving_script(endless()) as api, api.socket() as socket:
        await socket.create(max_output_tokens=40_000)
        await socket.cancel()
        response = await socket.finish()
        assert response["status"] == "incomplete"
        assert response["incomplete_details"]["reason"] == "cancelled"
        await api.at_rest()
        await usable(socket)


async def test_cancel_spares_the_request_behind() -> None:
    async with serving_script(endless()) as api, api.socket() as socket:
        await socket.create(max_output_tokens=40_000)
        await socket.create("And then?", max_output_tokens=3)
        await socket.until_type("response.output_text.delta")
        await socket.cancel()
        assert (await socket.finish())["incomplete_details"]["reason"] == "cancelled"
        assert answer_text(await socket.finish()) == ENDLESS[:3]


async def test_cancel_in_the_queue_of_the_server() -> None:
    engine = endless()
    async with serving_script(engine, max_sessions=1) as api:
        async with api.socket() as first, api.socket() as second:
            await first.create(max_output_tokens=40_000)
            await first.until_type("response.output_text.delta")
            await second.create()
            await second.until_type("response.in_progress")
            await until(lambda: api.coalescer.waiting == 1)
            await second.cancel()
            assert (await second.finish())["incomplete_details"]["reason"] == "cancelled"
            assert api.coalescer.waiting == 0
            await first.cancel()
            await first.finish()
            await usable(second)


async def test_cancel_of_another_response_does_not_stop_this_one() -> None:
    async with serving_script(endless()) as api, api.socket() as socket:
        earlier = await socket.answer(max_output_tokens=1)
        await socket.create(max_output_tokens=40_000)
        events = await socket.until_type("response.output_text.delta")
        await socket.cancel(response_id=earlier["id"])
        event = await socket.event()
        while event["type"] == "response.output_text.delta":
            event = await socket.event()
        assert_error_event(event, 400, "response_cancel_not_active")
        await socket.cancel(response_id=events[0]["response"]["id"])
        assert (await socket.finish())["incomplete_details"]["reason"] == "cancelled"


async def test_cancel_of_nothing_is_an_error_event() -> None:
    async with serving_script() as api, api.socket() as socket:
        await socket.cancel()
        assert_error_event(await socket.event(), 400)
        await usable(socket)
        await socket.cancel()
        assert_error_event(await socket.event(), 400)


# -- leaving


async def test_closing_frees_pages_and_slot_at_once() -> None:
    """A step runs then, and the next one is prepared; there is no row of it in any other."""
    engine = endless()
    async with serving_script(engine) as api, api.socket() as bystander:
        await bystander.create(max_output_tokens=1000)
        async with api.socket() as socket:
            await socket.create(max_output_tokens=40_000)
            await socket.until_type("response.output_text.delta")
            async with api.step_held(engine):
                held = len(engine.batches)
                await socket.connection.aclose()
            await until(lambda: len(engine.batches) > held + 2)
            assert {len(items) for items in engine.batches[held + 2 :]} == {1}
        assert answer_text(await bystander.finish()) == (ENDLESS * 40)[:1000]
        await api.at_rest()


async def test_client_that_never_reads_is_dropped_and_disturbs_nobody() -> None:  # 22
    engine = endless()
    async with serving_script(engine, send_timeout=1.0) as api:
        engine.script = WALL
        deaf_socket = await api.raw(receive_buffer=4096)
        await deaf_socket.open("/v1/responses")
        create = b'{"type": "response.create", "input": "Hi", "max_output_tokens": 40000}'
        await deaf_socket.send(frame(TEXT, create))
        deaf_stream = await api.raw(receive_buffer=4096)
        await deaf_stream.send(api.post_bytes(stream=True, max_tokens=40_000))
        await until(lambda: len(engine.drawn) == 2 and all(engine.drawn.values()))

        engine.script = ENDLESS
        async with api.socket() as bystander:
            response = await bystander.answer(max_output_tokens=500)
            assert answer_text(response) == (ENDLESS * 20)[:500]
        await until(lambda: api.coalescer.sessions == 0)
        await api.at_rest()
        assert all(drawn < 5_000 for drawn in engine.drawn.values())  # they rested, and then left


async def test_many_clients_that_come_and_go_leave_nothing_behind() -> None:  # 1
    engine = endless()
    async with serving_script(engine, max_sessions=3) as api:
        rounds = iter(range(200))

        async def come_and_go() -> None:
            for number in rounds:
                kind = number % 5
                if kind == 0:
                    async with api.socket() as socket:
                        await socket.create(max_output_tokens=40_000)
                        await socket.until_type("response.output_text.delta")
                elif kind == 1:
                    async with api.socket() as socket:
                        await socket.create(max_output_tokens=40_000)
                elif kind == 2:
                    async with api.chunks(max_tokens=40_000) as chunks:
                        await anext(chunks)
                else:
                    client = await api.raw()
                    if kind == 3:
                        await client.send(api.post_bytes(max_tokens=40_000))
                    else:
                        await client.send(upgrade("/v1/responses")[: number % 160])
                    await client.stream.aclose()

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for _ in range(6):
                    nursery.start_soon(come_and_go)
        await api.at_rest()
        assert not engine.sequences
        assert engine.free_pages == engine.info.total_pages
        with trio.fail_after(5):
            text = delta_text(await api.streamed(max_tokens=3))
        assert text == ENDLESS[:3]


# -- failures


async def test_engine_fault_fails_every_member_once_and_nobody_after() -> None:
    engine = endless()
    kinds = ["socket", "socket", "socket", "stream", "stream", "stream", "whole", "whole"]
    texts = [""] * len(kinds)
    codes: list[str] = []

    async def ask(api: Api, number: int) -> None:
        if kinds[number] == "socket":
            async with api.socket() as socket:
                await socket.create(max_output_tokens=1000)
                events = await socket.until_type(*FINAL_EVENTS)
                assert events[-1]["type"] == "response.failed"
                assert events[-1]["response"]["status"] == "failed"
                assert [e["sequence_number"] for e in events] == list(range(len(events)))
                texts[number] = "".join(e.get("delta", "") for e in events)
                codes.append(events[-1]["response"]["error"]["code"])
                await usable(socket)
        elif kinds[number] == "stream":
            chunks = await api.streamed(max_tokens=1000)
            assert "[DONE]" not in chunks
            codes.extend(chunk["error"]["code"] for chunk in chunks if "error" in chunk)
            texts[number] = delta_text(chunks)
        else:
            response = await api.chat(max_tokens=1000)
            assert response.status_code == 500
            codes.append(response.json()["error"]["code"])

    async with serving_script(engine, on_batch_failure="fail") as api:
        together = 0

        def fault(items: Any) -> bool:
            nonlocal together
            together += len(items) == len(kinds)
            return len(items) == len(kinds) and together == 3

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, api, 0)
            async with api.step_held(engine):
                for number in range(1, len(kinds)):
                    nursery.start_soon(ask, api, number)
                    await until(lambda number=number: api.coalescer.sessions == number + 1)  # type: ignore[misc]
                engine.fault = fault
        assert codes == ["batch_failed"] * len(kinds)
        drawn = [engine.drawn[sequence] for sequence in sorted(engine.drawn)[: len(kinds)]]
        for text, kind, count in zip(texts, kinds, drawn, strict=True):
            assert text == ("" if kind == "whole" else ENDLESS[:count])
        assert min(drawn) >= 2
        assert (await api.chat(max_tokens=3)).status_code == 200
        await api.at_rest()


async def test_full_server_is_an_error_event() -> None:
    async with serving_script(endless(), max_sessions=1, max_waiting=0) as api:
        async with api.socket() as first, api.socket() as second:
            await first.create(max_output_tokens=40_000)
            await first.until_type("response.output_text.delta")
            await second.create()
            assert_error_event(await second.event(), 503, "server_busy")
            await first.cancel()
            await first.finish()
            await api.at_rest()
            await usable(second)


# -- the official client


async def test_official_client_connects_streams_and_continues() -> None:
    async with serving_script(ScriptedEngine("Hello there")) as api:

        def talk() -> tuple[str, str]:
            client = openai.OpenAI(base_url=f"{api.server.url}/v1", api_key="none", max_retries=0)
            with client, client.responses.connect() as connection:
                texts = []
                previous: str | None = None
                for question in ("Who are you?", "And I?"):
                    connection.response.create(
                        model="scripted", input=question, previous_response_id=previous
                    )
                    for event in connection:
                        if event.type == "response.completed":
                            previous = event.response.id
                            texts.append(event.response.output_text)
                            break
                return texts[0], texts[1]

        assert await trio.to_thread.run_sync(talk) == ("Hello there", "Hello there")
        await api.at_rest()
