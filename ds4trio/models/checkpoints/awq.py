"""AWQ (arXiv:2306.00978), as AutoAWQ stores it in its version ``gemm``.

Of a product with ``in`` inputs and ``out`` outputs, in groups of inputs:

- ``qweight`` int32 [in, out / 8]: levels of four bits, packed along the outputs;
- ``qzeros`` int32 [groups, out / 8]: the level that is zero, packed alike;
- ``scales`` float [groups, out].

From the lowest bits on, a word holds the outputs in the order of ``ORDER``. A weight is
``scale * (level - zero)``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ds4trio.models.checkpoints.assembly import Assembly, integer, refuse_format
from ds4trio.models.checkpoints.packing import CHUNK, scale_groups, unpack

if TYPE_CHECKING:
    import torch

__all__ = ["awq"]

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
BITS, WORD = 4, 8


def awq(parts: Assembly, settings: Mapping[str, Any]) -> None:
    """Say how the weights of an AWQ checkpoint are made.

    Raises:
        ModelUnavailable: a version or number of bits that is not known, or tensors that do not fit.
    """
    version = str(settings.get("version") or settings.get("format") or "gemm").lower()
    if version != "gemm":
        refuse_format(f"AWQ version {version!r} is not known; known: gemm")
    bits = integer(settings, "bits", integer(settings, "w_bit", BITS))
    if bits != BITS:
        refuse_format(f"AWQ with {bits} bits is not known; known: 4")
    for base in parts.ending(".qweight"):
        inputs, words = parts.take(f"{base}.qweight", ["I32"], None, None)
        outputs = words * WORD
        groups, _ = parts.take(f"{base}.scales", ["F16", "BF16", "F32"], None, outputs)
        parts.take(f"{base}.qzeros", ["I32"], groups, words)
        if not groups or not inputs or inputs % groups:
            parts.refuse(f"{base}.scales", f"it has {groups} groups for {inputs} inputs")
        parts.make(f"{base}.weight", (outputs, inputs), _decoder(parts, base, outputs, inputs))


def _decoder(parts: Assembly, base: str, outputs: int, inputs: int) -> Callable[[], torch.Tensor]:
    def decode() -> torch.Tensor:
        import torch

        words = parts.raw.integers(f"{base}.qweight")
        stored = unpack(parts.raw.integers(f"{base}.qzeros"), BITS, 1)
        zeros = np.ascontiguousarray(_by_word(stored), np.float32)
        scales = np.ascontiguousarray(_by_word(parts.raw[f"{base}.scales"].float().numpy()))
        result = np.empty((outputs, inputs), np.float32)
        by_word = result.reshape(-1, WORD, inputs)
        step = max(1, CHUNK // (inputs * WORD))
        for begin in range(0, len(by_word), step):
            some = slice(begin, begin + step)
            packed = np.ascontiguousarray(words[:, some].T).view(np.uint8)
            packed = packed.reshape(-1, inputs, WORD // 2)
            for place, output in enumerate(ORDER):
                byte = packed[:, :, place // 2]
                out = by_word[some, output]
                out[:] = byte >> BITS if place % 2 else byte & 15
                scale_groups(out, zeros[some, place], scales[some, output], None)
        return torch.from_numpy(result)

    return decode


def _by_word(of_groups: NDArray[Any]) -> NDArray[Any]:
    """[groups, outputs] -> [outputs / 8, 8, groups]."""
    return of_groups.reshape(len(of_groups), -1, WORD).transpose(1, 2, 0)
