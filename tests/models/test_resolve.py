from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

from ds4trio.errors import ModelUnavailable
from ds4trio.models.cache import cache_folder
from ds4trio.models.default import ALIASES
from ds4trio.models.resolve import DEFAULT_MODEL, ModelSource, resolve


class FakeHub:
    """Stands for ``snapshot_download``: what is cached, and what the network would bring."""

    def __init__(self, *, cached: Path | None = None, online: Path | Exception) -> None:
        self.cached = cached
        self.online = online
        self.fetched = 0

    def __call__(self, hub_id: str, *, local_files_only: bool, **_: Any) -> str:
        if local_files_only:
            if self.cached is None:
                raise LocalEntryNotFoundError("not cached")
            return str(self.cached)
        self.fetched += 1
        if isinstance(self.online, Exception):
            raise self.online
        return str(self.online)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Any:
    def install(**arguments: Any) -> FakeHub:
        fake = FakeHub(**arguments)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", fake)
        return fake

    return install


def test_paths(tiny_model: Path, tiny_gguf: Path) -> None:
    assert resolve(str(tiny_gguf)) == ModelSource("tiny", "gguf", tiny_gguf)
    assert resolve(str(tiny_model)) == ModelSource("tiny", "folder", tiny_model)


def test_a_folder_is_named_even_as_a_dot(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tiny_model)
    assert resolve(".").name == "tiny"


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("absent.gguf", "There is no model 'absent.gguf'"),
        ("no/such/folder", "There is no model"),
        ("gpt-5", f"or {DEFAULT_MODEL}"),
        ("", "model folder|There is no model"),
        ("../x", "There is no model"),
    ],
)
def test_what_is_nothing_says_what_can_be_given(
    model: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelUnavailable, match=says) as caught:
        resolve(model)
    assert "\n" not in str(caught.value)


def test_other_files_and_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(ModelUnavailable, match=r"not a \.gguf file"):
        resolve(str(tmp_path / "model.bin"))
    with pytest.raises(ModelUnavailable, match=r"no config\.json"):
        resolve(str(tmp_path))


def test_the_alias_offline_and_not_cached_says_what_to_do(cache: Path) -> None:
    with pytest.raises(ModelUnavailable, match="run 'ds4trio pull'"):
        resolve(offline=True)


def test_the_alias_from_the_cache_needs_no_network(cache: Path) -> None:
    wheel = ALIASES[DEFAULT_MODEL]
    wheel.path.parent.mkdir(parents=True)
    with wheel.path.open("wb") as file:
        file.truncate(wheel.size)
    assert resolve("SmolLM2-135M-Instruct", offline=True) == ModelSource(
        DEFAULT_MODEL, "gguf", wheel.path
    )
    with wheel.path.open("wb") as file:
        file.truncate(wheel.size - 1)
    with pytest.raises(ModelUnavailable, match="not in the cache"):
        resolve(offline=True)


def test_a_cached_hub_model_is_used_without_asking(tiny_model: Path, hub: Any) -> None:
    fake = hub(cached=tiny_model, online=OSError("no network"))
    assert resolve("org/name") == ModelSource("org/name", "folder", tiny_model)
    assert resolve("org/name", offline=True).path == tiny_model
    assert fake.fetched == 0
    with pytest.raises(ModelUnavailable, match="no network"):
        resolve("org/name", refresh=True)


def test_an_incomplete_hub_model_is_fetched(tiny_model: Path, tmp_path: Path, hub: Any) -> None:
    (tmp_path / "config.json").write_text("{}")
    fake = hub(cached=tmp_path, online=tiny_model)
    assert resolve("org/name").path == tiny_model
    assert fake.fetched == 1


def test_hub_errors_say_what_to_do(tmp_path: Path, hub: Any) -> None:
    hub(online=LocalEntryNotFoundError("unreachable"))
    for offline in (True, False):
        with pytest.raises(ModelUnavailable, match="run 'ds4trio pull org/name'"):
            resolve("org/name", offline=offline)
    # Whatever HTTP library it is made of, all that matters of the answer is that there is one.
    hub(online=RepositoryNotFoundError("no", response=Mock()))
    with pytest.raises(ModelUnavailable, match="no model org/name"):
        resolve("org/name")
    hub(online=tmp_path)
    with pytest.raises(ModelUnavailable, match=r"no config\.json with safetensors"):
        resolve("org/name")


@pytest.mark.parametrize(
    ("platform", "variable", "value", "expected"),
    [
        ("linux", "XDG_CACHE_HOME", "/x/cache", "/x/cache/ds4trio"),
        ("linux", "XDG_CACHE_HOME", "", "/home/u/.cache/ds4trio"),
        ("darwin", "XDG_CACHE_HOME", "/ignored", "/home/u/Library/Caches/ds4trio"),
        ("win32", "LOCALAPPDATA", "/local", "/local/ds4trio"),
        ("linux", "DS4TRIO_CACHE", "~/mine", "/home/u/mine"),
    ],
)
def test_where_the_cache_is(
    platform: str, variable: str, value: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DS4TRIO_CACHE", raising=False)
    monkeypatch.setenv("HOME", "/home/u")
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv(variable, value)
    assert cache_folder() == Path(expected)
