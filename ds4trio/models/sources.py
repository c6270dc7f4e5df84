"""Where the tensors of a decoder lie in a file that names and cuts them in its own way."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec

from ds4trio.errors import ModelUnavailable

if TYPE_CHECKING:
    import torch

__all__ = ["RawWeights", "Source", "SourcedWeights"]


class RawWeights(Protocol):
    """Tensors as a file has them, each read when it is asked for."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Of all tensors, by the file's names, outermost dimension first."""
        ...

    def __getitem__(self, name: str) -> torch.Tensor: ...

    def part(self, name: str, index: int) -> torch.Tensor:
        """``self[name][index]``, without reading the rest."""
        ...


class Source(msgspec.Struct, frozen=True):
    """Where one tensor is, and what is done with it, in the order of the attributes.

    Attributes:
        name: of the file's tensor.
        index: which part of its first dimension, such as one expert of many; None for all.
        transposed: its two dimensions are exchanged.
        start, stop, step: which rows of what is left, as in a slice; ``stop`` 0 is the end.
        heads: rows of so many heads lie pair by pair, for rotations of neighbours, and are brought
            into the order that rotates halves; 0: they do already.
        flat: all dimensions are made one, for what has a dimension of one in some files only.
    """

    name: str
    index: int | None = None
    transposed: bool = False
    start: int = 0
    stop: int = 0
    step: int = 1
    heads: int = 0
    flat: bool = False

    def shape(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
        """Of the tensor that comes of it.

        Raises:
            KeyError: the file has no such tensor.
            ModelUnavailable: it has too few dimensions or rows.
        """
        shape = shapes[self.name]
        if self.index is not None:
            if not shape or self.index >= shape[0]:
                raise ModelUnavailable(
                    f"This model cannot be used: tensor {self.name!r} of shape {list(shape)} has "
                    f"no part {self.index}."
                )
            shape = shape[1:]
        if self.transposed:
            shape = shape[::-1]
        if shape:
            shape = (len(range(*self._rows.indices(shape[0]))), *shape[1:])
        return (math.prod(shape),) if self.flat else shape

    @property
    def _rows(self) -> slice:
        return slice(self.start, self.stop or None, self.step)

    def read(self, weights: RawWeights) -> torch.Tensor:
        """The tensor itself."""
        tensor = weights[self.name] if self.index is None else weights.part(self.name, self.index)
        if self.transposed:
            tensor = tensor.T
        return self.rows_of(tensor)

    def rows_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The rows that are taken of a tensor, in their order here."""
        if (self.start, self.stop, self.step) != (0, 0, 1):
            tensor = tensor[self._rows]
        if self.heads:
            pairs = tensor.reshape(self.heads, -1, 2, *tensor.shape[1:])
            tensor = pairs.transpose(1, 2).reshape(tensor.shape)
        return tensor.reshape(-1) if self.flat else tensor


class SourcedWeights(Mapping[str, "torch.Tensor"]):
    """The tensors of a decoder by its own names, each read when it is asked for."""

    def __init__(self, raw: RawWeights, sources: Mapping[str, Source]) -> None:
        self._raw = raw
        self._sources = sources

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._sources[name].read(self._raw)

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)
