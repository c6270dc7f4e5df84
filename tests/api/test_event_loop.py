"""One request must not hold the event loop, which everybody's tokens go through."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.api.helpers import USER, serving_tiny

LONGEST = 0.25
"""Seconds of the processor, which do not depend on what else the machine does. Taking in the two
megabytes of such a request needs a fifth of that."""

SCHEMA = {"enum": [1] * 900_000}
TOOL = {"name": "a", "description": "abc " * 125_000}


class _Steps(trio.abc.Instrument):
    """The longest time that any task has held the loop."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._began = time.thread_time()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.longest = max(self.longest, time.thread_time() - self._began)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"tools": [{"type": "function", "function": TOOL}]}),
        ("/v1/chat/completions", {"chat_template_kwargs": {"a": ["<|im_"] * 250_000}}),
        ("/v1/chat/completions", {"json_schema": SCHEMA}),
        (
            "/v1/messages",
            {
                "max_tokens": 1,
                "messages": [{"role": "user", "content": "a" * 250}] * 9000,
            },
        ),
    ],
    ids=["tool", "template", "schema", "neighbours"],
)
async def test_a_large_request_is_looked_through_elsewhere(
    path: str, fields: dict[str, Any], tiny_model: Path
) -> None:
    body = json.dumps(
        {"messages": USER, "model": tiny_model.name, "max_tokens": 1, **fields}
    ).encode()
    async with serving_tiny(tiny_model) as api:
        steps = _Steps()
        trio.lowlevel.add_instrument(steps)
        answer = await api.http.post(path, content=body)
        trio.lowlevel.remove_instrument(steps)
    assert answer.status_code in (200, 400)
    assert steps.longest < LONGEST
