"""What a failed step does to its members.

A step that raised has committed nothing, and the state of its members on the device is unknown. The
policy decides what becomes of the sessions. A second policy, ``recover``, has its place here: the
members' tokens are all on the host (``Session.tokens``), so they can be evaluated anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from ds4trio.batching.session import Session
from ds4trio.errors import BatchFailed

__all__ = ["FailurePolicy", "fail_all", "policy_named"]

FailurePolicy = Callable[[Sequence[Session], Exception], None]
"""Called between steps with the members of the failed step. Must leave each of them either invalid
or with all its tokens waiting (``Session.preempted``)."""


def fail_all(members: Sequence[Session], error: Exception) -> None:
    """Every member ends with one ``batch_failed`` error."""
    for session in members:
        session.fail(
            BatchFailed(
                f"the step that held this request and {len(members) - 1} others failed "
                f"({type(error).__name__}); no token of it was sent. Please send it again."
            )
        )


def policy_named(name: Literal["fail"]) -> FailurePolicy:
    """The policy for a value of ``--on-batch-failure``."""
    return {"fail": fail_all}[name]
