"""The events that say how busy the server is."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import trio

from tests.api.helpers import PATIENCE, ScriptedEngine, serving_script


async def looks(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


async def test_looks_come_at_once_and_when_something_changes_until_the_server_stops() -> None:
    engine = ScriptedEngine(repeat=True)
    async with serving_script(engine) as api:
        with trio.fail_after(PATIENCE):
            async with api.http.stream("GET", "/v1/server/events") as response:
                events = looks(response)
                first = await anext(events)
                assert (first["sessions"], first["waiting"], first["steps"]) == (0, 0, 0)
                assert first["free_pages"] == first["total_pages"]
                async with api.chunks(max_tokens=40_000) as chunks:
                    await anext(chunks)
                    async for busy in events:
                        if busy["sessions"] == 1 and busy["sampled_tokens"] > 1:
                            break
                assert busy["time"] > first["time"]
                assert 1 <= busy["rows"] == busy["steps"]
                async for rest in events:
                    if rest["sessions"] == 0:
                        break
                assert rest["free_pages"] >= busy["free_pages"]
                api.server.stop.set()
                assert [look async for look in events] == []
