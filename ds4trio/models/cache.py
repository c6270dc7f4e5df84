"""The user's cache folder, and writing into it so that nobody sees half a file."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from ds4trio.errors import ModelUnavailable

__all__ = ["cache_folder", "conversions_of", "publish_file", "require_room", "size_on_disk"]


def cache_folder() -> Path:
    """Where fetched and converted models are kept; it need not exist yet.

    ``DS4TRIO_CACHE`` if set; otherwise ``ds4trio`` in the platform's cache folder: XDG_CACHE_HOME
    or ~/.cache, ~/Library/Caches on macOS, LOCALAPPDATA on Windows.
    """
    if chosen := os.environ.get("DS4TRIO_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "ds4trio"


def conversions_of(path: Path) -> list[Path]:
    """The folders of what was made of a model's file at this path, in any state of it."""
    with contextlib.suppress(OSError):
        path = path.resolve(strict=True)
    place = hashlib.sha256(str(path).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return sorted((cache_folder() / "converted").glob(f"{place}-*"))


def size_on_disk(path: Path) -> int:
    """Bytes of a file, or of all files below a folder; 0 for what is not there."""
    if path.is_dir() and not path.is_symlink():
        return sum(map(size_on_disk, path.iterdir()))
    with contextlib.suppress(OSError):
        return path.lstat().st_size
    return 0


def require_room(target: Path) -> None:
    """Try the folder of a file that is about to be fetched, before the time for it is spent.

    Raises:
        ModelUnavailable: the folder cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=target.parent).close()
    except OSError as error:
        raise _cannot_be_written(target.parent, error) from error


def _cannot_be_written(folder: Path, error: OSError) -> ModelUnavailable:
    return ModelUnavailable(
        f"The cache folder {folder} cannot be written ({error.strerror or error}); "
        "set DS4TRIO_CACHE to a folder with room that can."
    )


def publish_file(target: Path, write: Callable[[Path], None]) -> Path:
    """Make ``target`` in one step: ``write`` fills a file beside it, which is then renamed.

    Two processes at once each write their own; the last rename stands. What else ``write`` raises
    passes through, and nothing is left behind.

    Raises:
        ModelUnavailable: the folder cannot be written, or is full.
    """
    folder = target.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # A private folder on the same file system, since only there a rename is one step.
        with tempfile.TemporaryDirectory(
            prefix=".part-", dir=folder, ignore_cleanup_errors=True
        ) as staging:
            part = Path(staging) / target.name
            write(part)
            try:
                part.replace(target)
            except OSError:
                # Windows does not replace a file that another process has open, and so has.
                if not target.is_file():
                    raise
    except OSError as error:
        raise _cannot_be_written(folder, error) from error
    return target
