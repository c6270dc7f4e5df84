"""The folder of the files that ``static/`` is built into."""

from __future__ import annotations

from pathlib import Path

__all__ = ["built_folder"]


def built_folder() -> Path:
    """Inside the package when installed from a wheel, beside it in a checkout.

    Raises:
        FileNotFoundError: there is none, or an older build.
    """
    package = Path(__file__).parent.parent
    for folder in (package / "static", package.parent / "static" / "dist"):
        if (folder / "index.html").is_file() and (folder / "fields.json").is_file():
            return folder
    raise FileNotFoundError(
        "the page's files are missing from this installation; node static/build.mjs makes them"
    )
