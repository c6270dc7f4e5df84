"""A function that a model may call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Tool"]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call.

    Attributes:
        name: letters, digits, ``_``, ``-`` and ``.``.
        description: for the model.
        parameters: a JSON schema of its arguments, which are an object.
        strict: a call that is made freely must fit the schema too.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False

    def as_message(self) -> dict[str, Any]:
        """In the form that chat templates take."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters) or {"type": "object", "properties": {}},
        }
        return {"type": "function", "function": function}
