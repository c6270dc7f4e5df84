"""AWQ (arXiv:2306.00978), as AutoAWQ stores it in its version ``gemm``.

Of a product with ``in`` inputs and ``out`` outputs, in groups of inputs:

- ``qweight`` int32 [in, out / 8]: levels of four bits, packed along the outputs;
- ``qzeros`` int32 [groups, out / 8]: the level that is zero, packed alike;
- ``scales`` float [groups, out].

From the lowest bits on, a word holds the outputs in the order of ``ORDER``. A weight is
``scale * (level - zero)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ds4trio.models.checkpoints.assembly import Assembly, integer, refuse_format
from ds4trio.models.checkpoints.packing import CHUNK

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
        if not groups or inputs % groups:
            parts.refuse(f"{base}.scales", f"it has {groups} groups for {inputs} inputs")
        parts.make(f"{base}.weight", (outputs, inputs), _decoder(parts, base, outputs, inputs))


def _decoder(parts: Assembly, base: str, outputs: int, inputs: int) -> Any:
    def decode() -> torch.Tensor:
        import torch

        words = parts.raw.integers(f"{base}.qweight").view(np.uint32)
        zeros = parts.raw.integers(f"{base}.qzeros").view(np.uint32).T
        scales = parts.raw[f"{base}.scales"].float().numpy().T.reshape(-1, WORD, len(zeros.T))
        result = np.empty((outputs, inputs), np.float32)
        by_word = result.reshape(-1, WORD, inputs)
        step = max(1, CHUNK // max(inputs * WORD, 1))
        for begin in range(0, len(by_word), step):
            some = slice(begin, begin + step)
            packed = np.ascontiguousarray(words[:, some].T)
            for place, output in enumerate(ORDER):
                level = (packed >> (BITS * place)) & 15
                zero = (zeros[some] >> (BITS * place)) & 15
                by_group = level.astype(np.float32).reshape(*zero.shape, -1)
                by_group -= zero.astype(np.float32)[:, :, None]
                by_group *= scales[some, output, :, None]
                by_word[some, output] = by_group.reshape(level.shape)
        return torch.from_numpy(result)

    return decode
