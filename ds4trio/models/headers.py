"""The headers of a model's files: of files here, or at the hub, from where only they come."""

from __future__ import annotations

import re
import tempfile
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from ds4trio.errors import ModelUnavailable
from ds4trio.models.damaged import BAD_JSON
from ds4trio.models.facts import Facts, TensorFact, folder_facts, gguf_facts
from ds4trio.models.gguf.header import GgufHeader, read_header
from ds4trio.models.gguf.parts import part_paths
from ds4trio.models.hub.cached import cached, repo_folder
from ds4trio.models.hub.choice import RepoFile
from ds4trio.models.hub.download import Remote
from ds4trio.models.hub.errors import clear_errors
from ds4trio.models.hub.fetch import describe
from ds4trio.models.hub.names import HubName
from ds4trio.models.mistaken import what_file_is
from ds4trio.models.progress import Progress, silent
from ds4trio.models.shards import shard_names

__all__ = ["Looked", "look_at_hub", "look_at_path"]

LONGEST_HEADER = 100 << 20
"""Bytes of a safetensors header; the format has no longer ones."""
FIRST_PIECE = 4 << 20
"""Bytes of a GGUF file that are asked for first. Most headers, with the vocabulary, are shorter."""
AT_ONCE = 8

Read = Callable[[int, int], bytes]
"""Gives bytes ``start`` to ``end`` of a file, fewer where it ends before."""


class Entry(msgspec.Struct):
    """Of one tensor in a safetensors header, the parts that are needed."""

    dtype: str
    shape: tuple[int, ...]


class Looked(msgspec.Struct, frozen=True):
    """What was found.

    Attributes:
        facts: of the model.
        size: bytes of its files on disk.
        path: of the file or folder; None where only its headers are here.
    """

    facts: Facts
    size: int
    path: Path | None


def look_at_path(path: Path) -> Looked:
    """Read the headers of a model on this machine.

    Args:
        path: a GGUF file, any of its parts, or a Hugging Face folder.

    Raises:
        ModelUnavailable: they cannot be read at all.
    """
    if path.is_dir():
        files = [path / name for name in shard_names(path)]
        tensors: dict[str, TensorFact] = {}
        for file in files:
            tensors |= _local_safetensors(file)
        facts = folder_facts(path, tensors, _readme_license(path))
        size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
        return Looked(facts, size, path)
    files = part_paths(path)
    facts = _joined([read_header(file) for file in files])
    return Looked(facts, sum(file.stat().st_size for file in files), path)


def look_at_hub(name: HubName, *, offline: bool = False, progress: Progress = silent) -> Looked:
    """The same of a hub model. What is not here is asked for, headers only.

    Raises:
        ModelUnavailable: as ``hub.find``; or the headers cannot be read.
    """
    if (here := cached(name)) is not None:
        return look_at_path(here.path)
    if offline:
        raise ModelUnavailable(f"{name} is not in the hub cache.")
    there, chosen, folder = describe(name, progress)
    remote = Remote(name.repo, there.commit, repo_folder(name.repo), threading.Event())
    with clear_errors(name):
        if chosen.kind == "gguf":
            headers = [_remote_gguf(remote, file) for file in chosen.weights]
            facts = _joined(headers)
        else:
            facts = folder_facts(folder, _remote_safetensors(remote, chosen.weights), there.license)
    return Looked(facts, sum(file.size for file in chosen.files), None)


def _joined(headers: list[GgufHeader]) -> Facts:
    tensors = {
        name: TensorFact(info.kind, info.shape)
        for header in headers
        for name, info in header.tensors.items()
    }
    return gguf_facts(headers[0].metadata, tensors)


def _remote_gguf(remote: Remote, file: RepoFile) -> GgufHeader:
    """The header of a file at the hub: as much of its beginning as the header takes, in a file that
    is as long as the whole one and has holes elsewhere."""
    with tempfile.TemporaryDirectory(prefix="ds4trio-") as folder:
        path = Path(folder) / Path(file.path).name
        path.touch()
        have, want = 0, FIRST_PIECE
        while True:
            want = min(want, file.size)
            piece = remote.beginning(file, want, start=have) if want > have else b""
            if not piece:
                raise ModelUnavailable(f"The hub does not give {file.path} of {remote.repo}.")
            with path.open("r+b") as out:
                out.seek(have)
                out.write(piece)
                have += len(piece)
                out.truncate(file.size)
            try:
                header = read_header(path)
                # Holes read as zeros, with which a header that is cut off may still make sense.
                begins = min((info.offset for info in header.tensors.values()), default=file.size)
                if begins <= have:
                    return header
            except ModelUnavailable:
                if have >= file.size:
                    raise
            want = have * 4
            if have > LONGEST_HEADER:
                raise ModelUnavailable(f"The header of {file.path} is longer than any known.")


def _local_safetensors(path: Path) -> dict[str, TensorFact]:
    try:
        with path.open("rb") as file:

            def read(start: int, end: int) -> bytes:
                file.seek(start)
                return file.read(end - start)

            return _safetensors(str(path), read)
    except ModelUnavailable as error:
        if (what := what_file_is(path, "safetensors")) is None:
            raise
        raise ModelUnavailable(f"{path} cannot be read: {what}") from error
    except OSError as error:
        raise ModelUnavailable(f"{path} cannot be read: {error.strerror}.") from error


def _remote_safetensors(remote: Remote, files: Iterable[RepoFile]) -> dict[str, TensorFact]:
    def tensors_of(file: RepoFile) -> dict[str, TensorFact]:
        return _safetensors(file.path, lambda start, end: remote.beginning(file, end, start=start))

    found: dict[str, TensorFact] = {}
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="hub") as pool:
        for tensors in pool.map(tensors_of, files):
            found |= tensors
    return found


def _safetensors(name: str, read: Read) -> dict[str, TensorFact]:
    """Format: https://github.com/huggingface/safetensors: a length of 8 bytes, then JSON."""
    length = int.from_bytes(read(0, 8), "little")
    if not 2 <= length <= LONGEST_HEADER:
        raise ModelUnavailable(f"{name} cannot be read: it has no safetensors header.")

    try:
        entries = msgspec.json.decode(read(8, 8 + length), type=dict[str, msgspec.Raw])
        entries.pop("__metadata__", None)
        decoder = msgspec.json.Decoder(Entry)
        decoded: dict[str, Any] = {key: decoder.decode(raw) for key, raw in entries.items()}
    except BAD_JSON as error:
        raise ModelUnavailable(f"The header of {name} cannot be read: {error}.") from error
    if any(size < 0 for entry in decoded.values() for size in entry.shape):
        raise ModelUnavailable(f"The header of {name} cannot be read: a negative size.")
    return {key: TensorFact(entry.dtype, entry.shape) for key, entry in decoded.items()}


def _readme_license(folder: Path) -> str | None:
    """From the first lines of a README, which the hub calls a model card."""
    try:
        with (folder / "README.md").open(encoding="utf-8", errors="replace") as file:
            text = file.read(1 << 14)
    except OSError:
        return None
    front = re.match(r"---\r?\n(.*?)\r?\n---", text, re.DOTALL)
    line = re.search(r"^license: *[\"']?([\w.+-]+)", front[1], re.MULTILINE) if front else None
    return line[1] if line else None
