"""The conversations that a connection holds, so that its responses can be continued."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ds4trio.api.responses.conversation import Turn
from ds4trio.api.wire import encode

__all__ = ["MAX_KEPT", "Kept"]

MAX_KEPT = 32
"""Responses of one connection that can be continued, besides the latest of each lane."""


@dataclass(slots=True)
class _Shared:
    """Something that so many of the turns have."""

    size: int
    turns: int = 0


class Kept:
    """The latest responses of a connection, each with the conversation that it ends.

    Conversations share their items, and an item counts once. When there are too many or too
    large ones, the latest of a lane outlives all that are not, and the very latest is always there.

    Args:
        limit: bytes of all responses and items together, as JSON.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._turns: OrderedDict[str, Turn] = OrderedDict()
        self._latest: dict[str | None, str] = {}
        self._shared: dict[int, _Shared] = {}
        self._size = 0

    def __contains__(self, response_id: str) -> bool:
        return response_id in self._turns

    def find(self, response_id: str) -> Turn | None:
        """A response with what led to it, or None if it is not held."""
        if response_id in self._turns:
            self._turns.move_to_end(response_id)
        return self._turns.get(response_id)

    def keep(self, lane: str | None, turn: Turn) -> list[str]:
        """Hold a response of a lane.

        Returns:
            The responses that had to go for it.
        """
        self._turns[turn.id] = turn
        self._latest[lane] = turn.id
        for part in _parts(turn):
            shared = self._shared.get(id(part))  # a part lives as long as its turns
            if shared is None:
                shared = self._shared[id(part)] = _Shared(len(encode(part)))
                self._size += shared.size
            shared.turns += 1
        forgotten = []
        while (goes := self._one_too_many()) is not None:
            self._forget(goes)
            forgotten.append(goes)
        return forgotten

    def _one_too_many(self) -> str | None:
        latest = set(self._latest.values())
        older = next((one for one in self._turns if one not in latest), None)
        if len(self._turns) - len(latest) > MAX_KEPT:
            return older
        if self._size <= self._limit or len(self._turns) == 1:
            return None
        return older or next(iter(self._turns))

    def _forget(self, response_id: str) -> None:
        for part in _parts(self._turns.pop(response_id)):
            shared = self._shared[id(part)]
            shared.turns -= 1
            if not shared.turns:
                self._size -= shared.size
                del self._shared[id(part)]
        for lane, latest in list(self._latest.items()):
            if latest == response_id:
                del self._latest[lane]


def _parts(turn: Turn) -> tuple[Mapping[str, Any], ...]:
    return (turn.response, *turn.items)
