"""Responses of the WebSocket that outlive it: stored chains, answers in the background."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.api.helpers import (
    ENDLESS,
    Api,
    ResponsesSocket,
    ScriptedEngine,
    answer_text,
    assert_error_event,
    serving_script,
    until,
)


async def follow(api: Api, response_id: str, after: int) -> list[dict[str, Any]]:
    query = {"stream": "true", "starting_after": f"{after}"}
    async with api.http.stream("GET", f"/v1/responses/{response_id}", params=query) as response:
        lines = [line async for line in response.aiter_lines()]
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [json.loads(text) for text in data]


async def some_events(socket: ResponsesSocket, deltas: int) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    while sum(event["type"] == "response.output_text.delta" for event in events) < deltas:
        events.append(await socket.event())
    return events


async def test_a_stored_response_is_continued_on_another_connection_and_after_a_restart(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "responses.sqlite")
    async with serving_script(ScriptedEngine("Hello."), store=path) as api:
        async with api.socket() as socket:
            first = await socket.answer(store=True)
        async with api.socket() as socket:
            second = await socket.answer(previous_response_id=first["id"])
            private = await socket.answer(store=False)
    async with serving_script(ScriptedEngine("Hello."), store=path) as api:
        async with api.socket() as socket:
            third = await socket.answer(previous_response_id=second["id"])
            assert third["usage"]["input_tokens"] > second["usage"]["input_tokens"]
            await socket.create(previous_response_id=private["id"])
            assert_error_event(await socket.event(), 400, "previous_response_not_found")


async def test_the_answer_goes_on_without_the_socket_and_is_followed_without_a_gap() -> None:
    engine = ScriptedEngine(repeat=True)
    async with serving_script(engine) as api:
        async with api.socket() as socket:
            await socket.create(stream_id="a", background=True, store=True, max_output_tokens=300)
            seen = await some_events(socket, 3)
        rest = await follow(api, seen[0]["response"]["id"], seen[-1]["sequence_number"])
        whole = seen + rest
        assert [event["sequence_number"] for event in whole] == list(range(len(whole)))
        assert {event["stream_id"] for event in whole} == {"a"}
        deltas = [e["delta"] for e in whole if e["type"] == "response.output_text.delta"]
        assert "".join(deltas) == (ENDLESS * 12)[:300]
        assert whole[-1]["type"] == "response.incomplete"


async def test_an_answer_in_the_background_is_cancelled_by_its_lane() -> None:
    engine = ScriptedEngine(repeat=True)
    async with serving_script(engine) as api, api.socket() as socket:
        await socket.create(stream_id="a", background=True, max_output_tokens=40_000)
        seen = await some_events(socket, 3)
        await socket.send({"type": "response.cancel", "stream_id": "a"})
        while seen[-1]["type"] != "response.incomplete":
            seen.append(await socket.event())
        assert [event["sequence_number"] for event in seen] == list(range(len(seen)))
        final = seen[-1]["response"]
        assert final["status"] == "cancelled"
        assert answer_text(final).startswith("ABC")
        await until(lambda: api.coalescer.sessions == 0)
        engine.repeat = False
        again = await socket.answer(stream_id="a", previous_response_id=final["id"])
        assert again["status"] == "completed"


async def test_the_background_needs_the_store() -> None:
    async with serving_script(ScriptedEngine("Hello.")) as api, api.socket() as socket:
        await socket.create(background=True, store=False)
        assert_error_event(await socket.event(), 400, "invalid_request")
    async with serving_script(ScriptedEngine("Hello."), store="off") as api:
        async with api.socket() as socket:
            await socket.create(background=True)
            assert_error_event(await socket.event(), 503, "store_unavailable")
            assert answer_text(await socket.answer()) == "Hello."


async def test_a_stored_response_behind_a_private_one_has_its_beginning() -> None:
    async with serving_script(ScriptedEngine("Hello.")) as api:
        async with api.socket() as socket:
            private = await socket.answer(store=False)
            kept = await socket.answer(previous_response_id=private["id"])
        async with api.socket() as socket:
            third = await socket.answer(previous_response_id=kept["id"])
            assert third["usage"]["input_tokens"] > kept["usage"]["input_tokens"]
