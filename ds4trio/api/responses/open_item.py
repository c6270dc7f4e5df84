"""The item of a response that is being written."""

from __future__ import annotations

from typing import Any

from ds4trio.api.responses.items import Item, new_id

__all__ = ["OpenItem"]

_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc"}


class OpenItem:
    """The item of a response that grows.

    Args:
        kind: ``message``, ``reasoning`` or ``function_call``.
        output_index: its place in the output.
        call_id, name: of a call.

    Attributes:
        texts: of its deltas.
        logprobs: of a message's tokens, in this API's shape.
    """

    def __init__(self, kind: str, output_index: int, call_id: str = "", name: str = "") -> None:
        self.kind = kind
        self.output_index = output_index
        self.id = new_id(_PREFIXES[kind])
        self.call_id = call_id
        self.name = name
        self.texts: list[str] = []
        self.logprobs: list[dict[str, Any]] = []

    def part(self, text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        """The one part of its content."""
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def item(self, status: str, *, empty: bool = False) -> Item:
        """As it is now; ``empty`` as it is announced, before it has content."""
        text = "".join(self.texts)
        item: Item = {"id": self.id, "type": self.kind, "status": status}
        if self.kind == "function_call":
            return {**item, "call_id": self.call_id, "name": self.name, "arguments": text}
        content = [] if empty else [self.part(text, self.logprobs)]
        if self.kind == "reasoning":
            return {**item, "summary": [], "content": content, "encrypted_content": None}
        return {**item, "role": "assistant", "content": content}
