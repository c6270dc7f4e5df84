"""The table of the tags that models think between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["TAGS", "ReasoningTags", "tags_of"]


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """A pair of tags.

    Attributes:
        opens, closes: around what is thought.
        answer: tags that some models put around the answer; they are no part of it.
    """

    opens: str
    closes: str
    answer: tuple[str, ...] = ()

    def spelled(self, spell: Callable[[str], str]) -> ReasoningTags:
        return ReasoningTags(spell(self.opens), spell(self.closes), tuple(map(spell, self.answer)))


TAGS = (
    ReasoningTags("[THINK]", "[/THINK]"),  # Magistral, Ministral 3
    ReasoningTags("<seed:think>", "</seed:think>"),
    ReasoningTags("<|START_THINKING|>", "<|END_THINKING|>"),  # Cohere
    ReasoningTags("<|channel>thought", "<channel|>"),  # Gemma 4
    # Granite 3 asks for both pairs in one sentence.
    ReasoningTags("<think>", "</think>", ("<response>", "</response>")),
    ReasoningTags("<think>", "</think>"),
    ReasoningTags("<thinking>", "</thinking>"),
    ReasoningTags("<thought>", "</thought>"),
)


def tags_of(written: str) -> ReasoningTags | None:
    """Those that all are in a template, or among the tokens of its model."""
    for tags in TAGS:
        if tags.closes in written and all(each in written for each in tags.answer):
            return tags
    return None
