"""Weights in the form that the kernels read, and a file that keeps those of a model.

Packing takes seconds, reading what came of it a tenth of one.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ds4trio.engine.native.grid import bytes_of, levels_of
from ds4trio.engine.native.groups import FORM, pack_groups
from ds4trio.engine.native.products import EIGHT_BITS, FLOATS, FOUR_BITS, WIDENED, pack
from ds4trio.engine.native.vector import PANEL
from ds4trio.errors import ModelUnavailable
from ds4trio.models.cache import publish_file

__all__ = ["Packed", "PackedFile", "pack_weight"]

log = logging.getLogger(__name__)

FORMAT = f"3, {FORM}"
"""Changed whenever the form changes, so that files of another form are not read."""

WEIGHT_LEVELS = 127
"""int8 weights run from -127 to 127: symmetric, so that no zero point enters the sums."""

_none = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight in panels.

    Attributes:
        outputs, inputs: of the product.
        kind: FLOATS, WIDENED, FOUR_BITS or EIGHT_BITS.
        weight: int8 [panels, bytes of a panel].
        scales: float32 [panels * PANEL], of the outputs, for WIDENED; else empty.
        bias: float32 [panels * PANEL], or empty.
    """

    outputs: int
    inputs: int
    kind: int
    weight: npt.NDArray[np.int8]
    scales: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32]

    @property
    def checksum(self) -> int:
        """CRC-32 of all numbers."""
        value = 0
        for numbers in (self.weight, self.scales, self.bias):
            value = zlib.crc32(numbers.data, value)
        return value


def pack_weight(
    weight: torch.Tensor, bias: torch.Tensor | None, *, rounded: bool, readable: bool = False
) -> Packed:
    """Bring a weight into panels: float32; or rounded, that is in four bits where that loses
    nothing, else in eight bits: with a scale for each group where the processor multiplies bytes,
    and else with one for each output.

    Args:
        weight: [out, in], any floating dtype.
        bias: [out] or None.
        rounded: whether it may be.
        readable: its rows will be read, which four bits do not allow.
    """
    outputs, inputs = weight.shape
    own_bias = _none if bias is None else _padded(bias)
    weight = weight.float()
    if rounded and FORM is not None:
        kind, parts = FOUR_BITS, None if readable else levels_of(weight)
        if parts is None and FORM.dots:
            kind, parts = EIGHT_BITS, bytes_of(weight)
        if parts is not None:
            numbers = (part.numpy() for part in parts)
            panels = pack_groups(*numbers, bits=4 if kind == FOUR_BITS else 8, form=FORM)
            return Packed(outputs, inputs, kind, panels, _none, own_bias)
    scales = _none
    if rounded:
        largest = weight.abs().amax(1).clamp_min_(torch.finfo(torch.float32).tiny)
        scales = _padded(largest / WEIGHT_LEVELS)
        weight = (weight / (largest / WEIGHT_LEVELS).unsqueeze(1)).round_().to(torch.int8)
    whole = pack(weight.numpy())
    kept = whole.reshape(len(whole), -1).view(np.int8)
    return Packed(outputs, inputs, WIDENED if rounded else FLOATS, kept, scales, own_bias)


def _padded(numbers: torch.Tensor) -> npt.NDArray[np.float32]:
    padded = np.zeros(-(-len(numbers) // PANEL) * PANEL, np.float32)
    padded[: len(numbers)] = numbers.float().numpy()
    return padded


class PackedFile:
    """The packed weights of one model in a file that is made if it is not there.

    A context: leaving it without an exception writes the file, if anything had to be packed.

    Args:
        path: of the file; None packs everything anew each time.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._made: dict[str, Packed] = {}
        self._file: Any = None

    def __enter__(self) -> PackedFile:
        if self._path is not None and self._path.is_file():
            try:
                self._file = safe_open(self._path, framework="np")
                if (self._file.metadata() or {}).get("format") != FORMAT:
                    self._file = None
            except (OSError, SafetensorError) as error:
                log.warning("%s is damaged and is made anew: %s", self._path, error)
                self._file = None
        return self

    def get(self, name: str, make: Callable[[], Packed]) -> Packed:
        """The weight of this name, from the file or made now."""
        found = None if self._file is None else self._read(name)
        if found is None:
            found = make()
        self._made[name] = found
        return found

    def _read(self, name: str) -> Packed | None:
        try:
            parts = [self._file.get_tensor(f"{name}.{p}") for p in ("weight", "scales", "bias")]
            *sizes, checksum = self._file.get_tensor(f"{name}.sizes").tolist()
        except SafetensorError:
            self._file = None  # of another model, or not whole
            return None
        packed = Packed(*sizes, *parts)
        if packed.checksum != checksum:
            log.warning("%s is damaged and is made anew", self._path)
            self._file = None
            return None
        return packed

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        whole, self._file = self._file is not None, None
        if kind is not None or self._path is None or whole:
            return
        arrays: dict[str, npt.NDArray[Any]] = {}
        for name, packed in self._made.items():
            arrays[f"{name}.weight"] = packed.weight
            arrays[f"{name}.scales"] = packed.scales
            arrays[f"{name}.bias"] = packed.bias
            arrays[f"{name}.sizes"] = np.array(
                [packed.outputs, packed.inputs, packed.kind, packed.checksum]
            )
        try:
            publish_file(self._path, lambda part: save_file(arrays, part, {"format": FORMAT}))
        except (ModelUnavailable, SafetensorError) as error:
            log.warning("packed weights are not kept: %s", error)
