"""Lanes of the Responses WebSocket: order, company, limits, forks, cancelling, the end."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import openai
import pytest
import trio
from openai.types.responses import ResponsesServerEvent
from pydantic import TypeAdapter
from trio.testing import wait_all_tasks_blocked

from ds4trio.api.responses.lanes import connection
from ds4trio.api.responses.lanes.kept import MAX_KEPT
from ds4trio.api.responses.lanes.lane import MAX_LANES, MAX_RUNNING
from tests.api.helpers import (
    ENDLESS,
    FINAL_EVENTS,
    PATIENCE,
    WALL,
    ResponsesSocket,
    ScriptedEngine,
    answer_text,
    assert_error_event,
    serving_script,
    until,
)
from tests.api.test_shutdown import close_code
from tests.api.transport_harness import TEXT, frame

SERVER_EVENT: TypeAdapter[Any] = TypeAdapter(ResponsesServerEvent)


def endless() -> ScriptedEngine:
    return ScriptedEngine(repeat=True)


async def finals(socket: ResponsesSocket, count: int) -> list[dict[str, Any]]:
    """So many final events and errors, in order."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        event = await socket.event()
        if event["type"] in (*FINAL_EVENTS, "error"):
            found.append(event)
    return found


async def first_deltas(socket: ResponsesSocket, lanes: set[str | None]) -> dict[str | None, str]:
    """Read until each lane has said something; the ids of their responses."""
    ids: dict[str | None, str] = {}
    silent = set(lanes)
    while silent:
        event = await socket.event()
        if event["type"] == "response.created":
            ids[event.get("stream_id")] = event["response"]["id"]
        if event["type"] == "response.output_text.delta":
            silent.discard(event.get("stream_id"))
    return ids


# -- side by side, and in order


async def test_lanes_share_the_batch_and_every_event_names_its_lane() -> None:
    engine = endless()
    names = ["a", "b-1", "c.2", "D_3", None]
    async with serving_script(engine, coalesce_us=100_000) as api, api.socket() as socket:
        for name in names:
            lane = {} if name is None else {"stream_id": name}
            await socket.create(max_output_tokens=200, metadata={"lane": f"{name}"}, **lane)
        events: dict[str | None, list[dict[str, Any]]] = {name: [] for name in names}
        order: list[str | None] = []
        while sum(found[-1]["type"] in FINAL_EVENTS for found in events.values() if found) < 5:
            event = await socket.event()
            SERVER_EVENT.validate_python(event)
            assert event.get("stream_id", "left out") is not None
            events[event.get("stream_id")].append(event)
            order.append(event.get("stream_id"))
        for name, own in events.items():
            assert [event["sequence_number"] for event in own] == list(range(len(own)))
            response = own[-1]["response"]
            assert response["metadata"] == {"lane": f"{name}"}
            assert answer_text(response) == (ENDLESS * 8)[:200]
        assert engine.deepest_company == len(names)
        turns = sum(one != other for one, other in pairwise(order))
        assert turns > len(names)  # they interleave
        await api.at_rest()


async def test_requests_of_one_lane_are_answered_in_turn_beside_another_lane() -> None:
    engine = ScriptedEngine("Hello there")
    async with serving_script(engine) as api, api.socket() as socket:
        for number in range(4):
            await socket.create(stream_id="a", metadata={"number": f"a{number}"})
            await socket.create(stream_id="b", metadata={"number": f"b{number}"})
        running: set[str] = set()
        seen: list[str] = []
        while len(seen) < 8 or running:
            event = await socket.event()
            if event["type"] == "response.created":
                assert event["stream_id"] not in running  # never two of one lane
                running.add(event["stream_id"])
                seen.append(event["response"]["metadata"]["number"])
            if event["type"] == "response.completed":
                running.remove(event["stream_id"])
        for name in "ab":
            own = [number for number in seen if number.startswith(name)]
            assert own == [f"{name}{number}" for number in range(4)]
    assert engine.deepest_company == 2


