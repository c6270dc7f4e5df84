"""The two servers that every client talks to: one with a scripted model, one with the default."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ds4trio.models.resolve import resolve
from tests.clients.scenes import talk
from tests.clients.scripted_server import TalkingServer, talking_server
from tests.show.real_server import RealServer, real_server


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TalkingServer]:
    """A server that speaks what ``scenes.talk`` says."""
    with talking_server(talk, tmp_path_factory.mktemp("scripted")) as server:
        yield server


@pytest.fixture(scope="session")
def real() -> Iterator[RealServer]:
    """``ds4trio serve`` with the default model; a test that asks for it is marked ``model``."""
    resolve()  # fetched now, if ever: the start has a deadline
    with real_server("--dtype", "float32") as server:
        yield server
