from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ds4trio.cli.pull import INTERRUPTED, pull
from ds4trio.models.hub.cached import repo_folder
from tests.models.fake_hub import FakeHub, Files
from tests.models.gguf_files import write_gguf


def run(*arguments: str) -> Result:
    return CliRunner().invoke(pull, arguments)


@pytest.fixture
def folder_files(tiny_model: Path) -> Files:
    return {path.name: path.read_bytes() for path in tiny_model.iterdir()}


def test_a_pulled_model_is_converted_and_its_place_printed(
    cache: Path, tmp_path: Path, tiny_model: Path
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", tiny_model)
    result = run(str(path))
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{path}\n"
    assert "converting tiny.gguf" in result.stderr
    assert len(list(cache.glob("converted/*/model.msgpack"))) == 1


def test_what_cannot_be_pulled_is_one_line(cache: Path) -> None:
    result = run("no-such-model")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: There is no model 'no-such-model'")
    assert result.stderr.count("\n") == 1


def test_several_from_the_hub(hub: FakeHub, folder_files: Files, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", _model(tmp_path, folder_files))
    commit = hub.add("org/folder", folder_files)
    hub.add("org/files", {"tiny-F32.gguf": path.read_bytes()})
    result = run("org/folder", "org/files:F32")
    assert result.exit_code == 0, result.output
    folder, file = result.stdout.splitlines()
    assert folder.endswith(f"snapshots/{commit}")
    assert file.endswith("tiny-F32.gguf")
    assert "fetching tiny-F32.gguf" in result.stderr


def _model(tmp_path: Path, files: Files) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def test_revision_and_file_as_flags(hub: FakeHub, folder_files: Files, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", _model(tmp_path, folder_files))
    files = {"a-F32.gguf": path.read_bytes(), "a-F16.gguf": b"GGUF"}
    commit = hub.add("org/files", files, "v1")
    result = run("org/files", "--revision", "v1", "--file", "F32")
    assert result.exit_code == 0, result.output
    assert result.stdout.endswith(f"{commit}/a-F32.gguf\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["org/a", "org/b", "--file", "x"], "a single MODEL"),
        (["smollm2-135m-instruct", "--revision", "x"], "models of the hub"),
        (["org/a@v1", "--revision", "v2"], "do not agree"),
        (["org/a:Q8_0", "--file", "Q4_0"], "do not agree"),
        (["org/a", "--file", "../x"], "no model on the hub"),
    ],
)
def test_flags_that_make_no_sense(cache: Path, arguments: list[str], says: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert says in result.stderr


def test_a_model_that_cannot_be_served_is_told_before_its_weights_are_fetched(
    hub: FakeHub, folder_files: Files
) -> None:
    hub.add("org/name", {**folder_files, "config.json": b'{"model_type": "quipu"}'})
    result = run("org/name")
    assert result.exit_code == 1
    assert "unknown architecture 'quipu'" in result.stderr
    assert not hub.asked("content")


def test_ctrl_c_leaves_what_has_come_and_the_next_pull_goes_on(
    hub: FakeHub, tiny_model: Path, tmp_path: Path
) -> None:
    """The command itself, with the hub library's own variables."""
    files = {path.name: path.read_bytes() for path in tiny_model.iterdir()}
    files["model.safetensors"] += bytes(60 << 20)  # a tail that the header does not know
    hub.add("org/name", files)
    hub.pause_after["model.safetensors"] = 30 << 20
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_HUB_CACHE": str(tmp_path / "hub"),
        "HF_HUB_OFFLINE": "0",
    }
    command = [sys.executable, "-m", "ds4trio", "pull", "org/name"]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    for _ in range(600):
        if any(p.stat().st_size >= 29 << 20 for p in repo_folder("org/name").rglob("*.incomplete")):
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    hub.resume.set()
    _, error = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED, error
    assert "the same command goes on there" in error
    (part,) = repo_folder("org/name").rglob("*.incomplete")
    came = part.stat().st_size
    assert came >= 29 << 20
    hub.requests.clear()
    subprocess.run(command, env=environment, capture_output=True, check=False, timeout=60)
    (request,) = hub.asked("content")
    assert request.range == f"bytes={came}-{len(files['model.safetensors']) - 1}"
    assert not list(repo_folder("org/name").rglob("*.incomplete"))
