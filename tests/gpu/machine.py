"""The device that is measured, its clock and its ceilings; or a stand-in on a CPU, to rehearse."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ds4trio.engine.graphs import CudaRecorder, Recorder, run_eagerly

__all__ = ["Machine"]


class Machine:
    """Where the measuring happens.

    Args:
        rehearsal: on a CPU, with tiny sizes: shows that the script runs, not what a GPU does.
        seconds: after so many, what is left is skipped.
    """

    def __init__(self, *, rehearsal: bool, seconds: float) -> None:
        self.rehearsal = rehearsal
        self.device = torch.device("cpu" if rehearsal else "cuda")
        self.dtype = torch.float16 if rehearsal else torch.bfloat16
        self._began = time.monotonic()
        self._seconds = seconds

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def has_time(self, needed: float) -> bool:
        """Whether a section of about so many seconds still fits."""
        return self.elapsed + needed < self._seconds

    def synchronize(self) -> None:
        if not self.rehearsal:
            torch.cuda.synchronize()

    def recorder(self) -> Recorder:
        return run_eagerly if self.rehearsal else CudaRecorder(self.device)

    def milliseconds(self, work: Callable[[], object], repeats: int = 20) -> float:
        """The median time of one call on the device."""
        work()
        if self.rehearsal:
            began = time.perf_counter()
            work()
            return (time.perf_counter() - began) * 1000
        torch.cuda.synchronize()
        events: list[Any] = []
        for _ in range(repeats):
            began_at, ended_at = (_event() for _ in range(2))
            began_at.record()
            work()
            ended_at.record()
            events.append((began_at, ended_at))
        torch.cuda.synchronize()
        return float(statistics.median(start.elapsed_time(end) for start, end in events))

    def repeated(self, work: Callable[[], object]) -> float:
        """Milliseconds of work on the device without the time it takes to start it."""

        def step() -> None:
            work()

        with torch.inference_mode():
            return self.milliseconds(self.recorder()(step), repeats=10)

    def describe(self) -> dict[str, Any]:
        """Names and versions."""
        import triton

        found: dict[str, Any] = {"torch": torch.__version__, "triton": triton.__version__}
        if self.rehearsal:
            return found | {"device": "cpu, a rehearsal: its times mean nothing"}
        properties = torch.cuda.get_device_properties(self.device)
        return found | {
            "device": properties.name,
            "memory_gib": round(properties.total_memory / 2**30, 1),
            "multiprocessors": properties.multi_processor_count,
        }

    def ceilings(self) -> dict[str, float]:
        """What the device reaches: bytes per second of a copy, operations per second of a product.

        A copy counts what it reads and what it writes.
        """
        size = 2**16 if self.rehearsal else 2**32
        source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        copied = 2 * size / self.milliseconds(partial(target.copy_, source)) * 1000
        side = 64 if self.rehearsal else 8192
        left, right = (
            torch.randn(side, side, device=self.device, dtype=self.dtype) for _ in range(2)
        )
        product = 2 * side**3 / self.milliseconds(partial(torch.matmul, left, right)) * 1000
        return {"bytes_per_second": copied, "flop_per_second": product}


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
