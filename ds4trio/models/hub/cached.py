"""Hub models as the hub library keeps them on this machine. Nobody is asked here."""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ds4trio.errors import ModelUnavailable
from ds4trio.models.hub.choice import TOKENIZERS, Choice, RepoFile, choose
from ds4trio.models.hub.names import HubName
from ds4trio.models.shards import shard_names

__all__ = ["COMMIT", "MAIN", "HubModel", "cached", "remember", "repo_folder", "whole"]

MAIN = "main"
"""The branch that is meant when no revision is named."""

COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class HubModel:
    """A hub model on this machine.

    Attributes:
        kind: ``gguf`` or ``folder``.
        path: the GGUF file (the first part of several), or the folder.
        commit: which revision it is.
    """

    kind: Literal["gguf", "folder"]
    path: Path
    commit: str


def cached(name: HubName) -> HubModel | None:
    """The model as the hub library's cache has it, if it has all of it. Asks nobody."""
    folder = repo_folder(name.repo)
    commit = _known_commit(folder, name.revision or MAIN)
    if commit is None:
        return None
    snapshot = folder / "snapshots" / commit
    files = _local_files(snapshot)
    try:
        chosen = choose(name, files)
    except ModelUnavailable:
        return None
    if not whole(chosen, snapshot):
        return None
    return HubModel(chosen.kind, snapshot / chosen.path, commit)


def whole(chosen: Choice, snapshot: Path) -> bool:
    """Whether a snapshot has all that loading a model chosen from it needs."""
    if chosen.kind == "gguf":
        return True  # broken links are no files, and missing parts no choice
    try:
        shards = shard_names(snapshot)
    except ModelUnavailable:
        return False
    # Other programs may have fetched a model without its tokenizer. Of a fetch of ours, the small
    # files come first: when the weights are there, so are they.
    tokenizer = any((snapshot / name).is_file() for name in TOKENIZERS)
    return tokenizer and all((snapshot / name).is_file() for name in ["config.json", *shards])


def repo_folder(repo: str) -> Path:
    """Where the hub library keeps a repository; it need not be there."""
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE).expanduser()
    return cache / ("models--" + repo.replace("/", "--"))


def _local_files(snapshot: Path) -> list[RepoFile]:
    """The files of a snapshot that are there."""
    paths = sorted(path for path in snapshot.rglob("*") if path.is_file())
    return [RepoFile(path.relative_to(snapshot).as_posix(), path.stat().st_size) for path in paths]


def _known_commit(folder: Path, revision: str) -> str | None:
    if COMMIT.fullmatch(revision):
        return revision
    try:
        commit = (folder / "refs" / revision).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return commit if COMMIT.fullmatch(commit) else None


def remember(folder: Path, revision: str, commit: str) -> None:
    """Say which commit a branch or tag is here, once all of it is."""
    if COMMIT.fullmatch(revision):
        return
    ref = folder / "refs" / revision
    ref.parent.mkdir(parents=True, exist_ok=True)
    descriptor, part = tempfile.mkstemp(
        prefix=".ref-", dir=folder
    )  # not among the refs, which are read
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(commit)
        Path(part).replace(ref)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
