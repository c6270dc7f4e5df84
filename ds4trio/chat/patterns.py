"""One expression for many texts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

__all__ = ["any_of"]


def any_of(texts: Iterable[str]) -> re.Pattern[str] | None:
    """An expression that matches any of the texts, of several the longest; None without texts.

    Gemma has six thousand control tokens. They are laid out as a tree of characters, so that trying
    them all at one place takes no more steps than the longest has characters: what a client writes
    is looked through, and a list of alternatives would be tried one by one at each ``<``.

    Raises:
        RecursionError: thousands of texts that are each the beginning of the next.
    """
    tree: dict[str, Any] = {}
    for text in filter(None, texts):
        node = tree
        for character in text:
            node = node.setdefault(character, {})
        node[""] = {}
    return re.compile(_alternatives(tree)) if tree else None


def _alternatives(node: dict[str, Any]) -> str:
    """What may follow in the tree below a node."""
    ends = "" in node
    branches = []
    for first, child in node.items():
        if not first:
            continue
        text = first
        while len(child) == 1 and "" not in child:  # no choice: no group
            ((character, child),) = child.items()
            text += character
        rest = "" if child.keys() == {""} else _alternatives(child)
        branches.append(re.escape(text) + rest)
    if not branches:
        return ""
    return f"(?:{'|'.join(branches)}){'?' if ends else ''}"
