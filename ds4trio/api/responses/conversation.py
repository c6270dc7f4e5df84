"""What is kept of a response, so that another one can continue it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ds4trio.api.responses.items import Item
from ds4trio.api.wire import encode

__all__ = ["Turn"]


@dataclass(frozen=True, slots=True)
class Turn:
    """A response that has ended, and what led to it. Shared between forks, never changed.

    Attributes:
        response: the final object, as its client got it.
        input: the items of its own request, each with an id.
        earlier: the items of the turns before, oldest first.
        own_bytes: of input and response, as JSON.
        bytes: of the whole conversation.
    """

    response: Mapping[str, Any]
    input: tuple[Item, ...]
    earlier: tuple[Item, ...]
    own_bytes: int
    bytes: int

    @classmethod
    def of(
        cls,
        response: Mapping[str, Any],
        input: tuple[Item, ...],
        previous: Turn | None = None,
        *,
        earlier: tuple[Item, ...] = (),
    ) -> Turn:
        """A turn after another, or the first one, or one behind items of no turn at hand."""
        own = len(encode(response)) + len(encode(input))
        before = len(encode(earlier)) if earlier else 0
        if previous is not None:
            earlier, before = previous.items, previous.bytes
        return cls(response, input, earlier, own, before + own)

    @property
    def id(self) -> str:
        """Of the response."""
        found: str = self.response["id"]
        return found

    @property
    def items(self) -> tuple[Item, ...]:
        """The whole conversation: what a response that continues this one begins with."""
        return (*self.earlier, *self.input, *self.response["output"])

    def find(self, item_id: str) -> Item | None:
        """The item of this id in the conversation, for references."""
        return next((item for item in self.items if item.get("id") == item_id), None)
