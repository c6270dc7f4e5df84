"""A hub on loopback, and empty caches, for the commands that fetch and keep models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.models.fake_hub import FakeHub, use_hub


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder of ours."""
    monkeypatch.setenv("DS4TRIO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def hub(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub that the hub library uses, and an empty cache of that library."""
    with use_hub(FakeHub(), tmp_path, monkeypatch) as served:
        yield served
