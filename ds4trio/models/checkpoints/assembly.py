"""Tensors that are made of others: what all ways of quantising share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from ds4trio.errors import ModelUnavailable
from ds4trio.models.safetensors import FLOATS, WHOLE, SafetensorsWeights
from ds4trio.models.weights import Weights, place_of

if TYPE_CHECKING:
    import torch

__all__ = ["Assembly", "DecodedWeights", "integer", "refuse_format"]


@dataclass(frozen=True, slots=True)
class Made:
    """How a tensor is made.

    Attributes:
        shape: of the result.
        whole: makes it.
        one: makes one slice along the first dimension; None where that is a slice of the whole.
    """

    shape: tuple[int, ...]
    whole: Callable[[], torch.Tensor]
    one: Callable[[int], torch.Tensor] | None


class Assembly:
    """A scheme's view of a folder: it takes raw tensors, and says what is made of them.

    Attributes:
        raw: every tensor of the folder, as it is stored.
        made: the tensors that are made, by plain name.
        taken: names of raw tensors that are parts of those, and not weights by themselves.
    """

    def __init__(self, raw: SafetensorsWeights) -> None:
        self.raw = raw
        self.shapes = raw.shapes
        self.made: dict[str, Made] = {}
        self.taken: set[str] = set()

    def ending(self, suffix: str) -> list[str]:
        """What stands before the suffix in the names that end with it."""
        return [name[: -len(suffix)] for name in self.shapes if name.endswith(suffix)]

    def take(self, name: str, kinds: Iterable[str], *shape: int | None) -> tuple[int, ...]:
        """Take a raw tensor that must be there.

        Args:
            name: of the tensor.
            kinds: its type must be one of these.
            shape: what its shape must be, None for any size; nothing at all for any shape.

        Returns:
            Its shape.

        Raises:
            ModelUnavailable: it is not there, or another.
        """
        if name not in self.shapes:
            raise ModelUnavailable(f"This model cannot be used: it has no tensor {name!r}.")
        self.raw.require(name, kinds)
        found = self.shapes[name]
        fits = len(found) == len(shape) and all(
            want in (None, size) for want, size in zip(shape, found, strict=True)
        )
        if shape and not fits:
            wanted = ", ".join("any" if size is None else str(size) for size in shape)
            self.refuse(name, f"its shape is {list(found)} and not [{wanted}]")
        self.taken.add(name)
        return found

    def drop(self, *names: str) -> None:
        """Take tensors, where they are there, that nothing is made of."""
        self.taken.update(name for name in names if name in self.shapes)

    def make(
        self,
        name: str,
        shape: tuple[int, ...],
        whole: Callable[[], torch.Tensor],
        one: Callable[[int], torch.Tensor] | None = None,
    ) -> None:
        """Say how the tensor of a plain name is made."""
        self.made[name] = Made(shape, whole, one)

    @staticmethod
    def refuse(name: str, why: str) -> NoReturn:
        """Raise ModelUnavailable for a tensor."""
        raise ModelUnavailable(f"This model cannot be used: tensor {name!r}: {why}.")


class DecodedWeights(Weights):
    """The tensors of a quantised folder by plain name, each made when it is asked for.

    Those that are made are float32; the others are as the files have them.
    """

    def __init__(self, assembly: Assembly) -> None:
        self._raw = assembly.raw
        # What is as the files have it has None.
        self._made: dict[str, Made | None] = dict(assembly.made)
        for name in assembly.shapes:
            if name not in assembly.taken:
                self._made.setdefault(name, None)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        raw = self._raw.shapes
        return {
            name: raw[name] if made is None else made.shape for name, made in self._made.items()
        }

    def keep(self, names: Iterable[str]) -> None:
        """Forget every tensor but these.

        Raises:
            ModelUnavailable: one of them is not floating point, and not quantised in this way.
        """
        self._made = {name: self._made[name] for name in names}
        for name, made in self._made.items():
            if made is None:
                self._raw.require(name, (*FLOATS, *WHOLE))

    def __getitem__(self, name: str) -> torch.Tensor:
        made = self._made[name]
        return self._raw[name] if made is None else made.whole()

    def part(self, name: str, index: int) -> torch.Tensor:
        made = self._made[name]
        if made is None:
            return self._raw.part(name, index)
        place_of(made.shape, index)
        return made.whole()[index] if made.one is None else made.one(index)

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)


def integer(settings: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """A whole number of a quantisation's settings; a missing key and null are the same.

    Raises:
        ModelUnavailable: it is missing without a default, or something else.
    """
    value = settings.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool):
        refuse_format(f"{key} is {value!r} in quantization_config, and not a whole number")
    return value


def refuse_format(why: str) -> NoReturn:
    """Raise ModelUnavailable for the way in which a model is quantised."""
    raise ModelUnavailable(f"The weights of this model cannot be read: {why}.")
