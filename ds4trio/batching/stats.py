"""Counts of what the coalescer did, for the log, for /metrics and for the bench."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BatchingStats"]


@dataclass(slots=True)
class BatchingStats:
    """Totals since the start.

    Attributes:
        steps: steps that succeeded, and were wanted by somebody to the end.
        rows: sessions in them that wanted them, added up.
        prefill_tokens: prompt tokens evaluated.
        cached_tokens: prompt tokens that were in the prefix cache.
        sampled_tokens: tokens drawn for sessions that wanted them.
        draft_tokens: guesses that were verified for them.
        accepted_tokens: those of the tokens that came of guesses.
        engine_seconds: time inside the engine.
        failed_steps: steps that raised.
        retries: times a session was evaluated anew after that.
        preemptions: times a session gave up its pages.
    """

    steps: int = 0
    rows: int = 0
    prefill_tokens: int = 0
    cached_tokens: int = 0
    sampled_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    engine_seconds: float = 0.0
    failed_steps: int = 0
    retries: int = 0
    preemptions: int = 0
    _steps_when_idle: int = 0

    @property
    def mean_batch_size(self) -> float:
        """Sessions in a step, on average."""
        return self.rows / self.steps if self.steps else 0.0

    def stepped(self, *, rows: int, prefilled: int, sampled: int, seconds: float) -> None:
        """Count a step that succeeded, and of its rows those that somebody still wanted."""
        self.steps += rows > 0
        self.rows += rows
        self.prefill_tokens += prefilled
        self.sampled_tokens += sampled
        self.engine_seconds += seconds

    def guessed(self, drafted: int, taken: int) -> None:
        """Count a row's guesses, and the tokens that its session took of the row."""
        self.draft_tokens += drafted
        self.accepted_tokens += max(taken - 1, 0)

    def went_idle(self) -> bool:
        """True once after each busy stretch."""
        was_busy = self.steps > self._steps_when_idle
        self._steps_when_idle = self.steps
        return was_busy

    def summary(self) -> str:
        return (
            f"{self.sampled_tokens} tokens in {self.steps} steps so far, "
            f"mean batch {self.mean_batch_size:.1f}, "
            f"{self.preemptions} preemptions, {self.failed_steps} failed steps"
        )
