"""The states of a session, which is a slot in the batch."""

from __future__ import annotations

import enum

__all__ = ["SlotState"]


class SlotState(enum.Enum):
    """Where a session is when the steps in flight have succeeded. The transitions are::

    FREE -> PREFILLING -> PENDING -> IN_FLIGHT -> FREE | DONE
    any but DONE -> INVALID; any -> DONE
    """

    FREE = "free"
    """Holds a slot and has submitted nothing (or took the answer to its last ``eval``)."""
    PREFILLING = "prefilling"
    """Several tokens wait to be evaluated."""
    PENDING = "pending"
    """One token waits to be evaluated: a decode row."""
    IN_FLIGHT = "in flight"
    """Everything it wants is part of steps that run or wait to run."""
    DONE = "done"
    """Ended."""
    INVALID = "invalid"
    """Its step failed, and with it the state on the device."""
