"""What the installed torch was made for, found without importing it, which takes seconds."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path

from ds4trio.errors import ModelUnavailable

__all__ = ["expect_device"]


def expect_device(name: str) -> None:
    """Refuse a device that cannot be there. Whether it is, ``find_device`` finds out.

    Raises:
        ModelUnavailable: the installed torch, or the system, has no such devices.
    """
    if name == "mps" and sys.platform != "darwin":
        raise ModelUnavailable("--device: 'mps' cannot be used: only macOS has it.")
    found = importlib.util.find_spec("torch") if name == "cuda" else None
    for folder in (found and found.submodule_search_locations) or ():
        built = Path(folder) / "version.py"
        if not built.is_file():
            continue
        facts = runpy.run_path(str(built))
        if "cuda" in facts and not (facts["cuda"] or facts.get("hip")):
            raise ModelUnavailable(
                f"--device: 'cuda' cannot be used: the torch that is installed, "
                f"{facts.get('__version__')}, is made without it."
            )
