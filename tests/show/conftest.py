"""One real server, started once for everything that the product must show."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from ds4trio.models.load import LoadedModel
from tests.show.real_server import RealServer, real_server

__all__ = ["FirstAnswer"]

QUESTION = "What is the capital of France?"


@dataclass(frozen=True, slots=True)
class FirstAnswer:
    """The very first answer of a server.

    Attributes:
        seconds: from the command until it was there.
        load: tasks that wanted each of the machine's cores at the time, on average.
    """

    text: str
    seconds: float
    load: float


@pytest.fixture(scope="session")
def started(default_model: LoadedModel) -> Iterator[tuple[RealServer, FirstAnswer]]:
    """``default_model`` has filled the cache by now, so this start is a warm one."""
    with real_server("--dtype", "float32") as server:
        answer = server.post(
            "/v1/chat/completions",
            {
                "messages": [{"role": "user", "content": QUESTION}],
                "temperature": 0,
                "max_tokens": 16,
            },
        )
        seconds = time.perf_counter() - server.command_at
        load = os.getloadavg()[0] / (os.cpu_count() or 1)
        yield server, FirstAnswer(answer["choices"][0]["message"]["content"], seconds, load)


@pytest.fixture
def server(started: tuple[RealServer, FirstAnswer]) -> RealServer:
    return started[0]


@pytest.fixture
def first_answer(started: tuple[RealServer, FirstAnswer]) -> FirstAnswer:
    return started[1]
