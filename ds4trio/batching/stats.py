"""Counts of what the coalescer did, for the log, for /metrics and for the bench."""

from __future__ import annotations

from dataclasses import dataclass

from ds4trio.batching.schedule import Plan
from ds4trio.engine.step import Evaluated, StepResult

__all__ = ["BatchingStats"]


@dataclass(slots=True)
class BatchingStats:
    """Totals since the start.

    Attributes:
        steps: steps that succeeded.
        rows: sessions in them, added up.
        prefill_tokens: prompt tokens evaluated.
        cached_tokens: prompt tokens that were in the prefix cache.
        sampled_tokens: tokens drawn.
        engine_seconds: time inside the engine.
        failed_steps: steps that raised.
        preemptions: times a session gave up its pages.
    """

    steps: int = 0
    rows: int = 0
    prefill_tokens: int = 0
    cached_tokens: int = 0
    sampled_tokens: int = 0
    engine_seconds: float = 0.0
    failed_steps: int = 0
    preemptions: int = 0
    _steps_when_idle: int = 0

    @property
    def mean_batch_size(self) -> float:
        """Sessions in a step, on average."""
        return self.rows / self.steps if self.steps else 0.0

    def stepped(self, plan: Plan, result: StepResult) -> None:
        self.steps += 1
        self.rows += len(plan.rows)
        self.prefill_tokens += sum(len(item.tokens) for _, item in plan.rows)
        self.sampled_tokens += sum(
            isinstance(outcome, Evaluated) and outcome.sampled is not None
            for outcome in result.outcomes
        )
        self.engine_seconds += result.seconds

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
