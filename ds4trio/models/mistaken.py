"""What a file is that was taken for a model's weights and is something else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

__all__ = ["HEAD", "mistaken_for", "what_file_is"]

Weights = Literal["GGUF", "safetensors"]

HEAD = 512
"""Bytes that are looked at."""

_BEGINNINGS = {
    b"version https://git-lfs": "it is a Git LFS pointer in place of the file; run 'git lfs pull'.",
    b"PK\x03\x04": "it is a zip archive, as PyTorch writes weights; these are not read.",
    b"\x1f\x8b": "it is packed with gzip; unpack it first.",
}
_PAGE = re.compile(rb"\s*<(!doctype|html|head|\?xml)", re.IGNORECASE)
_SAFETENSORS = re.compile(rb".{8}\{\s*\"", re.DOTALL)


def mistaken_for(head: bytes, wanted: Weights) -> str | None:
    """What a file is that is not of the format that is wanted.

    Args:
        head: its first ``HEAD`` bytes, or all of it.
        wanted: the format.

    Returns:
        The end of a sentence that begins with the file's name, with what to do; None where there
        is nothing helpful to say.
    """
    if not head:
        return "it is empty; was it fetched completely?"
    for beginning, what in _BEGINNINGS.items():
        if head.startswith(beginning):
            return what
    if _PAGE.match(head):
        return "it is a web page, not the file; was the link one for downloading?"
    if wanted != "GGUF" and head.startswith(b"GGUF"):
        return "it is a GGUF file under another name."
    if wanted != "safetensors" and _SAFETENSORS.match(head):
        return "it is a safetensors file; name the folder it is in."
    return None


def what_file_is(path: Path, wanted: Weights) -> str | None:
    """The same of a file here; None also where it cannot be read."""
    try:
        with path.open("rb") as file:
            return mistaken_for(file.read(HEAD), wanted)
    except OSError:
        return None
