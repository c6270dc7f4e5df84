"""A cache folder of its own for every test, and a model as a GGUF file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.models.fake_hub import FakeHub, use_hub
from tests.models.gguf_files import write_gguf


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, used by everything in this test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("DS4TRIO_CACHE", str(folder))
    return folder


@pytest.fixture
def tiny_gguf(tiny_model: Path, tmp_path: Path) -> Path:
    """The tiny model as float32 GGUF, alone in a folder."""
    folder = tmp_path / "files"
    folder.mkdir()
    return write_gguf(folder / "tiny.gguf", tiny_model)


@pytest.fixture
def hub(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub on loopback that the hub library uses, and an empty cache of that library."""
    with use_hub(FakeHub(), tmp_path, monkeypatch) as served:
        yield served
