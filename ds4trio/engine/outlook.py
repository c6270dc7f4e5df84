"""What the engine would take on this machine, found without loading torch.

The engine itself asks torch, and torch decides. This is for a look ahead, where loading it would
take longer than all the rest.
"""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from ds4trio.engine.machine import MachineMemory, machine_memory
from ds4trio.models.facts import TensorFact

__all__ = ["DTYPES", "Outlook", "outlook", "weights_bytes"]

DTYPES = ("float32", "bfloat16", "float16", "w8a16", "int8")

_PLAIN = {"float32": 4, "bfloat16": 2, "float16": 2}
_GROUP = 32
_FOUR_BITS = ("Q4_0", "Q4_1", "Q4_K")
"""Formats whose four bits are kept; other weights are rounded to eight."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """Where the engine would run.

    Attributes:
        device, dtype: what ``auto`` means here.
        cache_bytes: of one number of a key or value.
        memory: that weights, keys and values are in.
        shared: it is the machine's main memory.
    """

    device: str
    dtype: str
    cache_bytes: int
    memory: MachineMemory
    shared: bool


def outlook() -> Outlook:
    """Look at this machine. A CUDA device is seen if its driver's own tool says so."""
    gpu = _cuda_memory()
    if gpu is not None:
        return Outlook("cuda", "bfloat16", 2, gpu, shared=False)
    if sys.platform == "darwin" and platform.machine() == "arm64":
        return Outlook("mps", "float16", 2, machine_memory(), shared=True)
    from ds4trio.engine.native.groups import FORM
    from ds4trio.engine.native.vector import HALVES

    rounded = FORM is not None and FORM.dots
    dtype = "w8a16" if rounded else "float32"
    return Outlook("cpu", dtype, 2 if rounded and HALVES else 4, machine_memory(), shared=True)


def _cuda_memory() -> MachineMemory | None:
    tool = shutil.which("nvidia-smi")
    try:
        if tool is None or importlib.metadata.version("torch").endswith("+cpu"):
            return None
        query = [tool, "--query-gpu=memory.total,memory.free", "--format=csv,noheader,nounits"]
        told = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
        total, free = told.stdout.splitlines()[0].split(",")
        return MachineMemory(int(total) << 20, int(free) << 20)
    except (
        importlib.metadata.PackageNotFoundError,
        OSError,
        subprocess.SubprocessError,
        ValueError,
        IndexError,
    ):
        return None


def weights_bytes(tensors: Iterable[TensorFact], dtype: str) -> int:
    """About how much memory weights take in a dtype.

    In ``w8a16`` and ``int8`` each group of 32 weights has 32 bytes, or 16 where the file has four
    bits, and 4 for its scale; vectors stay in float32.
    """
    if dtype in _PLAIN:
        return _PLAIN[dtype] * sum(tensor.elements for tensor in tensors)
    size = 0
    for tensor in tensors:
        if len(tensor.shape) < 2:
            size += 4 * tensor.elements
        else:
            group = (_GROUP // 2 if tensor.kind in _FOUR_BITS else _GROUP) + 4
            size += -(-tensor.elements // _GROUP) * group
    return size
