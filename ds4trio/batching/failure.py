"""What a failed step does to its members.

A step that raised has committed nothing, and the state of its members on the device is unknown. The
policy decides what becomes of the sessions: all of their tokens are on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from ds4trio.batching.session import Session
from ds4trio.errors import BatchFailed, EngineDied, EngineLost, StepFailed

__all__ = ["FailurePolicy", "fail_all", "policy_named", "recover"]

LONE_DEATHS = 3
"""How often the engine's process dies with one request, tried by itself at one place, until that is
the request's fault. Whoever kills it from outside (a person, the system for want of memory) may hit
the same request twice; what kills it by what it asks does so every time."""

FailurePolicy = Callable[[Sequence[Session], Exception], None]
"""Called between steps with the members of the failed step. Must leave each of them either invalid
or with all its tokens waiting (``Session.retry``)."""


def fail_all(members: Sequence[Session], error: Exception) -> None:
    """Every member ends with one ``batch_failed`` error."""
    for session in members:
        session.fail(
            BatchFailed(
                f"the step that held this request and {len(members) - 1} others failed "
                f"({_kind(error)}); no token of it was sent. Please send it again."
            )
        )


def recover(members: Sequence[Session], error: Exception) -> None:
    """Every member is evaluated anew, each by itself until it is beyond where the step failed.

    One that fails when it is by itself is the culprit and ends with a ``batch_failed`` error; when
    the engine's process died, after ``LONE_DEATHS`` of them. Failures therefore bring every member
    further or end one, and nobody waits forever.
    """
    if len(members) == 1 and members[0].suspect_until is not None:
        (suspect,) = members
        died = isinstance(error, EngineDied | EngineLost)
        suspect.lone_deaths += died
        if not died or suspect.lone_deaths >= LONE_DEATHS:
            again = f"failed again{f' {LONE_DEATHS} times' if died else ''} ({_kind(error)})"
            suspect.fail(
                BatchFailed(
                    f"a step that held this request failed, and {again} when the request was tried "
                    "by itself. Nothing that was sent before is lost."
                )
            )
            return
    for session in members:
        session.retry()


def policy_named(name: Literal["recover", "fail"]) -> FailurePolicy:
    """The policy for a value of ``--on-batch-failure``."""
    return {"recover": recover, "fail": fail_all}[name]


def _kind(error: Exception) -> str:
    return error.kind if isinstance(error, StepFailed) else type(error).__name__
