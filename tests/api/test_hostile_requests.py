"""What once froze, filled or confused a server like this one; each must cost only its sender."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.api.helpers import (
    ScriptedEngine,
    assert_error_event,
    assert_openai_error,
    serving_script,
    serving_tiny,
)


@pytest.mark.parametrize("target", ["?", "http://[", "http://elsewhere.example", "*", "//"])
async def test_odd_targets_are_answered_without_a_traceback(
    target: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving_script() as api:
        client = await api.raw()
        await client.send(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        with trio.fail_after(5):
            answer = await client.until_end()
        status = int(answer.split(b" ")[1])
        assert status < 500
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("host", ["[", "[::1", "a]b"])
async def test_a_broken_host_is_a_foreign_one(host: str) -> None:
    async with serving_script() as api:
        headers = {"Host": host, "Origin": f"http://{host}"}
        refusal = await api.http.get("/v1/models", headers=headers)
        assert_openai_error(refusal, 403, code="origin_not_allowed")


async def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenised(tiny_model: Path) -> None:
    async with serving_tiny(tiny_model) as api:
        refusal = await api.chat(messages=[{"role": "user", "content": "a" * 3_000_000}])
        assert_openai_error(refusal, 400, code="context_length_exceeded")
        assert "at least" in refusal.json()["error"]["message"]


async def test_stop_texts_have_a_length() -> None:
    async with serving_script() as api:
        assert (await api.chat(stop="a" * 1000)).status_code == 200
        assert_openai_error(await api.chat(stop="a" * 1001), 400)
        assert_openai_error(await api.chat(stop=["b", "a" * 1001]), 400)


async def test_an_error_is_shorter_than_what_caused_it() -> None:
    async with serving_script() as api:
        refusal = await api.chat(messages=[{"role": "x" * 100_000, "content": "y"}])
        assert_openai_error(refusal, 400)
        assert len(refusal.content) < 2_000
        forged = await api.chat(messages=[{"role": "x - at `$.foo`", "content": "y"}])
        assert forged.json()["error"]["param"] == "messages[0].role"


async def test_waiting_requests_of_one_connection_have_a_size_together() -> None:
    engine = ScriptedEngine(repeat=True)
    async with serving_script(engine, max_body_bytes=10_000) as api, api.socket() as socket:
        await socket.create(max_output_tokens=100_000)
        await socket.until_type("response.output_text.delta")
        for _ in range(3):
            await socket.create("x" * 4_000, max_output_tokens=1)
        while (event := await socket.event())["type"] != "error":
            assert event["type"] == "response.output_text.delta"
        assert_error_event(event, 400, "websocket_stream_limit_reached")
        await socket.cancel()
        for _ in range(3):
            await socket.finish()


async def test_an_idle_connection_is_closed_after_its_answer() -> None:
    async with serving_script() as api:
        client = await api.raw()
        await client.send(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        with trio.fail_after(8):  # hypercorn's keep_alive_timeout is 5 s
            assert b'"ok"' in await client.until_end()


async def test_a_connection_keeps_only_so_much_text_to_continue_from() -> None:
    async with serving_script(max_body_bytes=10_000) as api, api.socket() as socket:
        fields: dict[str, Any] = {"max_output_tokens": 1, "store": False}
        kept = [(await socket.answer("x" * 4_000, **fields))["id"] for _ in range(4)]
        await socket.create(previous_response_id=kept[0])
        assert_error_event(await socket.event(), 400, "previous_response_not_found")
        await socket.answer("more", previous_response_id=kept[-1], **fields)
