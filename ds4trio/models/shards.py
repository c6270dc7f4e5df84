"""Which files hold the weights of a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ds4trio.errors import ModelUnavailable
from ds4trio.models.damaged import BAD_JSON

__all__ = ["shard_names"]

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


LONGEST = 255
"""Characters of a file's name; file systems have no longer ones, and say so in their own way."""


class Index(msgspec.Struct):
    """The part of an index that is needed: which file has which tensor."""

    weight_map: dict[str, str]


def shard_names(folder: Path) -> list[str]:
    """The files that hold a folder's weights, whether or not they are all there.

    Raises:
        ModelUnavailable: the folder has neither ``model.safetensors`` nor a readable index.
    """
    if (folder / SINGLE).is_file():
        return [SINGLE]
    if not (folder / INDEX).is_file():
        raise ModelUnavailable(f"{folder} has neither {SINGLE} nor {INDEX}{_instead(folder)}.")
    try:
        index = msgspec.json.decode((folder / INDEX).read_bytes(), type=Index)
    except (OSError, *BAD_JSON) as error:
        raise ModelUnavailable(f"{folder / INDEX} cannot be read: {error}.") from error
    names = sorted(set(index.weight_map.values()))
    if outside := [name for name in names if Path(name).name != name or len(name) > LONGEST]:
        raise ModelUnavailable(f"{folder / INDEX} names a file outside its folder: {outside[0]}.")
    return names


def _instead(folder: Path) -> str:
    """What else may be there, and is not read."""
    other = sorted(path.name for path in folder.glob("pytorch_model*.bin"))
    return f"; its {other[0]} is not read, as such a file can run code" if other else ""
