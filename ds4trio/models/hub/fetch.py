"""Models from the Hugging Face hub, through its own library, cache and environment variables."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ds4trio.errors import ModelUnavailable
from ds4trio.models.hub.cached import COMMIT, MAIN, HubModel, cached, remember, repo_folder
from ds4trio.models.hub.choice import Choice, RepoFile, choose
from ds4trio.models.hub.download import Interrupted, Remote, patiently, require_disk_space
from ds4trio.models.hub.errors import clear_errors
from ds4trio.models.hub.names import HubName
from ds4trio.models.progress import Progress, silent

__all__ = ["Listing", "describe", "fetch", "find", "listing"]

SMALL = 8 << 20
"""Bytes up to which a file is left to the hub library, which begins it anew when interrupted."""
AT_ONCE = 4
"""Files that are fetched at the same time."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What the hub has under a name.

    Attributes:
        commit: of the revision asked for.
        files: all of that revision.
        license: as the repository's metadata says; None where it says nothing.
    """

    commit: str
    files: tuple[RepoFile, ...]
    license: str | None


def find(
    name: HubName,
    *,
    progress: Progress | None = None,
    offline: bool = False,
    refresh: bool = False,
    check: Callable[[Path], None] | None = None,
) -> HubModel:
    """The files of a hub model, fetched if they are not all in the hub library's cache.

    Args:
        name: of the model. Without a pattern, a GGUF model that is here is preferred to one that
            the hub would be asked for.
        progress: told of what is fetched.
        offline: do not fetch.
        refresh: ask for a newer revision even if one is here.
        check: as in ``fetch``.

    Raises:
        ModelUnavailable: not there, not permitted, not reachable, or of no known format.
    """
    if not refresh and (here := cached(name)) is not None:
        return here
    if offline:
        raise ModelUnavailable(
            f"{name} is not in the hub cache and the server is offline; run 'ds4trio pull {name}' "
            "where there is a network, or give --model a path."
        )
    return fetch(name, progress=progress, check=check)


def listing(name: HubName) -> Listing:
    """Ask the hub what it has. Raises as the hub library does; see ``clear_errors``."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import OfflineModeIsEnabled

    if constants.HF_HUB_OFFLINE:
        raise OfflineModeIsEnabled("HF_HUB_OFFLINE is set")
    api = HfApi(library_name="ds4trio")
    info = patiently(
        lambda: api.model_info(
            name.repo,
            revision=name.revision or MAIN,
            files_metadata=True,
            timeout=constants.HF_HUB_ETAG_TIMEOUT,
        )
    )
    if info.sha is None or not COMMIT.fullmatch(info.sha):
        raise ModelUnavailable(f"The hub does not say which commit {name} is.")
    files = tuple(map(_repo_file, info.siblings or ()))
    card: Any = info.card_data
    said = card.get("license") if card is not None else None
    tagged = [tag.partition(":")[2] for tag in info.tags or () if tag.startswith("license:")]
    license = said if isinstance(said, str) else next(iter(tagged), None)
    return Listing(info.sha, tuple(file for file in files if _harmless(file.path)), license)


def _repo_file(sibling: Any) -> RepoFile:
    sha256 = sibling.lfs.get("sha256") if sibling.lfs else None
    return RepoFile(sibling.rfilename, sibling.size or 0, sha256)


def _harmless(path: str) -> bool:
    """Whether a path from the hub stays within its folder, on every system."""
    parts = path.split("/")
    plain = path.isprintable() and not re.search(r"[\\:]", path)
    return plain and not any(part in ("", ".", "..") for part in parts)


def fetch(
    name: HubName,
    *,
    progress: Progress | None = None,
    check: Callable[[Path], None] | None = None,
) -> HubModel:
    """Bring the newest state of a hub model into the hub library's cache. Blocks.

    Interrupted at any point, what has come is used by the next call, and what was here before is
    still what a start without network finds.

    Args:
        name: of the model.
        progress: told of each large file.
        check: given the folder when it has all but the weights; what it raises ends the fetch.

    Raises:
        ModelUnavailable: as ``find``; or the disk has too little room.
    """
    with clear_errors(name):
        there = listing(name)
        chosen = choose(name, there.files)
        folder, stop = repo_folder(name.repo), threading.Event()
        remote = Remote(name.repo, there.commit, folder, stop)
        lacking = sum(file.size - remote.present(file) for file in chosen.files)
        require_disk_space(folder.parent, lacking, str(name))
        snapshot = folder / "snapshots" / there.commit
        tell = _in_turn(progress or silent)
        _all_at_once(remote, chosen.describing, tell, stop)
        if check is not None and chosen.kind == "folder":
            check(snapshot)
        _all_at_once(remote, chosen.weights, tell, stop)
        remember(folder, name.revision or MAIN, there.commit)
    return HubModel(chosen.kind, snapshot / chosen.path, there.commit)


def describe(name: HubName, progress: Progress | None = None) -> tuple[Listing, Choice, Path]:
    """Bring what describes a model, without its weights, into the hub library's cache. Blocks.

    Returns:
        What the hub has, which of it the model is, and the folder with the describing files.

    Raises:
        ModelUnavailable: as ``find``.
    """
    with clear_errors(name):
        there = listing(name)
        chosen = choose(name, there.files)
        folder, stop = repo_folder(name.repo), threading.Event()
        remote = Remote(name.repo, there.commit, folder, stop)
        _all_at_once(remote, chosen.describing, _in_turn(progress or silent), stop)
    return there, chosen, folder / "snapshots" / there.commit


def _in_turn(progress: Progress) -> Progress:
    lock = threading.Lock()

    def tell(what: str, done: int, total: int | None) -> None:
        with lock:
            progress(what, done, total)

    return tell


def _all_at_once(
    remote: Remote, files: Sequence[RepoFile], progress: Progress, stop: threading.Event
) -> None:
    waiting: list[Future[None]] = []
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="hub") as pool:
        try:
            waiting += [pool.submit(_into_snapshot, remote, file, progress) for file in files]
            for done in as_completed(waiting):
                done.result()
        except BaseException as raised:
            stop.set()
            pool.shutdown(cancel_futures=True)
            if isinstance(raised, Interrupted):  # by another one's failure, which says more
                for future in waiting:
                    error = None if future.cancelled() else future.exception()
                    if error is not None and not isinstance(error, Interrupted):
                        raise error from None
            raise


def _into_snapshot(remote: Remote, file: RepoFile, progress: Progress) -> None:
    from huggingface_hub import constants, hf_hub_download

    if (remote.folder / "snapshots" / remote.commit / file.path).is_file():
        return
    if SMALL < file.size <= constants.MAX_HTTP_DOWNLOAD_SIZE:
        remote.fetch(file, progress)
    hf_hub_download(
        remote.repo,
        file.path,
        revision=remote.commit,
        library_name="ds4trio",
        tqdm_class=_bar(f"fetching {Path(file.path).name}", progress),
    )


def _bar(what: str, progress: Progress) -> type[Any]:
    """A progress bar for the hub library that draws nothing and tells ours, of large files."""
    from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

    class Bar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            options["disable"] = True
            self.came, self.all = options.get("initial") or 0, options.get("total")
            super().__init__(*args, **options)  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            self.came += int(n or 0)
            if self.all is not None and self.all > SMALL:
                progress(what, min(self.came, self.all), self.all)

        def update_transfer(self, n: float | None = 1) -> None:
            """What came over the network, of which less may be needed than there is."""

        def set_transfer_postfix_str(self, postfix: str, refresh: bool = False) -> None:
            """How fast it comes."""

    return Bar