async def test_seventeenth_lane_runs_when_another_one_is_through() -> None:
    engine = endless()
    async with serving_script(engine) as api, api.socket() as socket:
        names = [f"lane{number}" for number in range(MAX_RUNNING)]
        for name in names:
            await socket.create(max_output_tokens=40_000, stream_id=name)
        await first_deltas(socket, set(names))
        await socket.create(max_output_tokens=3, stream_id="late")
        await socket.create(max_output_tokens=3)
        await wait_all_tasks_blocked(0.02)
        assert api.coalescer.sessions == MAX_RUNNING
        assert engine.deepest_company == MAX_RUNNING

        await socket.cancel(stream_id="lane5")
        ends: list[str | None] = []
        created: list[str | None] = []
        while len(ends) < 3:
            event = await socket.event()
            if event["type"] == "response.created":
                created.append(event.get("stream_id"))
            if event["type"] in FINAL_EVENTS:
                ends.append(event.get("stream_id"))
        assert ends == ["lane5", "late", None]
        assert created == ["late", None]
        assert engine.deepest_company == MAX_RUNNING
    await api.at_rest()


async def test_thirty_third_lane_is_refused_and_the_others_stay() -> None:
    async with serving_script(ScriptedEngine("Hi")) as api, api.socket() as socket:
        for number in range(MAX_LANES):
            await socket.create(stream_id=f"lane{number}")
            await finals(socket, 1)
        await socket.create(stream_id="one-more")
        event = await socket.event()
        assert_error_event(event, 400, "websocket_stream_limit_reached")
        assert (event["stream_id"], event["param"]) == ("one-more", "stream_id")
        await socket.create(stream_id="lane0")
        await socket.create()
        first, second = await finals(socket, 2)
        assert {first.get("stream_id"), second.get("stream_id")} == {"lane0", None}
        assert {first["type"], second["type"]} == {"response.completed"}


async def test_waiting_requests_of_all_lanes_are_bounded_together() -> None:
    engine = ScriptedEngine("Hi")
    async with serving_script(engine, max_body_bytes=50_000) as api, api.socket() as socket:
        engine.gate.clear()
        for name in ("a", "b"):
            await socket.create(stream_id=name)
        await until(lambda: api.coalescer.sessions == 2)
        await socket.create("x" * 30_000, stream_id="a")
        await socket.create("y" * 30_000, stream_id="b")
        while (event := await socket.event())["type"] != "error":
            pass
        assert_error_event(event, 400, "websocket_stream_limit_reached")
        assert event["stream_id"] == "b"
        engine.gate.set()
        assert [final["stream_id"] for final in await finals(socket, 3)].count("a") == 2


@pytest.mark.parametrize("name", ["", " ", "a b", "a/b", "ä", "x" * 257, "a\n", 5, [], {"a": 1}])
async def test_what_cannot_name_a_lane_is_refused(name: Any) -> None:
    async with serving_script(ScriptedEngine("Hi")) as api, api.socket() as socket:
        await socket.create(stream_id=name)
        event = await socket.event()
        assert_error_event(event, 400, "invalid_stream_id")
        assert event["param"] == "stream_id"
        assert "stream_id" not in event
        await socket.create(stream_id="x" * 256)
        assert (await finals(socket, 1))[0]["type"] == "response.completed"


@pytest.mark.parametrize(
    "fields",
    [
        {"input": ""},
        {"temperature": "hot"},
        {"temperature": 3},
        {"model": "another"},
        {"dance": True},
        {"previous_response_id": "resp_unknown"},
    ],
    ids=str,
)
async def test_error_of_a_lanes_request_names_the_lane_and_touches_no_other(fields: Any) -> None:
    async with serving_script(endless()) as api, api.socket() as socket:
        await socket.create(max_output_tokens=300, stream_id="good")
        await socket.send({"type": "response.create", "input": "Hi", "stream_id": "bad", **fields})
        await socket.create(max_output_tokens=2, stream_id="bad")
        error, *ends = sorted(await finals(socket, 3), key=lambda event: str(event["type"]))
        assert error["type"] == "error"
        assert error["stream_id"] == "bad"
        assert sorted(len(answer_text(event["response"])) for event in ends) == [2, 300]


# -- conversations


async def test_a_lane_forks_the_conversation_of_another_that_goes_on() -> None:
    engine = ScriptedEngine("HELLO")
    async with serving_script(engine) as api, api.socket() as socket:
        await socket.create("Who are you?", stream_id="main", store=False)
        (root,) = await finals(socket, 1)
        parent = root["response"]["id"]
        await socket.create("Why?", stream_id="critic", previous_response_id=parent, store=False)
        await socket.create("Go on.", stream_id="main", previous_response_id=parent, store=False)
        ends = {event["stream_id"]: event["response"] for event in await finals(socket, 2)}
        assert {one["previous_response_id"] for one in ends.values()} == {parent}
        more = ends["critic"]["id"]
        await socket.create("And?", stream_id="main", previous_response_id=more, store=False)
        (last,) = await finals(socket, 1)
        long = last["response"]["usage"]["input_tokens"]
        assert long > ends["critic"]["usage"]["input_tokens"]


