"""One large file from the hub into the hub library's cache, going on where an earlier try stopped.

The library begins a file anew when its process was interrupted. Here what has come stays beside the
library's blobs, as ``<etag>.ds4trio.incomplete``; when it is whole and has the hash that the hub
says, it gets the blob's name, and the library finds it there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from ds4trio.errors import ModelUnavailable
from ds4trio.models.hub.choice import RepoFile, size_text
from ds4trio.models.progress import Progress

__all__ = ["Interrupted", "Remote", "patiently", "require_disk_space"]

CHUNK = 1 << 20
TRIES = 5
"""In a row without a byte received."""
LONGEST_WAIT = 60.0
"""Seconds between two tries, whatever the hub asks for."""
KEPT_FREE = 64 << 20
"""Bytes of the disk that are never filled."""
FIRST_WAIT = 0.5
"""Seconds after a first failure where the hub asks for none; after each further one twice that."""
TEMPORARY = (408, 429, 500, 502, 503, 504)

_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SAFE_ETAG = re.compile(r"\w[\w.-]*")

T = TypeVar("T")


class Interrupted(Exception):
    """Told to stop, by another file's failure or the user."""


def patiently(ask: Callable[[], T], stop: threading.Event | None = None) -> T:
    """Ask the hub, again after a while where it is busy or limits how often one may ask.

    What it raises at last passes through.
    """
    from huggingface_hub.errors import HfHubHTTPError

    for tried in range(TRIES):
        try:
            return ask()
        except HfHubHTTPError as error:
            response = getattr(error, "response", None)
            if tried + 1 == TRIES or getattr(response, "status_code", 0) not in TEMPORARY:
                raise
            _wait(_pause(tried, getattr(response, "headers", {})), stop)
    raise AssertionError("unreachable")


def _pause(tried: int, headers: Any) -> float:
    try:
        asked = float(headers.get("Retry-After", ""))
    except ValueError:
        asked = FIRST_WAIT * 2.0**tried
    return min(max(asked, 0.0), LONGEST_WAIT)


def _wait(seconds: float, stop: threading.Event | None) -> None:
    if stop is None:
        time.sleep(seconds)
    elif stop.wait(seconds):
        raise Interrupted


