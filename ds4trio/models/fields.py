"""Fields of files that say what a model is like, read with care."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from ds4trio.errors import ModelUnavailable

__all__ = ["FieldReader", "refuse", "token_ids"]

LARGEST = 2**53
"""Far above every size, and a double still holds it. Numbers from files must not overflow later."""


def token_ids(value: Any) -> tuple[int, ...]:
    """A token id field as ids: an integer, a list of them, or nothing."""
    values = value if isinstance(value, list | tuple) else [value]
    return tuple(v for v in values if isinstance(v, int) and not isinstance(v, bool) and v >= 0)


class FieldReader:
    """Typed access to a mapping that came from a file; a missing key and null are the same."""

    def __init__(self, values: Mapping[str, Any], *, prefix: str = "") -> None:
        self.values = values
        self.prefix = prefix

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            refuse(f"{self.prefix}{key} is {value!r}; it must be an integer")
        if abs(value) > LARGEST:
            refuse(f"{self.prefix}{key} is too large a number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            refuse(f"{self.prefix}{key} is {value!r}; it must be a number")
        if not -LARGEST <= value <= LARGEST:  # which is false of NaN
            refuse(f"{self.prefix}{key} is no number that a model can have")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        return bool(self._value(key, default))

    def optional(self, key: str) -> float | None:
        return None if self.values.get(self.prefix + key) is None else self.number(key)

    def _value(self, key: str, default: float | None) -> Any:
        value = self.values.get(self.prefix + key)
        if value is None:
            value = default
        if value is None:
            refuse(f"{self.prefix}{key} is missing")
        return value


def refuse(why: str) -> NoReturn:
    """Say that the model cannot be used, and why. Always raises ``ModelUnavailable``."""
    raise ModelUnavailable(f"This model cannot be used: {why}.")
