"""While nothing can be said, as in a long prompt, a connection still shows that it is alive."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from ds4trio.api import sse
from tests.api.helpers import FINAL_EVENTS, USER, ScriptedEngine, serving_script


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": USER}),
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/responses", {"input": "Hi"}),
    ],
)
async def test_a_silent_stream_has_comments(
    path: str, body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:  # 21
    monkeypatch.setattr(sse, "KEEP_ALIVE_SECONDS", 0.01)
    engine = ScriptedEngine("HELLO")
    engine.gate.clear()
    async with serving_script(engine) as api:
        request = {**body, "stream": True}
        async with api.http.stream("POST", path, json=request) as response:
            lines = [line async for line in _until_open(response.aiter_lines(), engine)]
    assert ": keep-alive" in lines
    assert any("HELLO"[0] in line for line in lines if line.startswith("data: "))


async def _until_open(lines: Any, engine: ScriptedEngine) -> Any:
    """The lines; the engine goes on after the second comment."""
    comments = 0
    async for line in lines:
        comments += line.startswith(":")
        if comments == 2:
            engine.gate.set()
        yield line


async def test_pings_are_answered_while_prompts_are_evaluated() -> None:  # 21
    engine = ScriptedEngine("HELLO")
    engine.gate.clear()
    async with serving_script(engine) as api, api.socket() as socket:
        await socket.create("x " * 2000)
        with trio.fail_after(5):
            await socket.until_type("response.in_progress")
            for _ in range(3):
                await socket.connection.ping()
        engine.gate.set()
        assert (await socket.until_type(*FINAL_EVENTS))[-1]["response"]["status"] == "completed"
