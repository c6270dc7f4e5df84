"""What reading a damaged or hostile file may raise, where a library of ours reads it."""

from __future__ import annotations

import msgspec

__all__ = ["BAD_JSON"]

BAD_JSON = (msgspec.MsgspecError, RecursionError)
"""Of decoding JSON; the second where it is nested without end."""
