from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ds4trio.errors import ModelUnavailable
from ds4trio.models.cache import cache_folder
from ds4trio.models.default import ALIASES
from ds4trio.models.hub.names import parse_hub_name
from ds4trio.models.load import load_model
from ds4trio.models.resolve import DEFAULT_MODEL, ModelSource, resolve
from tests.models.fake_hub import FakeHub


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
        ("org/name\n", "There is no model"),
        ("org/name@../../x", "There is no model"),
        ("x" * 5000, "There is no model"),
        ("a\0b", "There is no model"),
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
    if hasattr(os, "mkfifo"):  # reading it would wait forever
        os.mkfifo(tmp_path / "pipe.gguf")
        with pytest.raises(ModelUnavailable, match=r"not a \.gguf file"):
            resolve(str(tmp_path / "pipe.gguf"))


@pytest.mark.parametrize("model", ["./x", "/none/x", "~/none", "x/y.gguf", "C:\\x"])
def test_a_path_with_nothing_is_told_as_one(model: str) -> None:
    with pytest.raises(ModelUnavailable, match="nothing is at this path") as caught:
        resolve(model)
    assert "hub" not in str(caught.value)


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("https://huggingface.co/org/name", "org/name"),
        ("hf.co/org/name/tree/main", "org/name"),
        ("https://huggingface.co/org/name/blob/main/x-Q4_K_M.gguf", "org/name:x-Q4_K_M.gguf"),
    ],
)
def test_an_address_of_the_hub_is_answered_with_the_name(address: str, name: str) -> None:
    with pytest.raises(ModelUnavailable, match=f"write the name alone, {name}\\.$"):
        resolve(address)
    assert parse_hub_name(name) is not None


def test_a_folder_says_what_it_is_instead(tmp_path: Path) -> None:
    (tmp_path / "b.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelUnavailable, match=r"name its b\.gguf\.$"):
        resolve(str(tmp_path))
    (tmp_path / "a.GGUF").write_bytes(b"GGUF")
    with pytest.raises(ModelUnavailable, match=r"its a\.GGUF or another of its 2 GGUF files\.$"):
        resolve(str(tmp_path))
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelUnavailable, match=f"an adapter, .* --lora NAME={tmp_path}"):
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


def test_hub_models(hub: FakeHub, tiny_model: Path, tiny_gguf: Path) -> None:
    files = {path.name: path.read_bytes() for path in tiny_model.iterdir()}
    hub.add("org/name", files)
    hub.add("org/gguf", {"x-F32.gguf": tiny_gguf.read_bytes()}, "v1")
    found = resolve("org/name")
    assert (found.name, found.kind) == ("org/name", "folder")
    assert load_model(found).config.layers == 2
    found = resolve("org/gguf@v1:F32")
    assert (found.name, found.kind) == ("org/gguf@v1:F32", "gguf")
    assert load_model(found).config.layers == 2


def test_a_local_path_comes_before_the_hub(
    hub: FakeHub, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "name").symlink_to(tiny_model)
    monkeypatch.chdir(tmp_path)
    assert resolve("org/name").path == Path("org/name")
    assert not hub.requests


def test_any_part_of_a_split_file_names_all_of_it(tmp_path: Path) -> None:
    first, second = (tmp_path / f"x-0000{n}-of-00002.gguf" for n in (1, 2))
    for path in (first, second):
        path.write_bytes(b"GGUF")
    for path in (first, second):
        assert resolve(str(path)) == ModelSource("x", "gguf", first)
    first.unlink()
    with pytest.raises(ModelUnavailable, match=r"Part 1 of 2 is missing: .*fetched completely\?$"):
        resolve(str(second))


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
