"""What the floors know of an engine and of its runner, so that others can stand in for them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from ds4trio.engine.step import Command, EngineInfo, Ran, SamplingParams, Step, StepItem, StepResult

__all__ = ["EngineLike", "RunnerLike"]


class EngineLike(Protocol):
    """An engine as the batching floor sees it.

    ``run`` blocks and is for worker threads. Everything else only keeps books, takes no time worth
    mentioning, and is called by one thread, whether steps run meanwhile or not.

    A step goes through ``prepare``, ``run``, and then ``commit`` or ``abandon``. The next one may
    be prepared before, on the assumption that those before it succeed; two threads then run both
    at the same time, and they are carried out in the order in which they were prepared. Steps are
    committed in that order too. When one fails, those prepared after it are not carried out
    (``StepVoid``), and all of them must be abandoned before anything else is prepared.
    """

    @property
    def info(self) -> EngineInfo:
        """Sizes that stay as they are."""
        ...

    @property
    def ready(self) -> bool:
        """False from its death until it has been started again, which a step does."""
        ...

    @property
    def free_pages(self) -> int:
        """Pages of the KV cache that no sequence holds."""
        ...

    def free_pages_without(self, sequences: Collection[int]) -> int:
        """Pages that no sequence would hold if these were closed; they may share pages."""
        ...

    def open(
        self, sequence: int, sampling: SamplingParams, *, cache_salt: str = "", adapter: str = ""
    ) -> None:
        """Begin an empty sequence under an id that is not in use.

        It shares cached pages only with sequences of the same salt and the same adapter.

        Raises:
            WireError: its sampling cannot be served.
        """
        ...

    def reuse(self, sequence: int, tokens: Sequence[int]) -> int:
        """Take over what is cached of a beginning, or more of it, for a sequence that has evaluated
        nothing itself.

        Returns:
            How many of the first tokens count as evaluated now; never all of them.
        """
        ...

    def close(self, sequence: int) -> None:
        """Forget a sequence and free its pages at once, even while a step of it runs.

        Whoever gets the pages uses them in a later step, when that one is over.
        """
        ...

    def prepare(self, items: Sequence[StepItem]) -> Step:
        """Check a step and give its sequences their pages. Items at fault are refused alone."""
        ...

    def run(self, step: Step) -> Ran:
        """Carry a step out. Blocks. Every step that was prepared must be run, or be abandoned.

        Raises:
            StepVoid: one before it failed, or the engine was stopped.
            EngineDied: nothing is left of any sequence; they must all be closed.
            EngineLost: moreover, no step can be run any more.
            Exception: whatever the device raised. Nothing of the step counts.
        """
        ...

    def commit(self, step: Step, ran: Ran) -> StepResult:
        """The step has been carried out, and counts: one outcome per item."""
        ...

    def abandon(self, step: Step) -> None:
        """The step failed or was not run: its sequences are as they were before it."""
        ...

    def prepare_grammar(self, grammar: str) -> None:
        """As ``RunnerLike.prepare_grammar``."""
        ...

    def watch(self) -> bool:
        """As ``RunnerLike.watch``. Blocks; for a worker thread."""
        ...

    def interrupt(self) -> bool:
        """As ``RunnerLike.interrupt``."""
        ...

    def stop(self) -> None:
        """Run no more steps, and end what belongs to the engine. Blocks; any thread may call it.

        A step that runs is cut short where that is possible.
        """
        ...


class RunnerLike(Protocol):
    """What carries out commands, in this process or in another one."""

    @property
    def info(self) -> EngineInfo:
        """Sizes that stay as they are."""
        ...

    @property
    def ready(self) -> bool:
        """False from its death until it has been started again, which a command does."""
        ...

    def run(self, command: Command) -> Ran:
        """Carry a command out, after those with lower numbers. Two threads may be in here.

        Raises what ``EngineLike.run`` raises.
        """
        ...

    def leave_out(self, number: int) -> None:
        """The command of this number does not come, if it has not come: go on without it."""
        ...

    def prepare_grammar(self, grammar: str) -> None:
        """A sequence with this grammar will come: compile it beside the steps that run meanwhile.

        It need not be asked for, but then rows wait for it. Any thread may call it.
        """
        ...

    def watch(self) -> bool:
        """Wait until the runner has died, whether it had anything to do or not.

        Returns:
            False when it was stopped instead. One that is being started again is waited for first.
        """
        ...

    def interrupt(self) -> bool:
        """End a command that takes too long: it fails with ``EngineDied``.

        Returns:
            Whether that is possible here.
        """
        ...

    def stop(self) -> None:
        """Carry out nothing more. Blocks until whatever belongs to it has ended."""
        ...
