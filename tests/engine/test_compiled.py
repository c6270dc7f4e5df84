"""Compiled kernels are kept from one start to the next, for as long as they are what is written.

Each start is a process of its own, with a copy of the package and a small kernel in it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import ds4trio
from ds4trio.engine.native.products import multiply
from tests.serve_check import started, wait_until_ready

PACKAGE = Path(ds4trio.__file__).parent

KERNEL = """
from numba import prange
from numba.types import int64, void
from ds4trio.engine.native.compiled import compiled
from ds4trio.engine.native.part import FACTOR

@compiled()
def _times(number):
    return number * FACTOR

@compiled(void(int64[::1]), parallel=True)
def kernel(numbers):
    for i in prange(len(numbers)):
        numbers[i] = _times(numbers[i])
"""

START = """
import logging
import numpy
logging.basicConfig(level="INFO", format="%(levelname)s %(message)s")
from ds4trio.engine.native.kernel import kernel
numbers = numpy.arange(3)
kernel(numbers)
print(numbers.tolist())
"""

COMPILING = "INFO compiling the kernels for this processor, once: about 30 s"


class Installed:
    """A copy of the package, with a kernel that is made from two files."""

    def __init__(self, folder: Path) -> None:
        self.native = folder / "ds4trio" / "engine" / "native"
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PACKAGE, folder / "ds4trio", ignore=ignored)
        (folder / "static").symlink_to(PACKAGE.parent / "static")
        (folder / "file").write_text("no folder can be made below this")
        self.environ = {
            "PYTHONPATH": str(folder),
            "DS4TRIO_CACHE": str(folder / "cache"),
            "PYTHONDONTWRITEBYTECODE": "1",  # or an edit within the same second goes unseen
        }
        self.nowhere = str(folder / "file" / "cache")

    def cannot_be_written(self) -> None:
        """So that it holds for root too."""
        shutil.rmtree(self.native / "__pycache__", ignore_errors=True)
        (self.native / "__pycache__").write_text("")

    def with_kernel(self) -> Installed:
        (self.native / "kernel.py").write_text(KERNEL)
        (self.native / "part.py").write_text("FACTOR = 2\n")
        return self

    def start(
        self, environ: Mapping[str, str] | None = None, before: str = ""
    ) -> tuple[str, list[str]]:
        """What the kernel made of 0, 1, 2, and the lines that were logged."""
        result = subprocess.run(
            [sys.executable, "-P", "-c", before + START],
            env={**_environ(), **self.environ, **(environ or {})},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        return result.stdout.strip(), result.stderr.splitlines()


def _environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("NUMBA")}


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    return Installed(tmp_path)


def test_a_second_start_compiles_nothing_until_a_file_has_changed(installed: Installed) -> None:
    installed.with_kernel()
    assert installed.start() == ("[0, 2, 4]", [COMPILING])
    assert installed.start() == ("[0, 2, 4]", [])
    (installed.native / "part.py").write_text("FACTOR = 3\n")
    assert installed.start() == ("[0, 3, 6]", [COMPILING])
    assert installed.start() == ("[0, 3, 6]", [])


def test_a_package_that_cannot_be_written_keeps_them_in_our_cache(installed: Installed) -> None:
    installed.with_kernel().cannot_be_written()
    assert installed.start() == ("[0, 2, 4]", [COMPILING])
    assert list(Path(installed.environ["DS4TRIO_CACHE"], "kernels").rglob("*.nbc"))
    assert installed.start() == ("[0, 2, 4]", [])
    (installed.native / "part.py").write_text("FACTOR = 3\n")
    assert installed.start() == ("[0, 3, 6]", [COMPILING])


def test_without_any_folder_a_start_says_what_it_costs(installed: Installed) -> None:
    installed.with_kernel().cannot_be_written()
    nowhere = installed.nowhere
    numbers, (line,) = installed.start({"DS4TRIO_CACHE": nowhere, "NUMBA_CACHE_DIR": nowhere})
    assert numbers == "[0, 2, 4]"
    assert line.startswith("WARNING the compiled kernels are not kept")
    assert "about 30 s longer" in line
    assert "set DS4TRIO_CACHE" in line


def test_a_full_disk_does_not_stop_a_start(installed: Installed) -> None:
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
    numbers, (first, second) = installed.with_kernel().start(before=full)
    assert (numbers, first) == ("[0, 2, 4]", COMPILING)
    assert second.startswith("WARNING the compiled kernels are not kept")
    assert installed.start() == ("[0, 2, 4]", [COMPILING])


def cut(kept: bytes) -> bytes:
    return kept[: len(kept) // 2]


def flipped(kept: bytes) -> bytes:
    """A bit in each 200 bytes, in the machine code too."""
    return bytes(byte ^ (place % 200 == 199) for place, byte in enumerate(kept))


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
@pytest.mark.parametrize("damage", [cut, flipped, lambda _: b""])
def test_a_damaged_file_is_made_anew(
    installed: Installed, kind: str, damage: Callable[[bytes], bytes]
) -> None:
    installed.with_kernel()
    installed.start()
    for file in installed.native.rglob(f"*.{kind}"):
        file.write_bytes(damage(file.read_bytes()))
    assert installed.start() == ("[0, 2, 4]", [COMPILING])
    assert installed.start() == ("[0, 2, 4]", [])


def test_code_of_another_signature_is_not_taken(installed: Installed) -> None:
    """Two servers that are started at once number the files of their signatures alike."""
    installed.with_kernel()
    kernel = installed.native / "kernel.py"
    two = KERNEL.replace("void(int64[::1])", "void(int64[::1]), void(float64[::1])")
    kernel.write_text(two.replace("import int64", "import float64, int64"))
    installed.start()
    one, other = sorted(installed.native.rglob("kernel.kernel*.nbc"))
    code = one.read_bytes(), other.read_bytes()
    for place, foreign in zip((one, other), reversed(code), strict=True):
        one.write_bytes(code[0])
        other.write_bytes(code[1])
        place.write_bytes(foreign)
        assert installed.start() == ("[0, 2, 4]", [COMPILING])
        assert installed.start() == ("[0, 2, 4]", [])


@pytest.mark.parametrize("engine", ["process", "thread"])
def test_the_server_says_that_it_compiles(
    installed: Installed, tiny_model: Path, tmp_path: Path, engine: str
) -> None:
    shutil.copytree(multiply.stats.cache_path, installed.native / "__pycache__")
    for file in installed.native.rglob("products.read_rows*"):
        file.unlink()  # the smallest of them; the others are there
    log = _served(installed, tiny_model, tmp_path, f"--engine {engine}")
    assert log.count(COMPILING.removeprefix("INFO ")) == 1


def test_a_server_that_can_write_nowhere_starts(
    installed: Installed, tiny_model: Path, tmp_path: Path
) -> None:
    installed.cannot_be_written()
    installed.environ["DS4TRIO_CACHE"] = installed.nowhere
    log = _served(installed, tiny_model, tmp_path, "--engine process")
    assert log.count("the compiled kernels are not kept") == 1


def _served(installed: Installed, model: Path, folder: Path, flags: str) -> str:
    """What a server logs until it is ready."""
    environ = " ".join(f"{name}={shlex.quote(it)}" for name, it in installed.environ.items())
    command = f"{shlex.quote(sys.executable)} -P -m ds4trio serve --model {model} {flags}"
    log = folder / "log"
    with started(f"env -u NUMBA_CACHE_DIR {environ} {command} 2>&1 | tee {log}") as (_, address):
        wait_until_ready(address)
    return log.read_text()
