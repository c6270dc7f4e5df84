"""What an effort of reasoning means for a chat template."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

__all__ = ["switches"]

LEVELS: Mapping[str, tuple[str, ...]] = {
    "none": ("none", "no_think", "minimal", "low"),
    "minimal": ("minimal", "low"),
    "low": ("low",),
    "medium": ("medium", "high"),
    "high": ("high",),
    "xhigh": ("xhigh", "max", "high"),
}
"""For each effort, the words that templates have for it, the nearest first."""

COMMON: Mapping[str, str] = {"none": "low", "minimal": "low", "xhigh": "high"}
"""For templates that write any word, of which their models know three."""

BUDGETS: Mapping[str, int] = {
    "none": 0,
    "minimal": 512,
    "low": 1024,
    "medium": 4096,
    "high": 16384,
    "xhigh": -1,
}
"""Tokens, as Seed's models count them; -1 is no limit."""


def switches(effort: str | None, names: Collection[str], texts: Collection[str]) -> dict[str, Any]:
    """Values for the names that a template looks up.

    Args:
        effort: as in ``Reasoning.effort``; None chooses nothing.
        names: that the template looks up.
        texts: that are in it.
    """
    if effort is None:
        return {}
    meanings: Mapping[str, Callable[[str], Any]] = {
        "enable_thinking": _thinks,
        "thinking": _thinks,
        "reasoning": _thinks,
        "reasoning_effort": lambda effort: _level(effort, texts),
        "thinking_budget": lambda effort: BUDGETS.get(effort, -1),
    }
    return {name: meaning(effort) for name, meaning in meanings.items() if name in names}


def _thinks(effort: str) -> bool:
    return effort != "none"


def _level(effort: str, texts: Collection[str]) -> str:
    known = (level for level in LEVELS.get(effort, ()) if level in texts)
    return next(known, COMMON.get(effort, effort))
