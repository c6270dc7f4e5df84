"""Progress of slow work, drawn on the terminal's error stream."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

__all__ = ["TerminalProgress"]


class TerminalProgress:
    """A ``ds4trio.models.progress.Progress``: one line for each step.

    A context manager. Where the error stream is no terminal, a step is named once, without a bar.
    """

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._steps: dict[str, TaskID] = {}

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """Show that this much of a step is done."""
        if what not in self._steps:
            self._steps[what] = self._bars.add_task(what, total=total)
            if not self._console.is_terminal:
                self._console.print(what, highlight=False)
        self._bars.update(self._steps[what], completed=done, total=total)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()
