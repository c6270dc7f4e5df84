"""How weights of four and of eight bits lie in memory, for the processor at hand.

Weights are in groups of 32 along the input: ``w = scale * q + least``, with a scale and a least in
float16 for each group. With four bits q runs from 0 to 15, as GGUF's Q4_0, Q4_1 and Q4_K have it;
with eight from 1 to 255, and the least is -128 scales, which holds what Q8_0 has. So nothing of
such a file is rounded.

A panel of 16 outputs holds its groups one after the other, and a group as many parts as it takes
vectors to hold a byte of 4 inputs for each output: one of 16 outputs with AVX-512, else two of 8.
A part is scales, leasts (float16 [lanes] both), and then vectors of 4 bytes for each output. The
bytes of vector v are inputs ``4 v + i`` of output o at ``4 o + i`` with eight bits. With four, the
low halves of bytes are inputs ``8 v + i``, and the high halves ``8 v + 4 + i``.
"""

from __future__ import annotations

from dataclasses import dataclass

import llvmlite.binding
import numpy as np
import numpy.typing as npt

from ds4trio.engine.native.vector import PANEL

__all__ = ["FORM", "GROUP", "Form", "forms", "pack_groups"]

GROUP = 32
QUADS = GROUP // 4


@dataclass(frozen=True, slots=True)
class Form:
    """What a kind of processor multiplies at once.

    Attributes:
        lanes: outputs, each with 4 bytes, in a vector.
        dots: it has one instruction for the sum of 4 products of bytes, in 32 bits (VNNI). Without
            it such sums are made in 16 bits, which holds those of four-bit weights only.
        rows: most rows of a tile, so that its sums stay in registers.
        fine_rows: the same with activations of two bytes.
    """

    lanes: int
    dots: bool
    rows: int
    fine_rows: int

    @property
    def parts(self) -> int:
        """Vectors across a panel."""
        return PANEL // self.lanes

    def part_bytes(self, bits: int) -> int:
        """Of the part of a group, scales and leasts included."""
        return self.numbers_bytes + QUADS * self.lanes * bits // 2

    def panel_bytes(self, groups: int, bits: int) -> int:
        """Of a panel with so many groups."""
        return groups * self.parts * self.part_bytes(bits)

    @property
    def numbers_bytes(self) -> int:
        """Of scales and leasts."""
        return 2 * 2 * self.lanes


def forms() -> list[Form]:
    """Those that this processor can use, the best first; none on others than x86 since 2013."""
    features = llvmlite.binding.get_host_cpu_features()

    def has(*names: str) -> bool:
        return all(features.get(name) for name in names)

    found = []
    if has("avx512f", "avx512bw", "avx512vl", "avx512vnni", "f16c"):
        found.append(Form(lanes=16, dots=True, rows=12, fine_rows=8))
    if has("avx2", "fma", "f16c"):
        if has("avxvnni") or has("avx512vl", "avx512vnni"):
            found.append(Form(lanes=8, dots=True, rows=4, fine_rows=2))
        found.append(Form(lanes=8, dots=False, rows=4, fine_rows=2))
    return found


FORM = next(iter(forms()), None)


def pack_groups(
    levels: npt.NDArray[np.uint8],
    scales: npt.NDArray[np.float32],
    leasts: npt.NDArray[np.float32],
    *,
    bits: int,
    form: Form,
) -> npt.NDArray[np.int8]:
    """Bring a weight into panels.

    Args:
        levels: [outputs, inputs], of so many bits; inputs are a multiple of ``GROUP``.
        scales, leasts: [outputs, inputs / GROUP].

    Returns:
        [panels, bytes of a panel]; missing outputs are zeros.
    """
    outputs, inputs = levels.shape
    panels, groups = -(-outputs // PANEL), inputs // GROUP
    lanes, parts, start = form.lanes, form.parts, form.numbers_bytes
    packed = np.zeros((panels, groups, parts, form.part_bytes(bits)), np.int8)
    for panel in range(panels):
        part = slice(panel * PANEL, min(outputs, (panel + 1) * PANEL))
        count = part.stop - part.start
        numbers = np.zeros((2, PANEL, groups), np.float16)
        numbers[0, :count], numbers[1, :count] = scales[part], leasts[part]
        # [scale or least, part, output, group] -> [group, part, scale or least, output]
        split = numbers.reshape(2, parts, lanes, groups).transpose(3, 1, 0, 2)
        packed[panel, :, :, :start] = (
            np.ascontiguousarray(split).reshape(groups, parts, -1).view(np.int8)
        )
        own = np.zeros((PANEL, inputs), np.uint8)
        own[:count] = levels[part]
        # [part, output, group, quad, i] -> [group, part, quad, output, i]
        quads = own.reshape(parts, lanes, groups, QUADS, 4).transpose(2, 0, 3, 1, 4)
        if bits == 4:
            quads = quads[:, :, 0::2] | np.left_shift(quads[:, :, 1::2], 4, dtype=np.uint8)
        packed[panel, :, :, start:] = quads.reshape(groups, parts, -1).view(np.int8)
    return packed.reshape(panels, -1)
