"""The Responses API over HTTP: answers, chains, what is stored, what goes on in the background."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import trio

from tests.api.helpers import (
    ENDLESS,
    PATIENCE,
    Api,
    ScriptedEngine,
    assert_openai_error,
    serving_script,
    until,
)


async def create(api: Api, **body: Any) -> dict[str, Any]:
    response = await api.http.post("/v1/responses", json={"input": "Say it.", **body})
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def ended(api: Api, response_id: str) -> dict[str, Any]:
    """A response that is written in the background, when it has ended."""
    found: dict[str, Any] = {}
    with trio.fail_after(PATIENCE):
        async for event in followed(api, response_id):
            found = event
    response: dict[str, Any] = found["response"]
    return response


async def events_of(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    assert response.status_code == 200
    named = ""
    async for line in response.aiter_lines():
        if line.startswith("event: "):
            named = line.removeprefix("event: ")
        if line.startswith("data: "):
            event = json.loads(line.removeprefix("data: "))
            assert event["type"] == named
            yield event


async def followed(api: Api, response_id: str, **query: Any) -> AsyncIterator[dict[str, Any]]:
    params = {"stream": "true", **query}
    async with api.http.stream("GET", f"/v1/responses/{response_id}", params=params) as response:
        async for event in events_of(response):
            yield event


async def streamed(api: Api, **body: Any) -> list[dict[str, Any]]:
    body = {"input": "Say it.", "stream": True, **body}
    async with api.http.stream("POST", "/v1/responses", json=body) as response:
        return [event async for event in events_of(response)]


def text_of(response: dict[str, Any]) -> str:
    return "".join(
        part["text"]
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
    )


@asynccontextmanager
async def official(api: Api, **options: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{api.server.url}/v1", api_key="none", max_retries=0, **options
    ) as client:
        yield client


async def test_stream_and_whole_say_the_same_and_both_are_stored() -> None:
    async with serving_script(ScriptedEngine("Hello.")) as api:
        whole = await create(api, seed=1)
        events = await streamed(api, seed=1)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        final = events[-1]["response"]
        assert text_of(whole) == text_of(final) == "Hello."
        assert whole["usage"]["total_tokens"] == final["usage"]["total_tokens"]
        for response in (whole, final):
            assert response["store"] is True
            found = await api.http.get(f"/v1/responses/{response['id']}")
            assert found.json() == response
        assert [event async for event in followed(api, final["id"])] == events
        rest = [event async for event in followed(api, final["id"], starting_after=3)]
        assert rest == events[4:]


async def test_the_official_client_creates_streams_continues_and_deletes() -> None:
    async with serving_script(ScriptedEngine("Hello.")) as api, official(api) as client:
        first = await client.responses.create(input="One", model="scripted")
        assert first.output_text == "Hello."
        async with client.responses.stream(
            input="Two", model="scripted", previous_response_id=first.id
        ) as stream:
            final = await stream.get_final_response()
        assert final.output_text == "Hello."
        assert final.previous_response_id == first.id
        assert final.usage is not None
        assert first.usage is not None
        assert final.usage.input_tokens > first.usage.input_tokens
        page = await client.responses.input_items.list(final.id)
        assert [item.type for item in page.data] == ["message"]
        retrieved = await client.responses.retrieve(first.id)
        assert retrieved.output_text == "Hello."
        await client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(first.id)
        # the conversation itself is still there for those who continue it
        third = await client.responses.create(
            input="Three", model="scripted", previous_response_id=final.id
        )
        assert third.status == "completed"
        counted = await client.responses.input_tokens.count(input="One", model="scripted")
        assert counted.input_tokens == first.usage.input_tokens


async def test_a_chain_survives_a_restart(tmp_path: Path) -> None:
    path = str(tmp_path / "responses.sqlite")
    async with serving_script(ScriptedEngine("Hello."), store=path) as api:
        first = await create(api)
        second = await create(api, previous_response_id=first["id"])
    async with serving_script(ScriptedEngine("Hello."), store=path) as api:
        third = await create(api, previous_response_id=second["id"])
        assert third["usage"]["input_tokens"] > second["usage"]["input_tokens"]


async def test_nothing_is_stored_that_was_not_to_be() -> None:
    async with serving_script(ScriptedEngine("Hello.")) as api:
        response = await create(api, store=False)
        assert response["store"] is False
        missing = await api.http.get(f"/v1/responses/{response['id']}")
        assert_openai_error(missing, 404, code="response_not_found")
        refused = await api.http.post(
            "/v1/responses", json={"input": "x", "previous_response_id": response["id"]}
        )
        assert_openai_error(
            refused, 400, code="previous_response_not_found", param="previous_response_id"
        )


async def test_a_server_without_a_store_says_so() -> None:
    async with serving_script(ScriptedEngine("Hello."), store="off") as api:
        assert (await create(api))["store"] is False
        for body in ({"store": True}, {"background": True}):
            refused = await api.http.post("/v1/responses", json={"input": "x", **body})
            assert_openai_error(refused, 503, code="store_unavailable")


async def test_a_broken_disk_costs_those_alone_who_asked_for_it(tmp_path: Path) -> None:
    path = tmp_path / "responses.sqlite"
    path.write_bytes(b"this is no database, and never was one" * 100)
    async with serving_script(ScriptedEngine("Hello."), store=str(path)) as api:
        assert text_of(await create(api, store=False)) == "Hello."
        unasked = await create(api)
        assert (text_of(unasked), unasked["store"]) == ("Hello.", False)
        (*_, last) = await streamed(api)
        assert last["type"] == "response.completed"
        assert last["response"]["store"] is False
        refused = await api.http.post("/v1/responses", json={"input": "x", "store": True})
        assert_openai_error(refused, 503, code="store_unavailable")


async def test_keys_do_not_see_each_others_responses() -> None:
    async with serving_script(ScriptedEngine("Hello."), api_key=("one", "two")) as api:
        own, other = {"Authorization": "Bearer one"}, {"Authorization": "Bearer two"}
        created = await api.http.post("/v1/responses", json={"input": "x"}, headers=own)
        path = f"/v1/responses/{created.json()['id']}"
        assert (await api.http.get(path, headers=own)).status_code == 200
        for request in (
            api.http.get(path, headers=other),
            api.http.delete(path, headers=other),
            api.http.post(f"{path}/cancel", headers=other),
            api.http.get(f"{path}/input_items", headers=other),
        ):
            assert_openai_error(await request, 404, code="response_not_found")
        assert (await api.http.get(path)).status_code == 401


# -- in the background


async def test_a_background_response_is_followed_from_anywhere_without_a_gap() -> None:
    engine = ScriptedEngine(repeat=True)
    async with serving_script(engine) as api:
        begun = await create(api, background=True, max_output_tokens=200)
        assert begun["status"] in ("queued", "in_progress")
        assert begun["background"] is True
        part: list[dict[str, Any]] = []
        async with api.http.stream(
            "GET", f"/v1/responses/{begun['id']}", params={"stream": "true"}
        ) as response:
            found = events_of(response)
            async for event in found:
                part.append(event)
                if len(part) == 8:
                    break
            rest = [
                event
                async for event in followed(
                    api, begun["id"], starting_after=part[-1]["sequence_number"]
                )
            ]
            first_again = [event async for event in found]
        assert part + first_again == part + rest
        whole = [event async for event in followed(api, begun["id"])]
        assert whole == part + rest
        deltas = [e["delta"] for e in whole if e["type"] == "response.output_text.delta"]
        assert "".join(deltas) == (ENDLESS * 8)[:200] == text_of(whole[-1]["response"])
        stored = await api.http.get(f"/v1/responses/{begun['id']}")
        assert stored.json() == whole[-1]["response"]


async def test_a_background_response_goes_on_when_nobody_looks_and_can_be_cancelled() -> None:
    engine = ScriptedEngine(repeat=True)
    async with serving_script(engine) as api:
        begun = await create(api, background=True, max_output_tokens=40_000)
        path = f"/v1/responses/{begun['id']}"
        await until(lambda: sum(engine.drawn.values()) > 50)
        cancelled = (await api.http.post(f"{path}/cancel")).json()
        assert cancelled["status"] == "cancelled"
        assert text_of(cancelled).startswith(ENDLESS)
        assert (await api.http.get(path)).json() == cancelled
        assert (await api.http.post(f"{path}/cancel")).json() == cancelled  # once more
        await api.at_rest()


async def test_a_foreground_response_ends_with_its_client_and_cannot_be_cancelled() -> None:
    engine = ScriptedEngine("Hello.")
    async with serving_script(engine) as api:
        done = await create(api)
        refused = await api.http.post(f"/v1/responses/{done['id']}/cancel")
        assert_openai_error(refused, 400, code="response_cancel_not_active")
        engine.repeat = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(streamed, api, max_output_tokens=40_000))
            await until(lambda: sum(engine.drawn.values()) > 50)
            nursery.cancel_scope.cancel()
        await api.at_rest()


async def test_what_a_server_was_writing_when_it_ended_has_failed(tmp_path: Path) -> None:
    path = str(tmp_path / "responses.sqlite")
    async with serving_script(ScriptedEngine("Hello."), store=path) as api:
        done = await create(api, background=True)
        await ended(api, done["id"])
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT ended FROM responses").fetchall() == [(1,)]
    connection.close()
    engine = ScriptedEngine(repeat=True)
    async with serving_script(engine, store=path, shutdown_timeout=0.5) as api:
        cut = await create(api, background=True, max_output_tokens=40_000)
        await until(lambda: sum(engine.drawn.values()) > 5)
    async with serving_script(ScriptedEngine("Hello."), store=path) as api:
        found = (await api.http.get(f"/v1/responses/{cut['id']}")).json()
        assert found["status"] == "failed"
        assert found["error"]["message"]
        continued = {"input": "x", "previous_response_id": cut["id"]}
        refused = await api.http.post("/v1/responses", json=continued)
        assert_openai_error(refused, 400, code="previous_response_not_found")


async def test_who_follows_a_response_that_a_dead_server_was_writing_learns_of_its_end(
    tmp_path: Path,
) -> None:
    path, left = tmp_path / "responses.sqlite", tmp_path / "left.sqlite"
    engine = ScriptedEngine(repeat=True)
    async with serving_script(engine, store=str(path), shutdown_timeout=0.5) as api:
        lost = await create(api, background=True, max_output_tokens=40_000)
        await until(lambda: sum(engine.drawn.values()) > 5)
        with sqlite3.connect(path) as there, sqlite3.connect(left) as copy:
            there.backup(copy)  # as it is when the server is killed
        there.close()
        copy.close()
    async with serving_script(ScriptedEngine("Hello."), store=str(left)) as api:
        for after, kinds in (
            (None, ["response.created", "response.failed"]),
            (57, ["response.failed"]),
        ):
            query = {} if after is None else {"starting_after": after}
            events = [event async for event in followed(api, lost["id"], **query)]
            assert [event["type"] for event in events] == kinds
            first = 0 if after is None else after + 1
            assert [event["sequence_number"] for event in events] == [
                *range(first, first + len(kinds))
            ]
            assert events[-1]["response"]["error"]["code"] == "server_error"


async def test_what_has_not_ended_cannot_be_continued_yet() -> None:
    engine = ScriptedEngine(repeat=True)
    async with serving_script(engine) as api:
        begun = await create(api, background=True, max_output_tokens=40_000)
        body = {"input": "x", "previous_response_id": begun["id"]}
        for path in ("/v1/responses", "/v1/responses/input_tokens"):
            refused = await api.http.post(path, json=body)
            assert_openai_error(refused, 400, code="previous_response_not_found")
            assert "when it has ended" in refused.json()["error"]["message"]
        await api.http.post(f"/v1/responses/{begun['id']}/cancel")
        await api.at_rest()


async def test_a_fault_in_the_background_is_told_and_kept() -> None:
    engine = ScriptedEngine(repeat=True)
    async with serving_script(engine, on_batch_failure="fail") as api:
        begun = await create(api, background=True, max_output_tokens=40_000)
        await until(lambda: sum(engine.drawn.values()) > 5)
        engine.fault = lambda items: True
        response = await ended(api, begun["id"])
        assert response["status"] == "failed"
        assert response["error"]["code"] == "batch_failed"


# -- bounds and refusals


async def test_the_file_stays_small_and_the_oldest_go(tmp_path: Path) -> None:
    path = str(tmp_path / "responses.sqlite")
    async with serving_script(ScriptedEngine("Hello."), store=path, store_max_mb=1) as api:
        noise = "".join(chr(0x4E00 + (number * 7919) % 20_000) for number in range(15_000))
        ids = [(await create(api, input=noise[n:], max_output_tokens=1))["id"] for n in range(45)]
        found = [(await api.http.get(f"/v1/responses/{one}")).status_code for one in ids]
        assert found[-1] == 200
        assert found[0] == 404
        assert found == sorted(found, reverse=True)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "x"}, "limit"),
        ({"limit": "9" * 5000}, "limit"),
        ({"order": "up"}, "order"),
        ({"after": "item_unknown"}, "after"),
    ],
)
async def test_wrong_queries_are_named(query: dict[str, str], param: str) -> None:
    async with serving_script(ScriptedEngine("Hello.")) as api:
        done = await create(api)
        path = f"/v1/responses/{done['id']}/input_items"
        assert_openai_error(await api.http.get(path, params=query), 400, param=param)


async def test_items_come_in_pages() -> None:
    items = [{"role": "user", "content": f"{number}"} for number in range(7)]
    async with serving_script(ScriptedEngine("Hello.")) as api:
        done = await create(api, input=items)
        path = f"/v1/responses/{done['id']}/input_items"
        first = (await api.http.get(path, params={"limit": 4, "order": "asc"})).json()
        assert [item["content"][0]["text"] for item in first["data"]] == ["0", "1", "2", "3"]
        assert first["has_more"] is True
        query = {"limit": 4, "order": "asc", "after": first["last_id"]}
        second = (await api.http.get(path, params=query)).json()
        assert [item["content"][0]["text"] for item in second["data"]] == ["4", "5", "6"]
        assert second["has_more"] is False


WRONG: list[tuple[Callable[[Api], Any], int]] = [
    (lambda api: api.http.get("/v1/responses"), 426),
    (lambda api: api.http.get("/v1/responses/resp_x"), 404),
    (lambda api: api.http.delete("/v1/responses/resp_x"), 404),
    (lambda api: api.http.get("/v1/responses/resp_x", params={"stream": "perhaps"}), 400),
    (lambda api: api.http.post("/v1/responses", json={"input": ""}), 400),
    (lambda api: api.http.post("/v1/responses", json={"input": "x", "stream_id": "a"}), 400),
    (lambda api: api.http.post("/v1/responses", content=b"[]"), 400),
    (
        lambda api: api.http.post(
            "/v1/responses", json={"input": "x", "background": True, "store": False}
        ),
        400,
    ),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
async def test_what_is_refused(number: int) -> None:
    send, status = WRONG[number]
    async with serving_script(ScriptedEngine("Hello.")) as api:
        assert_openai_error(await send(api), status)
        assert text_of(await create(api)) == "Hello."


async def test_an_item_can_be_referred_to_by_its_id() -> None:
    async with serving_script(ScriptedEngine("Hello.")) as api:
        first = await create(api)
        (said,) = first["output"]
        known = [{"type": "item_reference", "id": said["id"]}, {"role": "user", "content": "So?"}]
        second = await create(api, input=known)
        page = await api.http.get(f"/v1/responses/{second['id']}/input_items?order=asc")
        assert page.json()["data"][0]["content"] == said["content"]
        unknown = [{"type": "item_reference", "id": "msg_unknown"}]
        refused = await api.http.post("/v1/responses", json={"input": unknown})
        assert_openai_error(refused, 400)


async def test_there_are_only_so_many_in_the_background() -> None:
    engine = ScriptedEngine(repeat=True)
    async with serving_script(engine, max_background=2) as api:
        begun = [await create(api, background=True, max_output_tokens=40_000) for _ in range(2)]
        body = {"input": "x", "background": True}
        refused = await api.http.post("/v1/responses", json=body)
        assert_openai_error(refused, 503, code="server_busy")
        assert refused.headers["retry-after"]
        for one in begun:
            await api.http.post(f"/v1/responses/{one['id']}/cancel")
        engine.repeat = False
        assert (await create(api, background=True))["status"] == "in_progress"


async def test_queries_that_nobody_reads_are_refused() -> None:
    async with serving_script(ScriptedEngine("Hello.")) as api:
        path = f"/v1/responses/{(await create(api))['id']}"
        for query, param in (
            ({"page": "2"}, "page"),
            ({"starting_after": "1"}, "starting_after"),
            ({"stream": "true", "starting_after": "99"}, "starting_after"),
            ({"stream": "true", "starting_after": "1_0"}, "starting_after"),
            ({"stream": "true", "starting_after": "\u0663"}, "starting_after"),
            ({"stream": "perhaps"}, "stream"),
        ):
            assert_openai_error(await api.http.get(path, params=query), 400, param=param)
        assert_openai_error(await api.http.delete(path, params={"x": "1"}), 400, param="x")


async def test_a_conversation_can_grow_only_so_long() -> None:
    async with serving_script(ScriptedEngine("Hello."), max_body_bytes=4_000) as api:
        last: dict[str, Any] = {"id": None}
        for _ in range(40):
            body = {"input": "x" * 1_000, "previous_response_id": last["id"]}
            response = await api.http.post("/v1/responses", json=body)
            if response.status_code != 200:
                break
            last = response.json()
        assert_openai_error(
            response, 400, code="context_length_exceeded", param="previous_response_id"
        )
        assert text_of(await create(api)) == "Hello."
