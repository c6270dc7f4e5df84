"""What a user may write for a model on the hub: ``org/name``, with a revision, with a file."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["HubName", "parse_hub_name"]

_PART = r"[A-Za-z0-9](?:[\w.-]*\w)?"
_WRITTEN = re.compile(
    rf"(?P<repo>{_PART}/{_PART})"
    r"(?:@(?P<revision>\w[\w./+-]*)(?::(?P<pattern>[^:@\\]+))?"
    r"|:(?P<alone>[^:@\\]+)"
    r"|/(?P<file>[^:@\\*?]+\.gguf))?",
    re.ASCII,
)
_LONGEST = 96
"""Characters of a repository's name; the hub has no longer ones."""


@dataclass(frozen=True, slots=True)
class HubName:
    """A model on the hub.

    Attributes:
        repo: ``org/name``.
        revision: a branch, tag or commit; None for the main branch.
        pattern: which GGUF files of it: a quantisation (``Q4_K_M``), a file, or a pattern with
            ``*`` and ``?``; None where the user named none.
    """

    repo: str
    revision: str | None = None
    pattern: str | None = None

    def __str__(self) -> str:
        """As one writes it."""
        revision = f"@{self.revision}" if self.revision is not None else ""
        return self.repo + revision + (f":{self.pattern}" if self.pattern is not None else "")


def parse_hub_name(text: str) -> HubName | None:
    """Read ``org/name``, ``org/name@revision``, ``org/name:pattern``, ``org/name@revision:pattern``
    or ``org/name/file.gguf``; None for any other text.

    No part of what comes back leads out of a folder: ``..`` is nowhere in it, and nothing begins
    with a slash.
    """
    found = _WRITTEN.fullmatch(text)
    if found is None or not text.isprintable() or ".." in text or "//" in text:
        return None
    repo, revision = found["repo"], found["revision"]
    pattern = found["pattern"] or found["alone"] or found["file"]
    # The cache folder has "--" where the hub has "/", so that no name may contain it.
    if len(repo) > _LONGEST or "--" in repo or repo.endswith(".git"):
        return None
    if pattern is not None and (pattern != pattern.strip() or pattern != pattern.strip("/")):
        return None
    if revision is not None and revision.endswith(("/", ".", ".lock")):
        return None
    return HubName(repo, revision, pattern)
