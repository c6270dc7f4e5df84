"""What is on this machine: models in the hub library's cache, and in ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ds4trio.errors import ModelUnavailable
from ds4trio.models.cache import conversions_of, size_on_disk
from ds4trio.models.config import config_from_hf
from ds4trio.models.damaged import BAD_JSON
from ds4trio.models.default import ALIASES, cached
from ds4trio.models.hub.cached import whole
from ds4trio.models.hub.choice import RepoFile, choose, gguf_models, written
from ds4trio.models.hub.names import HubName

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo, CachedRevisionInfo, HFCacheInfo

__all__ = ["KeptModel", "kept_models", "paths_in", "scan"]

PARTIAL = "*.ds4trio.incomplete"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptModel:
    """A model that was fetched.

    Attributes:
        name: as one writes it after ``--model``.
        format: ``GGUF`` or ``safetensors``.
        numbers: of its weights: ``Q4_K_M``, ``bfloat16``; empty where neither name nor config says.
        size: bytes on disk, with what was made of it.
        last_used: seconds since 1970, as far as the file system keeps note.
        complete: False for what an interrupted fetch left.
        path: of its file or folder.
    """

    name: str
    format: str
    numbers: str
    size: int
    last_used: float
    complete: bool
    path: Path


def kept_models() -> list[KeptModel]:
    """All fetched models that could be served, and unfinished ones; by name."""
    found = [*_aliases()]
    if (cache := scan()) is not None:
        for repo in cache.repos:
            if repo.repo_type == "model":
                found += _in_repo(repo)
    return sorted(found, key=lambda model: model.name)


def _aliases() -> Iterator[KeptModel]:
    for name, wheel in ALIASES.items():
        if (path := cached(wheel)) is not None:
            (model,) = gguf_models([RepoFile(path.name, wheel.size)])
            yield KeptModel(
                name=name,
                format="GGUF",
                numbers=model.label,
                size=wheel.size + sum(map(size_on_disk, conversions_of(path))),
                last_used=path.stat().st_atime,
                complete=True,
                path=path,
            )


def scan() -> HFCacheInfo | None:
    """What the hub library says of its cache; None where it has none."""
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        return scan_cache_dir(constants.HF_HUB_CACHE)
    except (CacheNotFound, OSError, ValueError):
        return None


def paths_in(revision: CachedRevisionInfo) -> dict[str, Any]:
    """The files of a revision by their path in the repository."""
    top = revision.snapshot_path
    return {file.file_path.relative_to(top).as_posix(): file for file in revision.files}


def _in_repo(repo: CachedRepoInfo) -> Iterator[KeptModel]:
    found = [model for revision in repo.revisions for model in _in_revision(repo, revision)]
    yield from found
    partial = sum(map(size_on_disk, (repo.repo_path / "blobs").glob(PARTIAL)))
    if partial:
        yield KeptModel(
            name=repo.repo_id,
            format="",
            numbers="",
            size=partial + (repo.size_on_disk if not found else 0),
            last_used=repo.last_modified,
            complete=False,
            path=repo.repo_path,
        )


def _in_revision(repo: CachedRepoInfo, revision: CachedRevisionInfo) -> Iterator[KeptModel]:
    known = paths_in(revision)
    files = [RepoFile(path, file.size_on_disk) for path, file in sorted(known.items())]
    refs = sorted(revision.refs)
    written_as = None if "main" in refs else next(iter(refs), revision.commit_hash)
    name = HubName(repo.repo_id, written_as)
    models = [model for model in gguf_models(files) if model.complete]

    def kept(
        text: str, kind: str, numbers: str, needed: tuple[RepoFile, ...], at: str
    ) -> KeptModel:
        made = conversions_of(revision.snapshot_path / at)
        return KeptModel(
            name=text,
            format=kind,
            numbers=numbers,
            size=sum(file.size for file in needed) + sum(map(size_on_disk, made)),
            last_used=max(known[file.path].blob_last_accessed for file in needed),
            complete=True,
            path=revision.snapshot_path / at,
        )

    for model in models:
        text = written(name, model, models)
        yield kept(text, "GGUF", model.label, model.files, model.path)
    try:
        chosen = choose(name, files)
        if chosen.kind == "folder" and whole(chosen, revision.snapshot_path):
            numbers = _numbers(revision.snapshot_path)
            yield kept(str(name), "safetensors", numbers, chosen.files, "")
    except ModelUnavailable:
        pass  # of another kind than can be served


def _numbers(folder: Path) -> str:
    """Of a folder's weights. Raises ModelUnavailable where it could not be served."""
    try:
        config = msgspec.json.decode((folder / "config.json").read_bytes(), type=dict[str, Any])
    except (OSError, *BAD_JSON) as error:
        raise ModelUnavailable(f"{folder / 'config.json'} cannot be read: {error}.") from error
    config_from_hf(config, None)
    inner = config.get("text_config")
    inner = inner if isinstance(inner, dict) else {}
    quantised = config.get("quantization_config") or inner.get("quantization_config")
    if isinstance(quantised, dict) and isinstance(method := quantised.get("quant_method"), str):
        return method
    told = [place.get(key) for place in (config, inner) for key in ("dtype", "torch_dtype")]
    return next((value for value in told if isinstance(value, str)), "")
