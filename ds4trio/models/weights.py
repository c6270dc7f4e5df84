"""What every source of weights offers: tensors by name, read when they are asked for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["Weights", "place_of"]


class Weights(Mapping[str, "torch.Tensor"]):
    """Tensors by a file's names (``sources.RawWeights``). Each access reads and decodes one, and
    keeps nothing of it."""

    @property
    @abstractmethod
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of every tensor, known without reading it."""

    def part(self, name: str, index: int) -> torch.Tensor:
        """One slice of a tensor along its first dimension, such as one expert of a stack.

        Equal to ``self[name][index]``. Where the file allows it nothing else is read and decoded;
        sources that cannot do that do what these words say.

        Raises:
            KeyError: no tensor of that name.
            IndexError: no such place; places are counted from 0 only.
        """
        place_of(self.shapes[name], index)
        return self[name][index]


def place_of(shape: tuple[int, ...], index: int) -> int:
    """``index`` if the first dimension has it, else an IndexError."""
    if not shape or not 0 <= index < shape[0]:
        raise IndexError(f"a tensor of shape {list(shape)} has no part {index}")
    return index
