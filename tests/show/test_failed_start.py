"""A start that cannot succeed ends with status 1 and one line that says why, never a traceback."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_INFORMATION = re.compile(r"\bINFO\b")


def failed_start(*flags: str, cache: Path) -> Sequence[str]:
    """What ``ds4trio serve`` wrote to its error stream, the log's lines left out."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("DS4")}
    result = subprocess.run(
        [sys.executable, "-m", "ds4trio", "serve", *flags],
        env={**environ, "DS4TRIO_CACHE": str(cache)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 1, result.stderr
    return [line for line in result.stderr.splitlines() if not _INFORMATION.search(line)]


def test_a_port_that_is_taken(tiny_model: Path, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        lines = failed_start("--port", str(port), "--model", str(tiny_model), cache=tmp_path)
    assert len(lines) == 1, "\n".join(lines)
    assert f"127.0.0.1:{port}" in lines[0]


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    lines = failed_start("--port", "0", "--model", str(tmp_path / "no.gguf"), cache=tmp_path)
    assert len(lines) == 1, "\n".join(lines)
    assert "no.gguf" in lines[0]


def test_a_model_that_is_damaged(tmp_path: Path) -> None:
    model = tmp_path / "damaged.gguf"
    model.write_bytes(b"GGUF" + b"\xff" * 60)
    lines = failed_start("--port", "0", "--model", str(model), cache=tmp_path)
    assert len(lines) == 1, "\n".join(lines)
    assert "damaged.gguf" in lines[0]
