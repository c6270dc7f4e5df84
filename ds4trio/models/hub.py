"""Models from the Hugging Face hub, through its own library, cache and environment variables."""

from __future__ import annotations

from pathlib import Path

from ds4trio.errors import ModelUnavailable
from ds4trio.models.shards import shard_names

__all__ = ["snapshot"]

WANTED = ["*.safetensors", "*.json", "*.jinja"]
UNWANTED = ["*/*", "consolidated*"]
"""Folders hold other formats; consolidated files hold the same weights a second time."""


def snapshot(hub_id: str, *, offline: bool = False, refresh: bool = False) -> Path:
    """The folder of a hub model, fetched if it is not complete in the hub library's cache.

    Args:
        hub_id: ``org/name``.
        offline: do not fetch.
        refresh: ask for a newer revision even if one is here.

    Raises:
        ModelUnavailable: not there, not permitted, not reachable, or not in safetensors format.
    """
    # Imported here: it takes longer to import than a local model takes to open.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    def get(*, local: bool) -> Path:
        return Path(
            snapshot_download(
                hub_id, allow_patterns=WANTED, ignore_patterns=UNWANTED, local_files_only=local
            )
        )

    try:
        if not refresh:
            try:
                folder = get(local=True)
            except LocalEntryNotFoundError:
                if offline:
                    raise
            else:
                if offline or _complete(folder):
                    return _checked(folder, hub_id)
        return _checked(get(local=False), hub_id)
    except ModelUnavailable:
        raise
    except GatedRepoError as error:
        raise ModelUnavailable(
            f"{hub_id} asks for permission: accept its terms on the hub, then set HF_TOKEN."
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelUnavailable(
            f"The hub has no model {hub_id}, or it is private and HF_TOKEN is not set."
        ) from error
    except HFValidationError as error:
        raise ModelUnavailable(f"{hub_id!r} is not a hub id: {error}.") from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise ModelUnavailable(
            f"{hub_id} is not in the hub cache and the hub cannot be reached; run "
            f"'ds4trio pull {hub_id}' where there is a network, or give --model a path."
        ) from error
    except Exception as error:
        # Whatever else goes wrong on the way is raised as the hub library's HTTP library has it,
        # and that is not the same one in every release.
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ModelUnavailable(f"{hub_id} could not be fetched from the hub: {reason}.") from error


def _complete(folder: Path) -> bool:
    """Whether an earlier fetch got as far as every file that loading needs."""
    try:
        shards = shard_names(folder)
    except ModelUnavailable:
        return False
    needed = ["config.json", "tokenizer.json", *shards]
    return all((folder / name).is_file() for name in needed)


def _checked(folder: Path, hub_id: str) -> Path:
    if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
        raise ModelUnavailable(
            f"{hub_id} has no config.json with safetensors; for a GGUF model, fetch the .gguf file "
            "and give --model its path."
        )
    return folder
