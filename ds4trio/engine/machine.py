"""How much main memory this process may have: what the machine has, or less where a container says.

Kernel documents: ``admin-guide/cgroup-v2`` and ``cgroup-v1/memory`` of Linux.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MachineMemory", "machine_memory"]

_UNLIMITED = 1 << 60
"""A first version's group without a limit says a number near 2^63."""


@dataclass(frozen=True, slots=True)
class MachineMemory:
    """Main memory, in bytes.

    Attributes:
        total: of the machine, or what the container may have at most.
        available: that nobody uses, with caches that the system gives up when asked.
    """

    total: int
    available: int


def machine_memory(root: Path = Path("/")) -> MachineMemory:
    """Look at the machine, and on Linux at every control group around this process.

    Args:
        root: where ``proc`` and ``sys`` are, for tests.
    """
    if (root / "proc" / "meminfo").is_file():
        memory = _linux(root)
    elif sys.platform == "win32":
        memory = _windows()
    else:
        memory = _posix()
    for limit, used in _groups(root):
        total = min(memory.total, limit)
        memory = MachineMemory(total, max(min(memory.available, limit - used), 0))
    return memory


def _linux(root: Path) -> MachineMemory:
    lines = (root / "proc" / "meminfo").read_text(encoding="ascii", errors="replace")
    found = {name: int(size) * 1024 for name, size in re.findall(r"^(\w+): *(\d+) kB", lines, re.M)}
    total = found.get("MemTotal", 0)
    return MachineMemory(total, found.get("MemAvailable", found.get("MemFree", total // 2)))


def _posix() -> MachineMemory:
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        total = 16 << 30
    return MachineMemory(total, total * 3 // 4)  # what is free is not told everywhere


def _windows() -> MachineMemory:
    import ctypes

    names = ("total", "available", "page_total", "page_free", "virtual", "virtual_free", "extended")

    class Status(ctypes.Structure):
        _fields_ = [
            ("length", ctypes.c_ulong),
            ("load", ctypes.c_ulong),
            *((name, ctypes.c_ulonglong) for name in names),
        ]

    status = Status(length=ctypes.sizeof(Status))
    if not ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):  # type: ignore[attr-defined,unused-ignore]
        return _posix()
    return MachineMemory(status.total, status.available)


def _groups(root: Path) -> list[tuple[int, int]]:
    """Limit and use of each control group around this process that limits memory."""
    try:
        lines = (root / "proc" / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    found = []
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        top = root / "sys" / "fs" / "cgroup"
        if number == "0" and not controllers:
            files = ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            top = top / "memory"
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # A container often sees its own group as the top, under which the path is not found.
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            group = top.joinpath(*parts[:depth])
            if (limit := _number(group / files[0])) is not None and limit < _UNLIMITED:
                used = _number(group / files[1]) or 0
                found.append((limit, max(used - _reclaimable(group, files[2]), 0)))
    return found


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # not there, or "max"
        return None


def _reclaimable(group: Path, key: str) -> int:
    """Bytes of files' content that the group counts, and the system gives up when asked."""
    try:
        text = (group / "memory.stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    match = re.search(rf"^{key} (\d+)$", text, re.M)
    return int(match[1]) if match else 0
