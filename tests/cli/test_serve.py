"""``ds4trio serve`` as a command: what it says, and when it says nothing."""

from __future__ import annotations

import json
import logging
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ds4trio.cli.serve import serve
from ds4trio.cli.serving import run_server
from ds4trio.generate import Generator
from ds4trio.settings import Settings
from tests.api.helpers import ScriptedEngine, scripted_generator
from tests.serve_check import get, wait_until_ready


@pytest.mark.parametrize(
    ("flag", "value"), [("--dtype", "int4"), ("--port", "many"), ("--log-level", "loud")]
)
def test_a_wrong_value_is_one_line_whatever_the_flag(flag: str, value: str) -> None:
    result = CliRunner().invoke(serve, [flag, value])
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert line.startswith(f"Error: {flag}: {value!r} cannot be used: it takes ")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--lora", "a=/nowhere/a"), "--lora: there is no adapter /nowhere/a; "),
        (("--device", "mps"), "--device: 'mps' cannot be used: "),
        (("--device", "cuda"), "--device: 'cuda' cannot be used: "),
    ],
)
def test_what_cannot_be_there_is_refused_before_a_model_is_looked_for(
    flags: tuple[str, str], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    (tmp_path / "version.py").write_text("__version__ = '9+cpu'\ncuda = hip = None\n")
    found = ModuleSpec("torch", None, is_package=True)
    found.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: found)
    result = CliRunner().invoke(serve, [*flags, "--model", "/nowhere/model"])
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert line.startswith(f"Error: {said}")


def test_at_level_warning_a_server_says_nothing_as_long_as_all_is_well(tiny_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as place:
        port = place.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "ds4trio", "serve", "--log-level", "warning"),
            *("--port", str(port), "--model", str(tiny_model), "--kv-memory", "1MiB"),
        ],
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            _wait_until_it_listens(port, server)
            wait_until_ready(address)
            assert get(f"{address}/v1/models")[0] == 200
            asked = {
                "messages": [{"role": "user", "content": "Hello"}],
                "max_tokens": 1,
                "json_schema": {"type": "object"},
            }
            assert post(f"{address}/v1/chat/completions", asked) == 200  # one more process
        finally:
            server.send_signal(signal.SIGTERM)
        assert server.stderr is not None
        # It ends when the last process that the server has started is gone.
        assert server.stderr.read() == ""
        assert server.wait() == 0


def test_the_log_says_where_it_listens_when_it_is_ready_and_that_it_has_stopped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def load(settings: Settings, runner: object) -> tuple[Generator, str]:
        return scripted_generator(ScriptedEngine(), settings), "scripted"

    def stop_when_ready(record: logging.LogRecord) -> bool:
        if record.getMessage().startswith("ready"):
            signal.raise_signal(signal.SIGTERM)
        return True

    monkeypatch.setattr("ds4trio.cli.serving.load_generator", load)
    frozen: list[bool] = []
    monkeypatch.setattr("gc.freeze", lambda: frozen.append(True))  # this process goes on
    caplog.handler.addFilter(stop_when_ready)
    try:
        assert run_server(Settings(port=0, store="memory"), None) == 0
    finally:
        caplog.handler.removeFilter(stop_when_ready)
    said = [one.getMessage() for one in caplog.records if one.name == "ds4trio.cli.serving"]
    place = r"http://127\.0\.0\.1:\d+"
    expected = [
        rf"Running on {place}, loading the model \(CTRL \+ C to quit\)",
        rf"ready to serve scripted on {place}",
        "stopping",
        "stopped",
    ]
    assert frozen == [True]
    assert len(said) == len(expected)
    assert all(map(re.fullmatch, expected, said))
    assert not [one for one in caplog.records if one.name.startswith("hypercorn")]


def post(url: str, body: dict[str, Any]) -> int:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return int(answer.status)


def _wait_until_it_listens(port: int, server: subprocess.Popen[str]) -> None:
    while server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
        except OSError:
            continue
        return
    raise AssertionError("it has ended")