async def test_the_latest_response_of_each_lane_outlives_many_of_another() -> None:
    async with serving_script(ScriptedEngine("Hi")) as api, api.socket() as socket:
        latest: dict[str, str] = {}
        for name in ("quiet", "other"):
            await socket.create(stream_id=name, store=False)
            latest[name] = (await finals(socket, 1))[0]["response"]["id"]
        mine: list[str] = []
        for _ in range(MAX_KEPT + 3):
            await socket.create(stream_id="busy", store=False)
            mine.append((await finals(socket, 1))[0]["response"]["id"])
        for name in latest:
            await socket.create(stream_id="fork", previous_response_id=latest[name], store=False)
            assert (await finals(socket, 1))[0]["type"] == "response.completed"
        await socket.create(stream_id="busy", previous_response_id=mine[0], store=False)
        assert_error_event((await finals(socket, 1))[0], 400, "previous_response_not_found")


async def test_long_conversations_leave_room_and_the_very_latest_stays() -> None:
    async with serving_script(ScriptedEngine("Hi"), max_body_bytes=20_000) as api:
        async with api.socket() as socket:
            ids: list[str] = []
            for _ in range(4):
                answer = await socket.answer(WALL[:9_000], store=False)
                ids.append(answer["id"])
            assert (await socket.answer("And?", previous_response_id=ids[-1], store=False))["id"]
            await socket.create("And?", previous_response_id=ids[0], store=False)
            assert_error_event(await socket.event(), 400, "previous_response_not_found")


async def test_a_failed_response_is_not_kept() -> None:
    engine = endless()
    async with serving_script(engine, on_batch_failure="fail") as api, api.socket() as socket:
        engine.fault = lambda items: len(engine.batches) > 5
        await socket.create(stream_id="a", max_output_tokens=1000, store=False)
        (event,) = await finals(socket, 1)
        assert (event["type"], event["stream_id"]) == ("response.failed", "a")
        engine.fault = None
        failed = event["response"]["id"]
        await socket.create(stream_id="a", previous_response_id=failed, store=False)
        (error,) = await finals(socket, 1)
        assert_error_event(error, 400, "previous_response_not_found")
        assert error["stream_id"] == "a"


# -- generate: false


async def test_a_prompt_can_be_evaluated_ahead() -> None:
    engine = ScriptedEngine("Hi")
    async with serving_script(engine) as api, api.socket() as socket:
        text = "A long text. " * 40
        await socket.create(text, generate=False, stream_id="a", store=False)
        events = await socket.until_type(*FINAL_EVENTS)
        kinds = ["response.created", "response.in_progress", "response.completed"]
        assert [event["type"] for event in events] == kinds
        assert {event["stream_id"] for event in events} == {"a"}
        warmed = events[-1]["response"]
        assert (warmed["status"], warmed["output"]) == ("completed", [])
        assert warmed["usage"]["output_tokens"] == 0
        assert warmed["usage"]["input_tokens"] > 100

        again = await socket.answer(text, store=False)
        cached = again["usage"]["input_tokens_details"]["cached_tokens"]
        assert cached > warmed["usage"]["input_tokens"] - 2 * api.coalescer.info.page_size

        chained = await socket.answer("And?", previous_response_id=warmed["id"], store=False)
        details = chained["usage"]["input_tokens_details"]
        assert details["cached_tokens"] > 0
        assert chained["usage"]["input_tokens"] > warmed["usage"]["input_tokens"]
        await api.at_rest()


async def test_instructions_alone_can_be_evaluated_ahead() -> None:
    async with serving_script(ScriptedEngine("Hi")) as api, api.socket() as socket:
        warmed = await socket.answer([], generate=False, instructions="Be brief.", store=False)
        assert warmed["output"] == []
        followed = await socket.answer(
            "Hi", previous_response_id=warmed["id"], instructions="Be brief.", store=False
        )
        plain = await socket.answer("Hi", instructions="Be brief.", store=False)
        assert followed["usage"]["input_tokens"] == plain["usage"]["input_tokens"]
        await socket.create([], generate=False)
        assert_error_event(await socket.event(), 400)


# -- cancelling


