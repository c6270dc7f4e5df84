"""How slow work on models reports itself."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Progress", "silent"]


class Progress(Protocol):
    """Called with what is being done now.

    Args of a call:
        what: a few words for people, such as "unpacking the model".
        done: how much of it is done.
        total: how much there is in all, in the same unit; None while that is not known. The step
            is over when done equals total.
    """

    def __call__(self, what: str, done: int, total: int | None) -> None: ...


def silent(what: str, done: int, total: int | None) -> None:
    """Report to nobody."""
