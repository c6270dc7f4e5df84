"""Taking a fetched model away again, and nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ds4trio.errors import ModelUnavailable
from ds4trio.models.cache import cache_folder, conversions_of, size_on_disk
from ds4trio.models.default import ALIASES
from ds4trio.models.hub.cached import repo_folder
from ds4trio.models.hub.choice import RepoFile, gguf_models, pick
from ds4trio.models.hub.names import HubName
from ds4trio.models.inventory import paths_in, scan
from ds4trio.models.resolve import read_name

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo, CachedRevisionInfo, DeleteCacheStrategy, HFCacheInfo

__all__ = ["Removal", "plan_removal"]


@dataclass(frozen=True, slots=True)
class Removal:
    """What would be removed.

    Attributes:
        name: as the user wrote it.
        size: bytes that this frees.
        parts: what it is, one line each.
    """

    name: str
    size: int
    parts: tuple[str, ...]
    _ours: tuple[Path, ...] = ()
    _strategies: tuple[DeleteCacheStrategy, ...] = ()

    def execute(self) -> None:
        """Remove it.

        Raises:
            ModelUnavailable: something of it could not be removed; the rest is.
        """
        gone: list[Path] = []
        for strategy in self._strategies:
            strategy.execute()
            gone += [*strategy.repos, *strategy.snapshots, *strategy.blobs, *strategy.files]
        for path in self._ours:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        left = [path for path in [*gone, *self._ours] if path.exists() or path.is_symlink()]
        if left:
            raise ModelUnavailable(f"{left[0]} could not be removed; may you write there?")


def plan_removal(model: str) -> Removal:
    """Find what is to be removed for a model.

    Args:
        model: an alias or a name on the hub. Without a revision it means all revisions that are
            here, without a pattern all files.

    Raises:
        ModelUnavailable: it is not here, or a path: what was not fetched is the user's own.
    """
    named = read_name(model)
    if isinstance(named, Path):
        raise ModelUnavailable(
            f"{model} is a path of yours; only what ds4trio fetched is removed. Delete it yourself."
        )
    if isinstance(named, str):
        path = ALIASES[named].path
        if not path.is_file():
            raise ModelUnavailable(f"{named} is not on this machine.")
        ours = [path, *conversions_of(path)]
        _require_inside(ours, cache_folder())
        return Removal(model, sum(map(size_on_disk, ours)), (f"{path}",), tuple(ours))
    return _plan_hub(model, named)


def _plan_hub(model: str, name: HubName) -> Removal:
    folder = repo_folder(name.repo)
    missing = ModelUnavailable(f"{name} is not in the hub cache ({folder.parent}).")
    cache = scan()
    if cache is None or not (folder.exists() or folder.is_symlink()):
        raise missing
    repo = next((repo for repo in cache.repos if repo.repo_path.name == folder.name), None)
    if repo is None or not repo.revisions:
        # Not as the library leaves it, such as after a fetch that ended before its first file.
        if name.revision is not None or name.pattern is not None:
            raise missing
        _require_inside([folder], folder.parent)
        return Removal(model, size_on_disk(folder), (f"{folder}, which is damaged",), (folder,))
    revisions = [
        revision
        for revision in repo.revisions
        if name.revision is None or name.revision in (revision.commit_hash, *revision.refs)
    ]
    if not revisions:
        raise missing
    return _plan_revisions(model, name, cache, repo, revisions)


def _plan_revisions(
    model: str,
    name: HubName,
    cache: HFCacheInfo,
    repo: CachedRepoInfo,
    revisions: Sequence[CachedRevisionInfo],
) -> Removal:
    entire: list[CachedRevisionInfo] = []
    single, parts, said = [], [], None
    for revision in revisions:
        if name.pattern is None:
            entire.append(revision)
            continue
        known = paths_in(revision)
        models = gguf_models(RepoFile(path, file.size_on_disk) for path, file in known.items())
        try:
            chosen = pick(name, models) if models else None
        except ModelUnavailable as error:
            said, chosen = error, None
        if chosen is None:
            continue
        if len(models) == 1 and not any(path.endswith(".safetensors") for path in known):
            entire.append(revision)
        else:
            single += [known[file.path] for file in chosen.files]
            parts += [f"{name.repo}: {file.path}" for file in chosen.files]
    if not entire and not single:
        raise said or ModelUnavailable(f"{name} is not in the hub cache.")
    strategies = []
    if entire:
        strategies.append(cache.delete_revisions(*(revision.commit_hash for revision in entire)))
        parts += [f"{name.repo}@{_shown(revision)}" for revision in entire]
    if single:
        strategies.append(cache.delete_files(*single))
    for strategy in strategies:
        _require_inside(
            [*strategy.blobs, *strategy.refs, *strategy.snapshots, *strategy.files], repo.repo_path
        )
        _require_inside(strategy.repos, repo.repo_path.parent)
    going = [*single, *(file for revision in entire for file in revision.files)]
    ours = sorted({made for file in going for made in conversions_of(file.file_path)})
    ours += sorted(made for rev in entire for made in conversions_of(rev.snapshot_path))
    size = sum(strategy.expected_freed_size for strategy in strategies)
    partial = [path for strategy in strategies for path in strategy.repos]
    size += sum(size_on_disk(file) for path in partial for file in path.glob("blobs/*.incomplete"))
    size += sum(map(size_on_disk, ours))
    _require_inside(ours, cache_folder())
    return Removal(model, size, tuple(sorted(parts)), tuple(ours), tuple(strategies))


def _shown(revision: CachedRevisionInfo) -> str:
    return ", ".join(sorted(revision.refs)) or revision.commit_hash


def _require_inside(paths: Iterable[Path], folder: Path) -> None:
    """Refuse when a path lies outside a folder, by links too. A link itself may be removed."""
    top = folder.resolve()
    for path in paths:
        if not path.parent.resolve().is_relative_to(top) or path.name in ("", ".", ".."):
            raise ModelUnavailable(
                f"{path} lies outside of {folder}, where a link leads to it; nothing was removed."
            )