async def test_cancel_of_a_lane_spares_the_others() -> None:
    async with serving_script(endless()) as api, api.socket() as socket:
        for name in ("a", "b"):
            await socket.create(max_output_tokens=40_000, stream_id=name)
        ids = await first_deltas(socket, {"a", "b"})
        await socket.cancel(stream_id="a")
        (event,) = await finals(socket, 1)
        assert event["stream_id"] == "a"
        assert event["response"]["id"] == ids["a"]
        assert event["response"]["incomplete_details"] == {"reason": "cancelled"}
        assert api.coalescer.sessions == 1
        await socket.cancel(response_id=ids["b"])
        (event,) = await finals(socket, 1)
        assert event["stream_id"] == "b"
        await api.at_rest()


async def test_cancel_of_what_does_not_run_is_an_error_of_its_lane() -> None:
    async with serving_script(endless()) as api, api.socket() as socket:
        await socket.create(max_output_tokens=40_000, stream_id="a")
        ids = await first_deltas(socket, {"a"})
        for fields in (
            {},
            {"stream_id": "b"},
            {"response_id": "resp_unknown"},
            {"stream_id": "b", "response_id": ids["a"]},
        ):
            await socket.cancel(**fields)
            (error,) = await finals(socket, 1)
            assert_error_event(error, 400, "response_cancel_not_active")
            assert error.get("stream_id") == fields.get("stream_id")
        await socket.cancel(stream_id="a b")
        assert_error_event((await finals(socket, 1))[0], 400, "invalid_stream_id")
        await socket.cancel(stream_id="a", response_id=ids["a"])
        assert (await finals(socket, 1))[0]["response"]["id"] == ids["a"]


async def test_each_cancel_ends_one_request_of_a_lane_also_those_that_wait() -> None:
    engine = endless()
    async with serving_script(engine) as api, api.socket() as socket:
        await socket.create(max_output_tokens=40_000, stream_id="a", metadata={"n": "0"})
        await first_deltas(socket, {"a"})
        async with api.step_held(engine):
            for number in (1, 2):
                fields = {"stream_id": "a", "metadata": {"n": f"{number}"}}
                await socket.create(max_output_tokens=3, **fields)
            await socket.cancel(stream_id="a")
            await socket.cancel(stream_id="a")
        ends = await finals(socket, 3)
        reasons = [event["response"]["incomplete_details"]["reason"] for event in ends]
        assert reasons == ["cancelled", "cancelled", "max_output_tokens"]
        assert [event["response"]["metadata"]["n"] for event in ends] == ["0", "1", "2"]
        assert len(engine.drawn) == 2  # the second one was never generated
        await api.at_rest()


async def test_cancel_before_there_is_a_place_and_while_a_prompt_is_warmed() -> None:
    engine = endless()
    async with serving_script(engine, max_sessions=1) as api, api.socket() as socket:
        await socket.create(max_output_tokens=40_000, stream_id="a")
        await first_deltas(socket, {"a"})
        await socket.create(stream_id="b", generate=False)
        await until(lambda: api.coalescer.waiting == 1)
        await socket.cancel(stream_id="b")
        (event,) = await finals(socket, 1)
        assert event["stream_id"] == "b"
        assert event["response"]["incomplete_details"] == {"reason": "cancelled"}
        assert api.coalescer.waiting == 0


# -- the end


async def test_closing_ends_all_lanes() -> None:
    async with serving_script(endless()) as api:
        async with api.socket() as socket:
            for name in ("a", "b", "c"):
                await socket.create(max_output_tokens=40_000, stream_id=name)
                await socket.create(max_output_tokens=40_000, stream_id=name)
            await first_deltas(socket, {"a", "b", "c"})
        await api.at_rest()


async def test_slow_reader_of_many_lanes_holds_nobody_and_is_cut_off() -> None:
    engine = endless()
    async with serving_script(engine, send_timeout=1.0) as api:
        engine.script = WALL
        deaf = await api.raw(receive_buffer=4096)
        await deaf.open("/v1/responses")
        for number in range(4):
            head = f'{{"type": "response.create", "stream_id": "lane{number}", "input": "Hi", '
            await deaf.send(frame(TEXT, head.encode() + b'"max_output_tokens": 40000}'))
        await until(lambda: len(engine.drawn) == 4 and all(engine.drawn.values()))
        engine.script = ENDLESS
        async with api.socket() as bystander:
            response = await bystander.answer(max_output_tokens=300)
            assert answer_text(response) == (ENDLESS * 12)[:300]
        await api.at_rest()
        assert all(drawn < 5_000 for drawn in engine.drawn.values())


