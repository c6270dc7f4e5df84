"""Weights in safetensors files: one, or many with an index.

Format: https://github.com/huggingface/safetensors. That library checks each header; tensors are
then mapped into memory here, one by one. It would map whole files, and in a way that Linux refuses
for files larger than its memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from ds4trio.errors import ModelUnavailable
from ds4trio.models.damaged import BAD_JSON
from ds4trio.models.mistaken import what_file_is
from ds4trio.models.shards import shard_names
from ds4trio.models.weights import Weights, place_of

if TYPE_CHECKING:
    import torch

__all__ = ["FLOATS", "WHOLE", "SafetensorsWeights", "read_tensors"]

FLOATS = ("F64", "F32", "F16", "BF16")
"""The types of weights that are not quantised."""

WHOLE = ("I32", "I64")
"""The types of numbers that stand for something, such as experts by token."""

TORCH_NAMES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "I8": "int8",
    "U8": "uint8",
    "I32": "int32",
    "I64": "int64",
}
"""The types that can be read, as torch calls them."""

NUMPY_NAMES = {"I8": "i1", "U8": "u1", "I32": "<i4", "I64": "<i8"}


class Place(msgspec.Struct, frozen=True):
    """Where a tensor lies; ``offset`` and ``size`` are in bytes from the beginning of the file."""

    path: Path
    kind: str
    shape: tuple[int, ...]
    offset: int
    size: int


class SafetensorsWeights(Weights):
    """The tensors of a folder by name, in the files' own dtypes, each mapped when asked for.

    A tensor is the file's memory, read page by page when it is used; what is written to it stays
    with it.

    Raises:
        ModelUnavailable: on opening, a file is missing or damaged; on reading, the tensor is of a
            type that is not known, or the file is not what it was.
    """

    def __init__(self, folder: Path) -> None:
        self._places: dict[str, Place] = {}
        for shard in shard_names(folder):
            path = folder / shard
            if not path.is_file():
                raise ModelUnavailable(f"{path} is missing; was the model fetched completely?")
            self._places |= _places(path)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: place.shape for name, place in self._places.items()}

    def kind(self, name: str) -> str:
        """The type of a tensor, as the format calls it, such as ``BF16``."""
        return self._places[name].kind

    def keep(self, names: Iterable[str]) -> None:
        """Forget every tensor but these.

        Raises:
            ModelUnavailable: one of them is not floating point, such as a quantised weight.
        """
        self._places = {name: self._places[name] for name in names}
        for name in self._places:
            self.require(name, (*FLOATS, *WHOLE))

    def require(self, name: str, kinds: Iterable[str]) -> None:
        """Raise ModelUnavailable where a tensor's type is not one of these."""
        place = self._places[name]
        if place.kind not in kinds:
            _refuse_kind(name, place, kinds)

    def __getitem__(self, name: str) -> torch.Tensor:
        place = self._places[name]
        return _tensor(name, place, place.shape, place.offset, place.size)

    def part(self, name: str, index: int) -> torch.Tensor:
        place = self._places[name]
        size = place.size // max(place.shape[0], 1) if place.shape else 0
        begin = place.offset + place_of(place.shape, index) * size
        return _tensor(name, place, place.shape[1:], begin, size)

    def integers(self, name: str) -> NDArray[Any]:
        """A tensor of whole numbers for numpy, read-only, mapped as well.

        Raises:
            ModelUnavailable: it is of another type.
        """
        place = self._places[name]
        self.require(name, NUMPY_NAMES)
        if not place.size:
            return np.empty(place.shape, NUMPY_NAMES[place.kind])
        raw = _mapped(place.path, place.offset, place.size, mode="r")
        return raw.view(NUMPY_NAMES[place.kind]).reshape(place.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _places(path: Path) -> dict[str, Place]:
    try:
        # As numpy's: who only looks at names and shapes need not have torch.
        safe_open(path, framework="np")
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = msgspec.json.decode(file.read(length), type=dict[str, Any])
    except (OSError, SafetensorError, *BAD_JSON) as error:
        raise ModelUnavailable(f"{path} cannot be read: {_why(path, error)}") from error
    header.pop("__metadata__", None)
    places: dict[str, Place] = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        shape = tuple(entry["shape"])
        places[name] = Place(path, entry["dtype"], shape, 8 + length + begin, end - begin)
    return places


def _tensor(
    name: str, place: Place, shape: tuple[int, ...], offset: int, size: int
) -> torch.Tensor:
    import torch

    if place.kind not in TORCH_NAMES:
        _refuse_kind(name, place, TORCH_NAMES)
    dtype: torch.dtype = getattr(torch, TORCH_NAMES[place.kind])
    if not size:
        return torch.empty(shape, dtype=dtype)
    # Copied on writing: torch has no tensors that cannot be written to.
    raw = _mapped(place.path, offset, size, mode="c")
    if raw.ctypes.data % dtype.itemsize:
        raw = raw.copy()
    return torch.from_numpy(raw).view(dtype).view(shape)


def _mapped(path: Path, offset: int, size: int, mode: Any) -> NDArray[np.uint8]:
    try:
        return np.asarray(np.memmap(path, np.uint8, mode, offset, size))
    except (OSError, ValueError) as error:
        raise ModelUnavailable(f"{path} cannot be read: {error}.") from error


def _refuse_kind(name: str, place: Place, kinds: Iterable[str]) -> NoReturn:
    raise ModelUnavailable(
        f"{place.path} cannot be used: tensor {name!r} has type {place.kind}; "
        f"known: {', '.join(kinds)}."
    )


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of a small file at once. Raises ModelUnavailable if it cannot be read."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ModelUnavailable(f"{path} cannot be read: {_why(path, error)}") from error


def _why(path: Path, error: Exception) -> str:
    """In words for who has the file, as far as it shows them."""
    if (what := what_file_is(path, "safetensors")) is not None:
        return what
    if isinstance(error, SafetensorError):
        return f"{str(error).rstrip('.')}; was it fetched completely?"
    return f"{error}."