class Remote:
    """Files of one repository at one commit.

    Args:
        repo: ``org/name``.
        commit: 40 hexadecimal digits.
        folder: of this repository in the hub library's cache.
        stop: set when downloads are to end soon; they then raise ``Interrupted``.
    """

    def __init__(self, repo: str, commit: str, folder: Path, stop: threading.Event) -> None:
        self.repo = repo
        self.commit = commit
        self.folder = folder
        self._stop = stop

    def present(self, file: RepoFile) -> int:
        """Bytes of a file that need not be fetched any more."""
        if (self.folder / "snapshots" / self.commit / file.path).exists():
            return file.size
        if file.sha256 is None:
            return 0
        blob = self._blob(file.sha256)
        for path in (blob, _partial(blob)):
            with contextlib.suppress(OSError):
                return min(path.stat().st_size, file.size)
        return 0

    def fetch(self, file: RepoFile, progress: Progress) -> None:
        """Bring a file's blob into the cache, if it is not there.

        Raises:
            ModelUnavailable: it is not the file that the hub announced.
            Exception: what the hub library and its HTTP library raise.
        """
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

        url = hf_hub_url(self.repo, file.path, revision=self.commit)
        found = patiently(lambda: get_hf_file_metadata(url), self._stop)
        etag, size = found.etag, found.size
        if etag is None or size is None or not _SAFE_ETAG.fullmatch(etag):
            raise ModelUnavailable(f"The hub does not say what {file.path} of {self.repo} is.")
        if size != file.size:
            raise ModelUnavailable(
                f"{file.path} of {self.repo} has {size} bytes at the hub, which lists it with "
                f"{file.size}; it was not fetched."
            )
        blob = self._blob(etag)
        lock = self.folder.parent / ".locks" / self.folder.name / f"{etag}.lock"
        for place in (blob, lock):
            place.parent.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(lock):  # the library's own, so that it does not fetch the same meanwhile
            if not blob.exists():
                digest = self._complete(url, _partial(blob), file, progress)
                expected = file.sha256 or (etag if _SHA256.fullmatch(etag) else None)
                if expected not in (None, digest):
                    _partial(blob).unlink()
                    raise ModelUnavailable(
                        f"{file.path} of {self.repo} came with other content than the hub "
                        f"announced (sha256 {digest}); it was not kept. Try again."
                    )
                _partial(blob).replace(blob)

    def _blob(self, etag: str) -> Path:
        return self.folder / "blobs" / etag

    def _complete(self, url: str, path: Path, file: RepoFile, progress: Progress) -> str:
        """Fetch what a partial file lacks; returns the sha256 of all of it."""
        digest, tries = hashlib.sha256(), 0
        what = f"fetching {Path(file.path).name} ({size_text(file.size)})"
        with _opened(path) as out:
            while chunk := out.read(CHUNK):
                digest.update(chunk)
            done = out.tell()
            if done > file.size:  # not a beginning of this file
                out.seek(0)
                out.truncate()
                digest, done = hashlib.sha256(), 0
            while done < file.size:
                progress(what, done, file.size)
                try:
                    for chunk in self._chunks(url, done, file.size):
                        if chunk is None:  # from the beginning, then
                            out.seek(0)
                            out.truncate()
                            digest, done = hashlib.sha256(), 0
                            continue
                        out.write(chunk)
                        digest.update(chunk)
                        done += len(chunk)
                        tries = 0
                        progress(what, min(done, file.size), file.size)
                        if self._stop.is_set():
                            raise Interrupted
                        if done > file.size:
                            break
                    if done < file.size:
                        raise ConnectionError("the connection ended early")
                except (_network_error(), ConnectionError) as error:
                    tries += 1
                    response = getattr(error, "response", None)
                    if response is not None and response.status_code not in TEMPORARY:
                        raise
                    if tries >= TRIES:
                        raise
                    _wait(_pause(tries - 1, getattr(response, "headers", {})), self._stop)
            progress(what, file.size, file.size)
        if done > file.size:
            path.unlink()
            raise ModelUnavailable(
                f"The hub sent more of {file.path} of {self.repo} than its {file.size} bytes; it "
                "was not kept. Try again."
            )
        return digest.hexdigest()

    def _chunks(self, url: str, begin: int, size: int) -> Iterator[bytes | None]:
        """What comes of a file from a place on; None first where it comes from the beginning."""
        with _stream(url, begin, size - 1 if begin else None) as response:
            if begin:
                found = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
                told = response.status_code == 206 and found is not None
                if not told or found is None or int(found[1]) != begin:
                    yield None
                    if response.status_code == 206:
                        raise ConnectionError("another part came than was asked for")
            yield from response.iter_bytes(CHUNK)

    def beginning(self, file: RepoFile, count: int, *, start: int = 0) -> bytes:
        """Bytes ``start`` to ``count`` of a file, fewer where it ends before."""
        from huggingface_hub import hf_hub_url

        url = hf_hub_url(self.repo, file.path, revision=self.commit)

        def ask() -> bytes:
            got = bytearray()
            with _stream(url, start, count - 1) as response:
                skip = 0 if response.status_code == 206 else start
                for chunk in response.iter_bytes(CHUNK):
                    got += chunk
                    if len(got) >= skip + count - start:
                        break
            return bytes(got[skip : skip + count - start])

        return patiently(ask)


@contextlib.contextmanager
def _stream(url: str, begin: int, last: int | None) -> Iterator[Any]:
    from huggingface_hub import constants, get_session, hf_raise_for_status
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    # The bytes as they are, since places in them are counted. Where a redirect leads to another
    # host, the HTTP library leaves the token out.
    headers = {**build_hf_headers(library_name="ds4trio"), "Accept-Encoding": "identity"}
    if begin or last is not None:
        headers["Range"] = f"bytes={begin}-{'' if last is None else last}"
    with get_session().stream(
        "GET",
        url,
        headers=headers,
        timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT,
        follow_redirects=True,
    ) as response:
        hf_raise_for_status(response)
        yield response


def _network_error() -> type[Exception]:
    """The root of what the hub library's HTTP library raises, whichever that is."""
    from huggingface_hub.errors import HfHubHTTPError

    kinds: list[type[Exception]] = [k for k in HfHubHTTPError.__mro__ if k.__name__ == "HTTPError"]
    return kinds[0]


def _partial(blob: Path) -> Path:
    return blob.with_name(f"{blob.name}.ds4trio.incomplete")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o644)
    with os.fdopen(descriptor, "r+b") as file:
        yield file


def require_disk_space(folder: Path, needed: int, name: str) -> None:
    """Say it before anything is fetched when a disk has too little room.

    Args:
        folder: where it goes; it need not exist yet.
        needed: bytes.
        name: of the model.

    Raises:
        ModelUnavailable: fewer bytes are free.
    """
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    free = shutil.disk_usage(existing).free - KEPT_FREE
    if needed > free:
        raise ModelUnavailable(
            f"{name} needs {size_text(needed)} more on the disk of {folder}, where "
            f"{size_text(max(free, 0))} are free; make room, or set HF_HOME to a folder on another "
            "disk."
        )
