"""``ds4trio list`` and ``ds4trio rm``: the one says what the other takes away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ds4trio.cli.list_models import list_models
from ds4trio.cli.pull import pull
from ds4trio.cli.rm import rm
from ds4trio.models.default import ALIASES, DEFAULT_MODEL
from ds4trio.models.hub.cached import repo_folder
from ds4trio.models.hub.fetch import fetch
from ds4trio.models.hub.names import parse_hub_name
from tests.models.fake_hub import FakeHub, Files
from tests.models.gguf_files import write_gguf


@pytest.fixture
def folder_files(tiny_model: Path) -> Files:
    return {path.name: path.read_bytes() for path in tiny_model.iterdir()}


@pytest.fixture
def gguf(tiny_model: Path, tmp_path: Path) -> bytes:
    return write_gguf(tmp_path / "x.gguf", tiny_model).read_bytes()


def pulled(*models: str) -> None:
    for model in models:
        name = parse_hub_name(model)
        assert name is not None
        fetch(name)


def listed() -> list[dict[str, Any]]:
    result = CliRunner().invoke(list_models, ["--json"])
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.output)
    return found


def names() -> list[str]:
    return [model["name"] for model in listed()]


def remove(*arguments: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(rm, arguments, input=answer)


def removed(*arguments: str) -> str:
    result = remove(*arguments, "--yes")
    assert result.exit_code == 0, result.output
    return result.output


def test_nothing_here_says_how_to_pull(hub: FakeHub) -> None:
    result = CliRunner().invoke(list_models, [])
    assert "'ds4trio pull' fetches the default model" in result.output
    assert listed() == []


def test_every_kind_is_listed(hub: FakeHub, folder_files: Files, gguf: bytes) -> None:
    hub.add("org/folder", folder_files)
    hub.add("org/files", {"x-Q8_0.gguf": gguf, "x-F16.gguf": gguf + b"1"})
    hub.add("org/bert", {**folder_files, "config.json": b'{"model_type": "bert"}'})
    old = hub.add("org/folder", {**folder_files, "tokenizer.json": b"{}"}, "v1")
    path = ALIASES[DEFAULT_MODEL].path
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(ALIASES[DEFAULT_MODEL].size)
    pulled("org/folder", "org/folder@v1", f"org/folder@{old}", "org/files:Q8_0", "org/files:F16")
    pulled("org/bert")
    assert names() == [
        "org/files:F16",
        "org/files:Q8_0",
        "org/folder",
        "org/folder@v1",
        DEFAULT_MODEL,
    ]
    _, q8, folder, _, default = listed()
    assert (q8["format"], q8["numbers"], q8["size"]) == ("gguf", "Q8_0", len(gguf))
    assert (folder["format"], folder["numbers"]) == ("safetensors", "float32")
    assert folder["size"] == sum(map(len, folder_files.values()))
    assert (default["numbers"], default["size"]) == ("Q4_1", path.stat().st_size)
    table = CliRunner().invoke(list_models, []).output.splitlines()
    assert table[0].split() == ["MODEL", "FORMAT", "SIZE", "LAST", "USED"]
    assert table[1].split() == ["org/files:F16", "GGUF", "F16", *table[1].split()[3:]]
    assert len(table) == 6


def test_listed_names_are_found_without_the_hub(
    hub: FakeHub, folder_files: Files, gguf: bytes
) -> None:
    hub.add("org/folder", folder_files, "v1")
    hub.add("org/files", {"a.gguf": gguf, "sub/a-Q8_0.gguf": gguf, "b-Q8_0.gguf": gguf + b"1"})
    pulled(
        "org/folder@v1", "org/files:a.gguf", "org/files:sub/a-Q8_0.gguf", "org/files:b-Q8_0.gguf"
    )
    hub.requests.clear()
    from ds4trio.models.resolve import resolve

    for model in listed():
        assert str(resolve(model["name"], offline=True).path) == model["path"]
    assert len(listed()) == 4
    assert not hub.requests


def test_what_an_interrupted_fetch_left_is_listed_and_removed(hub: FakeHub, gguf: bytes) -> None:
    hub.add("org/name", {"x-Q8_0.gguf": gguf, "x-F16.gguf": gguf[:2000]})
    pulled("org/name:F16")
    hub.cuts["x-Q8_0.gguf"] = [5000] + [0] * 20
    result = CliRunner().invoke(pull, ["org/name:Q8_0"])
    assert result.exit_code == 1
    whole, part = sorted(listed(), key=lambda model: not model["complete"])
    assert (whole["name"], part["name"]) == ("org/name:F16", "org/name")
    assert 0 < part["size"] <= 5000
    assert "incomplete" in CliRunner().invoke(list_models, []).output
    removed("org/name")
    assert not repo_folder("org/name").exists()


def test_removing_asks_and_says_what_is_freed(hub: FakeHub, folder_files: Files) -> None:
    hub.add("org/name", folder_files)
    pulled("org/name")
    for answer in ("n\n", ""):
        result = remove("org/name", answer=answer)
        assert result.exit_code == 1
        assert "org/name@main" in result.output
    assert names() == ["org/name"]
    result = remove("org/name", answer="y\n")
    size = f"{sum(map(len, folder_files.values())) / 1000:.0f} kB"
    assert f"Freed {size}" in result.output
    assert not repo_folder("org/name").exists()


def test_what_another_revision_uses_is_kept(hub: FakeHub, folder_files: Files) -> None:
    hub.add("org/name", folder_files)
    hub.add("org/name", {**folder_files, "tokenizer_config.json": b"{}" * 50}, "v1")
    pulled("org/name", "org/name@v1")
    assert "Freed 100 B" in removed("org/name@v1")
    assert names() == ["org/name"]
    pulled("org/name@v1")
    removed("org/name")
    assert names() == []


def test_a_file_alone(hub: FakeHub, gguf: bytes) -> None:
    files = {"x-F16.gguf": gguf + b"1"}
    files |= {f"x-Q8_0-0000{n}-of-00002.gguf": gguf + bytes([n]) for n in (1, 2)}
    hub.add("org/name", files)
    pulled("org/name:F16", "org/name:Q8_0")
    output = removed("org/name:Q8_0")
    assert "x-Q8_0-00002-of-00002.gguf" in output
    assert names() == ["org/name:F16"]
    result = remove("org/name:Q8_0", "--yes")
    assert "no GGUF model 'Q8_0'; it has org/name:F16" in result.output
    removed("org/name:F16")
    assert not repo_folder("org/name").exists()


def test_what_was_made_of_a_model_goes_too(hub: FakeHub, cache: Path, gguf: bytes) -> None:
    hub.add("org/name", {"x-F32.gguf": gguf})
    assert CliRunner().invoke(pull, ["org/name"]).exit_code == 0
    (made,) = cache.glob("converted/*")
    size = len(gguf) + sum(path.stat().st_size for path in made.iterdir())
    assert listed()[0]["size"] == size
    assert remove("org/name", "--yes").exit_code == 0
    assert not list(cache.glob("converted/*"))


def test_the_alias(cache: Path, hub: FakeHub) -> None:
    path = ALIASES[DEFAULT_MODEL].path
    result = remove(DEFAULT_MODEL, "--yes")
    assert "is not on this machine" in result.output
    path.parent.mkdir(parents=True)
    path.write_bytes(b"GGUF")
    (path.parent / "other.gguf").write_bytes(b"GGUF")
    removed(DEFAULT_MODEL)
    assert [other.name for other in path.parent.iterdir()] == ["other.gguf"]


def test_a_users_own_path_is_never_removed(
    hub: FakeHub, folder_files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "org" / "name"
    own.mkdir(parents=True)
    (own / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    for model in (str(own), "org/name", "org", ".", "/", "~", ".."):
        result = remove(model, "--yes")
        assert result.exit_code == 1
        assert "is a path of yours" in result.output
    assert (own / "config.json").exists()


@pytest.mark.parametrize("model", ["org/absent", "org/absent:Q8_0", "org/absent@v1", "x/../../y"])
def test_what_is_not_here_is_told(hub: FakeHub, model: str) -> None:
    result = remove(model, "--yes")
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")


def test_nothing_is_removed_when_one_of_several_is_not_here(
    hub: FakeHub, folder_files: Files
) -> None:
    hub.add("org/name", folder_files)
    pulled("org/name")
    assert remove("org/name", "org/absent", "--yes").exit_code == 1
    assert names() == ["org/name"]


def test_links_out_of_the_cache_are_not_followed(
    hub: FakeHub, folder_files: Files, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "precious").write_text("mine")
    hub.add("org/name", folder_files)
    hub.add("org/name", {**folder_files, "tokenizer_config.json": b"{}"}, "v1")
    pulled("org/name", "org/name@v1")
    (snapshot,) = (
        path for path in repo_folder("org/name").glob("snapshots/*") if path.name == _ref("main")
    )
    (snapshot / "evil.json").symlink_to(own / "precious")
    result = remove("org/name@main", "--yes")
    assert result.exit_code == 1
    assert "lies outside" in result.output
    (snapshot / "evil.json").unlink()
    # A repository that is itself a link, and one that is damaged.
    (repo_folder("org/link")).symlink_to(own)
    removed("org/link")
    assert not repo_folder("org/link").is_symlink()
    repo_folder("org/damaged").mkdir()
    removed("org/damaged")
    assert not repo_folder("org/damaged").exists()
    assert (own / "precious").read_text() == "mine"


def _ref(name: str) -> str:
    return (repo_folder("org/name") / "refs" / name).read_text()


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=st.text("org/name.@:*~-\\ ", max_size=16))
def test_hostile_names_remove_nothing_else(hub: FakeHub, tmp_path: Path, text: str) -> None:
    (tmp_path / "hub").mkdir(exist_ok=True)
    (tmp_path / "cache").mkdir(exist_ok=True)
    (tmp_path / "precious").write_text("mine")
    result = remove("--yes", "--", text)
    assert result.exit_code == 1, result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "hub", "precious"]


def test_the_command_itself_does_not_import_torch(cache: Path, tmp_path: Path) -> None:
    script = (
        "import sys\nfrom ds4trio.cli.main import main\n"
        "try:\n    main(['list'])\nexcept SystemExit as end:\n    assert not end.code\n"
        "assert 'torch' not in sys.modules\n"
    )
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub")}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=60)