async def test_server_that_stops_lets_lanes_end_and_closes() -> None:
    engine = endless()
    async with serving_script(engine, shutdown_timeout=PATIENCE) as api, api.socket() as socket:
        for name in ("a", "b"):
            await socket.create(max_output_tokens=50, stream_id=name)
            await socket.create(max_output_tokens=50, stream_id=name)
        await first_deltas(socket, {"a", "b"})
        api.server.stop.set()
        ends = await finals(socket, 4)
        assert [len(answer_text(event["response"])) for event in ends] == [50] * 4
        assert await close_code(socket) == 1001


async def test_an_old_connection_takes_no_more_and_closes_when_its_answers_have_ended() -> None:
    engine = endless()
    async with serving_script(engine, websocket_minutes=0.5 / 60) as api, api.socket() as socket:
        await socket.create(max_output_tokens=40_000, stream_id="a")
        await socket.create("behind", stream_id="a")
        (dropped,) = await finals(socket, 1)
        assert_error_event(dropped, 400, "websocket_connection_limit_reached")
        assert dropped["stream_id"] == "a"
        await socket.create(stream_id="b")
        (refused,) = await finals(socket, 1)
        assert_error_event(refused, 400, "websocket_connection_limit_reached")
        assert refused["stream_id"] == "b"
        await socket.cancel(stream_id="a")
        end, announced = await finals(socket, 2)
        assert (end["type"], end["stream_id"]) == ("response.incomplete", "a")
        assert_error_event(announced, 400, "websocket_connection_limit_reached")
        assert "stream_id" not in announced
        assert await close_code(socket) == 1001
        await api.at_rest()


async def test_an_old_connection_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "GRACE", 0.2)
    async with serving_script(endless(), websocket_minutes=0.2 / 60) as api:
        async with api.socket() as socket:
            await socket.create(max_output_tokens=40_000, stream_id="a")
            end, announced = await finals(socket, 2)
            assert (end["type"], end["stream_id"]) == ("response.failed", "a")
            assert end["response"]["error"]["code"] == "websocket_connection_limit_reached"
            assert_error_event(announced, 400, "websocket_connection_limit_reached")
            assert await close_code(socket) == 1001
        await api.at_rest()


# -- the official client


async def test_official_client_runs_lanes_side_by_side_and_forks() -> None:
    async with serving_script(ScriptedEngine("Hello there")) as api:

        def talk() -> dict[str, list[str]]:
            client = openai.OpenAI(base_url=f"{api.server.url}/v1", api_key="none", max_retries=0)
            latest: dict[str, str] = {}
            texts: dict[str, list[str]] = {}

            def drain(connection: Any, wanted: set[str]) -> None:
                for event in connection:
                    assert event.type != "error", event
                    assert event.stream_id in wanted
                    if event.type == "response.completed":
                        latest[event.stream_id] = event.response.id
                        texts.setdefault(event.stream_id, []).append(event.response.output_text)
                        wanted.remove(event.stream_id)
                        if not wanted:
                            return

            with client, client.responses.connect() as connection:
                for name in ("planner", "research"):
                    connection.response.create(
                        model="scripted", input="Draft.", stream_id=name, store=False
                    )
                drain(connection, {"planner", "research"})
                root = latest["planner"]
                for name in ("critic", "planner"):
                    connection.response.create(
                        model="scripted",
                        input="Go on.",
                        stream_id=name,
                        previous_response_id=root,
                        store=False,
                    )
                drain(connection, {"critic", "planner"})
            return texts

        texts = await trio.to_thread.run_sync(talk)
        said = "Hello there"
        assert texts == {"planner": [said, said], "research": [said], "critic": [said]}
        await api.at_rest()


async def test_official_client_gets_errors_of_its_lanes_and_goes_on() -> None:
    async with serving_script(ScriptedEngine("Hi")) as api:

        def talk() -> list[tuple[str, str | None]]:
            client = openai.OpenAI(base_url=f"{api.server.url}/v1", api_key="none", max_retries=0)
            seen: list[tuple[str, str | None]] = []
            with client, client.responses.connect() as connection:
                connection.response.create(
                    model="scripted", input="Hi", stream_id="a", previous_response_id="resp_none"
                )
                for event in connection:
                    if event.type == "error":
                        assert event.error.code == "previous_response_not_found"
                        seen.append((event.type, event.stream_id))
                        connection.response.create(model="scripted", input="Hi", stream_id="a")
                    if event.type == "response.completed":
                        seen.append((event.type, event.stream_id))
                        return seen
            return seen

        seen = await trio.to_thread.run_sync(talk)
        assert seen == [("error", "a"), ("response.completed", "a")]
