"""Weights in safetensors files: one, or many with an index.

Format: https://github.com/huggingface/safetensors, read memory-mapped by that library.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from ds4trio.errors import ModelUnavailable
from ds4trio.models.shards import shard_names

if TYPE_CHECKING:
    import torch

__all__ = ["SafetensorsWeights", "read_tensors"]

DTYPES = ("F64", "F32", "F16", "BF16", "I64")


class SafetensorsWeights:
    """The tensors of a folder by name, in the files' own dtypes, each read when asked for.

    Raises:
        ModelUnavailable: on opening, a file is missing or damaged, or holds a tensor of a type that
            is not floating point (such as quantised weights).
    """

    def __init__(self, folder: Path) -> None:
        self._paths: dict[str, Path] = {}
        self._files: dict[Path, Any] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for shard in shard_names(folder):
            path = folder / shard
            if not path.is_file():
                raise ModelUnavailable(f"{path} is missing; was the model fetched completely?")
            try:
                # As numpy's: who only looks at names and shapes need not have torch.
                file: Any = safe_open(path, framework="np")
                names = list(file.keys())
            except (OSError, SafetensorError) as error:
                raise ModelUnavailable(f"{path} cannot be read: {error}.") from error
            for name in names:
                view = file.get_slice(name)
                if view.get_dtype() not in DTYPES:
                    raise ModelUnavailable(
                        f"{path} cannot be used: tensor {name!r} has type {view.get_dtype()}; "
                        f"known: {', '.join(DTYPES)}."
                    )
                self._paths[name] = path
                self.shapes[name] = tuple(view.get_shape())

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._file(name).get_tensor(name)
        return tensor

    def part(self, name: str, index: int) -> torch.Tensor:
        """``self[name][index]``, without reading the rest."""
        tensor: torch.Tensor = self._file(name).get_slice(name)[index]
        return tensor

    def _file(self, name: str) -> Any:
        path = self._paths[name]
        if path not in self._files:
            self._files[path] = safe_open(path, framework="pt", device="cpu")
        return self._files[path]


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of a small file at once. Raises ModelUnavailable if it cannot be read."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ModelUnavailable(f"{path} cannot be read: {error}.") from error
