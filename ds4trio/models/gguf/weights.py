"""The tensors of a GGUF model as torch has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ds4trio.errors import ModelUnavailable
from ds4trio.models.gguf.dequantize import dequantize
from ds4trio.models.gguf.header import TensorInfo
from ds4trio.models.weights import Weights, place_of

if TYPE_CHECKING:
    import torch

__all__ = ["GgufWeights"]

Bytes = NDArray[np.uint8]


class GgufWeights(Weights):
    """The tensors of a GGUF model by its own names, float32, each decoded when asked for.

    Files are mapped into memory, so that what is not asked for is not read.

    Args:
        paths: the model's files.
        tensors: where each tensor lies.

    Raises:
        ModelUnavailable: a file cannot be read.
    """

    def __init__(self, paths: Sequence[Path], tensors: Mapping[str, TensorInfo]) -> None:
        self._tensors = tensors
        self._files = [_mapped(path) for path in paths]

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: info.shape for name, info in self._tensors.items()}

    def __getitem__(self, name: str) -> torch.Tensor:
        info = self._tensors[name]
        return _decoded(self._bytes(info), info.kind, info.shape)

    def part(self, name: str, index: int) -> torch.Tensor:
        info = self._tensors[name]
        place = place_of(info.shape, index)
        if len(info.shape) < 2:  # a block has several of these
            return self[name][place]
        # Blocks do not go beyond a row, so every slice is whole blocks.
        raw = self._bytes(info).reshape(info.shape[0], -1)[place]
        return _decoded(raw, info.kind, info.shape[1:])

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def _bytes(self, info: TensorInfo) -> Bytes:
        return self._files[info.part][info.offset : info.offset + info.size]


def _mapped(path: Path) -> Bytes:
    try:
        return np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        raise ModelUnavailable(f"{path} cannot be read: {error}.") from error


def _decoded(raw: Bytes, kind: str, shape: tuple[int, ...]) -> torch.Tensor:
    import torch  # a process that reads no weights need not have it

    return torch.from_numpy(dequantize(raw, kind)).view(shape)
