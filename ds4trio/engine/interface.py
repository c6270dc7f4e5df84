"""What the batching floor knows of an engine: five names, so that others can stand in for it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from ds4trio.engine.step import EngineInfo, SamplingParams, StepItem, StepResult

__all__ = ["EngineLike"]


class EngineLike(Protocol):
    """An engine in this process, in another one, or a test's fake.

    Calls block, and come one at a time; the caller sees to that.
    """

    @property
    def info(self) -> EngineInfo:
        """Sizes that stay as they are."""
        ...

    @property
    def free_pages(self) -> int:
        """Pages of the KV cache that no sequence holds."""
        ...

    def free_pages_without(self, sequences: Collection[int]) -> int:
        """Pages that no sequence would hold if these were closed; they may share pages."""
        ...

    def open(self, sequence: int, sampling: SamplingParams, *, cache_salt: str = "") -> None:
        """Begin an empty sequence under an id that is not in use.

        It shares cached pages only with sequences of the same salt.

        Raises:
            WireError: its sampling cannot be served.
        """
        ...

    def reuse(self, sequence: int, tokens: Sequence[int]) -> int:
        """Take over what is cached of a beginning, for a sequence that is still empty.

        Returns:
            How many of the first tokens count as evaluated now; never all of them.
        """
        ...

    def close(self, sequence: int) -> None:
        """Forget a sequence and free its pages at once."""
        ...

    def eval_batch(self, items: Sequence[StepItem]) -> StepResult:
        """Evaluate one step: all of its accepted items, or, with an exception, none."""
        ...
