"""What clients see of a server that is told to stop."""

from __future__ import annotations

import trio
from trio.testing import wait_all_tasks_blocked
from trio_websocket import ConnectionClosed

from tests.api.helpers import (
    PATIENCE,
    ResponsesSocket,
    ScriptedEngine,
    assert_error_event,
    serving_script,
    until,
)


async def close_code(socket: ResponsesSocket) -> int:
    """The code that the server closes with; what it says before does not matter."""
    with trio.fail_after(PATIENCE):
        while True:
            try:
                await socket.connection.get_message()
            except ConnectionClosed as closed:
                # trio-websocket leaves its socket open when the other side closes first.
                await socket.connection._stream.aclose()
                return int(closed.reason.code) if closed.reason else 0


async def test_an_idle_websocket_is_told_at_once() -> None:
    async with serving_script(shutdown_timeout=PATIENCE) as api, api.socket() as socket:
        await socket.answer(max_output_tokens=2)
        api.server.stop.set()
        began = trio.current_time()
        assert await close_code(socket) == 1001
        assert trio.current_time() - began < PATIENCE / 2


async def test_an_idle_server_does_not_wait_for_connections_that_are_open() -> None:
    async with serving_script(shutdown_timeout=PATIENCE) as api, api.socket() as socket:
        kept, unused = await api.raw(), await api.raw()
        await kept.send(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        await kept.exactly(len("HTTP/1.1 200"))
        async with api.http.stream("GET", "/v1/server/events") as page:
            lines = page.aiter_lines()
            await anext(lines)
            api.server.stop.set()
            began = trio.current_time()
            assert not [line async for line in lines if line.startswith("data: ")]
        assert await close_code(socket) == 1001
        for client in (kept, unused):
            await client.until_end()
            await client.stream.aclose()
        await until(lambda: api.server.service.nursery is None)
        assert trio.current_time() - began < PATIENCE / 2


async def test_answers_that_were_asked_for_are_finished_and_no_more_are_taken() -> None:
    engine = ScriptedEngine(repeat=True)
    async with serving_script(engine, shutdown_timeout=PATIENCE) as api, api.socket() as socket:
        await socket.create("the first", max_output_tokens=5)
        await socket.create("the second", max_output_tokens=5)
        async with api.step_held(engine):
            api.server.stop.set()
        await socket.create("too late", max_output_tokens=5)
        usages: list[int] = []
        refused = 0
        while len(usages) < 2:
            event = await socket.event()
            if event["type"] == "error":
                assert_error_event(event, 503, "server_stopping")
                refused += 1
            if event["type"] == "response.incomplete":
                usages.append(event["response"]["usage"]["output_tokens"])
        assert usages == [5, 5]
        assert refused <= 1  # it may also have come after the end
        assert await close_code(socket) == 1001


async def test_an_answer_without_end_is_cut_in_time_and_says_so() -> None:
    engine = ScriptedEngine(repeat=True)
    async with serving_script(engine, shutdown_timeout=1.0) as api, api.socket() as socket:
        await socket.create(max_output_tokens=100_000)
        await socket.until_type("response.output_text.delta")
        api.server.stop.set()
        response = await socket.finish()
        assert response["error"]["code"] == "server_stopping"
        assert await close_code(socket) == 1001


async def test_an_event_stream_without_end_is_told_why_it_ends() -> None:
    engine = ScriptedEngine(repeat=True)
    async with serving_script(engine, shutdown_timeout=1.0) as api:
        async with api.chunks(max_tokens=100_000) as chunks:
            seen = []
            async for chunk in chunks:
                seen.append(chunk)
                api.server.stop.set()
        assert seen[-1]["error"]["code"] == "server_stopping"


async def test_a_request_still_arriving_when_the_server_stops_is_told_too() -> None:
    engine = ScriptedEngine(repeat=True)
    async with serving_script(engine, shutdown_timeout=2.0) as api:
        client = await api.raw()
        request = api.post_bytes(max_tokens=100_000)
        await client.send(request[:-5])
        await wait_all_tasks_blocked(0.05)
        assert api.coalescer.sessions == 0
        api.server.stop.set()
        await api.server.service.stopping.wait()
        await client.send(request[-5:])
        with trio.fail_after(PATIENCE):
            answer = await client.until_end()
        assert b" 503 " in answer.split(b"\r\n")[0]
        assert b"server_stopping" in answer
