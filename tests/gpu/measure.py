"""Measures the engine on a GPU: ``python -m tests.gpu.measure --out gpu.json``.

Ceilings first, then whole engines over random weights, then the attention kernels alone, and the
engines once more with batch invariance. What is
found is written after each section, so that a run that is cut short leaves what it had. The table
at the end has the figures for docs/performance.md. ``--rehearse`` runs every line on a CPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

# Before anything imports Triton.
if "--rehearse" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"

import torch

from ds4trio.engine import attention, graphs, linear, runner
from ds4trio.engine.paged import Tiling
from tests.gpu.engines import SHAPES, time_engine
from tests.gpu.kernels import Heads, time_chunks, time_rows
from tests.gpu.machine import Machine

INVARIANT = ", batch invariant"
LLAMA = (32, 8, 128)
SMALL = (9, 3, 64)
NO_GROUPS = (32, 32, 64)
RowCase = tuple[Heads, int, int]
"""Rows, and how many positions each sees."""

ChunkCase = tuple[Heads, int, int, int]
"""Sequences, the position where a chunk starts, and how many it has."""


@dataclass(frozen=True)
class Cases:
    """What is measured. Tilings are tried on ``tuned_rows``, and on the last of the chunks."""

    levels: Sequence[int]
    invariant_levels: Sequence[int]
    prompt: int
    rows: Sequence[RowCase]
    chunks: Sequence[ChunkCase]
    tuned_rows: Sequence[RowCase]
    row_tilings: Sequence[Tiling]
    chunk_tilings: Sequence[Tiling]


FULL = Cases(
    levels=(1, 8, 32, 64, 128, 256),
    invariant_levels=(1, 8, 32, 128),
    prompt=512,
    rows=[
        (LLAMA, 1, 512),
        (LLAMA, 1, 8192),
        (LLAMA, 1, 65536),
        (LLAMA, 8, 4096),
        (LLAMA, 64, 1024),
        (LLAMA, 256, 512),
        (LLAMA, 256, 4096),
        (SMALL, 64, 512),
        (NO_GROUPS, 64, 512),
    ],
    chunks=[
        (LLAMA, 1, 0, 2048),
        (LLAMA, 4, 0, 512),
        (SMALL, 4, 0, 512),
        (LLAMA, 1, 8192, 2048),
        (LLAMA, 1, 2048, 2048),
    ],
    tuned_rows=[(LLAMA, 64, 1024), (LLAMA, 1, 8192)],
    row_tilings=[
        Tiling(16, 32, 4, 3),
        Tiling(16, 64, 2, 3),
        Tiling(16, 64, 4, 2),
        Tiling(16, 64, 4, 4),
        Tiling(16, 64, 8, 3),
        Tiling(16, 128, 4, 2),
    ],
    chunk_tilings=[
        Tiling(64, 32, 4, 3),
        Tiling(64, 64, 4, 3),
        Tiling(64, 128, 4, 2),
        Tiling(128, 64, 8, 2),
        Tiling(128, 64, 8, 3),
        Tiling(128, 128, 8, 2),
    ],
)
TINY = Cases(
    levels=(1, 3),
    invariant_levels=(1, 3),
    prompt=20,
    rows=[((4, 2, 16), 2, 40)],
    chunks=[((4, 2, 16), 2, 0, 20), ((4, 2, 16), 1, 10, 20)],
    tuned_rows=[((4, 2, 16), 1, 40)],
    row_tilings=[Tiling(16, 32, 4, 3)],
    chunk_tilings=[Tiling(32, 32, 4, 3)],
)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True, help="where the JSON goes")
    parser.add_argument("--seconds", type=float, default=330, help="skip what is left after these")
    parser.add_argument("--rehearse", action="store_true", help="on a CPU, with tiny sizes")
    wishes = parser.parse_args()
    if not wishes.rehearse and not torch.cuda.is_available():
        print("torch sees no CUDA device; --rehearse runs without one", file=sys.stderr)
        return 2
    machine = Machine(rehearsal=wishes.rehearse, seconds=wishes.seconds)
    if wishes.rehearse:
        _rehearse()
    report = Report(wishes.out, machine)
    found = report.section("machine", 0, machine.describe)
    ceilings = report.section("ceilings", 5, machine.ceilings) or {}
    print(json.dumps({"machine": found, "ceilings": ceilings}), flush=True)
    ceiling = ceilings.get("bytes_per_second", 4.8e12)
    cases = TINY if wishes.rehearse else FULL
    for name, shape in SHAPES.items():
        work = partial(
            time_engine,
            machine,
            shape,
            levels=cases.levels,
            prompt=cases.prompt,
            ceiling=ceiling,
        )
        report.section(f"engine {name}", 60, work)
    for rows in cases.rows:
        report.add("rows", partial(time_rows, machine, *rows))
    for chunk in cases.chunks:
        report.add("chunks", partial(time_chunks, machine, *chunk))
    for rows in cases.tuned_rows:
        for split in (128, 512):
            report.add("row splits", partial(time_rows, machine, *rows, split=split))
        for tiling in cases.row_tilings:
            report.add("row tilings", partial(time_rows, machine, *rows, tiling=tiling))
    for tiling in cases.chunk_tilings:
        report.add("chunk tilings", partial(time_chunks, machine, *cases.chunks[-1], tiling=tiling))
    for name, shape in SHAPES.items():
        work = partial(
            time_engine,
            machine,
            shape,
            levels=cases.invariant_levels,
            prompt=cases.prompt,
            ceiling=ceiling,
            batch_invariant=True,
        )
        report.section(f"engine {name}{INVARIANT}", 30, work)
    report.print_table()
    return 1 if report.errors else 0


def _rehearse() -> None:
    """Let the engine use kernels and recorded steps on the CPU."""
    setattr(attention, "is_native", lambda dtype, device: False)  # noqa: B010
    setattr(attention, "has_kernels", lambda device: True)  # noqa: B010
    setattr(linear, "has_kernels", lambda device: True)  # noqa: B010
    # The interpreter's products depend on the place of a row in its tile.
    setattr(runner, "require_invariance", lambda *_: None)  # noqa: B010
    setattr(runner, "CudaRecorder", lambda device: graphs.run_eagerly)  # noqa: B010


class Report:
    """What is found, written after every section."""

    def __init__(self, path: Path, machine: Machine) -> None:
        self._path = path
        self._machine = machine
        self.found: dict[str, Any] = {}
        self.errors: list[str] = []

    def section(self, name: str, seconds: float, work: Callable[[], Any]) -> Any:
        """Do a section, unless there is no time for about so many seconds; None if it failed."""
        result = self._try(name, seconds, work)
        if result is not None:
            self.found[name] = result
        self._write()
        return result

    def add(self, name: str, work: Callable[[], Any]) -> None:
        """Do one case of a section of many."""
        result = self._try(name, 5, work)
        if result is not None:
            self.found.setdefault(name, []).append(result)
        self._write()

    def _try(self, name: str, seconds: float, work: Callable[[], Any]) -> Any:
        if not self._machine.has_time(seconds):
            self.errors.append(f"{name}: skipped, no time left")
            return None
        try:
            return work()
        except Exception as error:
            # The next section may still work, and the machine is lent once.
            traceback.print_exc()
            self.errors.append(f"{name}: {type(error).__name__}: {error}"[:500])
            return None
        finally:
            gc.collect()
            if not self._machine.rehearsal:
                torch.cuda.empty_cache()
            print(f"[{self._machine.elapsed:5.0f} s] {name}", flush=True)

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        whole = {**self.found, "errors": self.errors, "seconds": self._machine.elapsed}
        self._path.write_text(json.dumps(whole, indent=1), encoding="utf-8")

    def print_table(self) -> None:
        """The figures in short, last, since the end of an output is what gets read."""
        for name, found in self.found.items():
            if not name.startswith("engine "):
                continue
            prefill = found["prefill"]
            print(f"\n{name}: prefill {prefill['tokens_per_second']:,.0f} tokens/s")
            print("| rows | step, ms | device, ms | tokens/s | bandwidth | eager step, ms | gain |")
            print("| --- | --- | --- | --- | --- | --- | --- |")
            recorded = [level for level in found["decode"] if level["graphs"]]
            eager = [level for level in found["decode"] if not level["graphs"]]
            for one, other in zip(recorded, eager, strict=True):
                print(
                    f"| {one['rows']} | {one['step_ms']:.2f} | {one.get('device_ms', 0):.2f} "
                    f"| {one['tokens_per_second']:,.0f} | {one['share_of_bandwidth']:.2f} "
                    f"| {other['step_ms']:.2f} | {other['step_ms'] / one['step_ms']:.2f} |"
                )
            print(f"alone and in company: {found['company']}")
            if plain := self.found.get(name.removesuffix(INVARIANT)) if INVARIANT in name else None:
                self._print_cost(name, found, plain)
        for name in ("rows", "row splits", "row tilings"):
            for case in self.found.get(name, ()):
                print(
                    f"{name}: {case['heads']} {case['rows']} x {case['length']}, {case['split']}, "
                    f"{case['tiling']}: {case['microseconds']:.0f} us, "
                    f"{case['bytes_per_second'] / 1e12:.2f} TB/s"
                )
        for name in ("chunks", "chunk tilings"):
            for case in self.found.get(name, ()):
                theirs = case.get("torch_microseconds")
                print(
                    f"{name}: {case['heads']} {case['sequences']} x {case['start']}+{case['count']}"
                    f", {case['tiling']}: {case['microseconds']:.0f} us, "
                    f"{case['flop_per_second'] / 1e12:.0f} TFLOP/s"
                    + (f", torch {theirs:.0f} us" if theirs else "")
                )
        for error in self.errors:
            print(f"NOT DONE: {error}")

    @staticmethod
    def _print_cost(name: str, found: dict[str, Any], plain: dict[str, Any]) -> None:
        """How much longer everything takes than without batch invariance."""
        took = {(level["rows"], level["graphs"]): level["step_ms"] for level in plain["decode"]}
        ratios = ", ".join(
            f"{level['rows']} rows {level['step_ms'] / took[level['rows'], True]:.2f}"
            for level in found["decode"]
            if level["graphs"]
        )
        speeds = (each["prefill"]["tokens_per_second"] for each in (plain, found))
        print(f"{name}, times as long: {ratios}, prefill {next(speeds) / next(speeds):.2f}")


if __name__ == "__main__":
    sys.exit(main())
