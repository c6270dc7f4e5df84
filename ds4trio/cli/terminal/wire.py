"""What the terminal chat reads of the events of the Responses WebSocket; the rest is ignored.

Shapes as in OpenAI's Responses API; ``ds4trio`` is this server's own extension, so it is optional.
"""

from __future__ import annotations

import msgspec

__all__ = [
    "DeltaEvent",
    "ErrorBody",
    "ErrorEvent",
    "Event",
    "IncompleteDetails",
    "ResponseBody",
    "ResponseEvent",
    "Timings",
    "Usage",
]


class Event(msgspec.Struct):
    type: str


class DeltaEvent(msgspec.Struct):
    delta: str


class ErrorBody(msgspec.Struct):
    code: str | None = None
    type: str | None = None
    message: str = ""


class ErrorEvent(msgspec.Struct):
    error: ErrorBody


class Usage(msgspec.Struct):
    output_tokens: int


class IncompleteDetails(msgspec.Struct):
    reason: str


class Timings(msgspec.Struct):
    tokens_per_second: float | None = None
    mean_batch_size: float | None = None


class ResponseBody(msgspec.Struct):
    id: str = ""
    usage: Usage | None = None
    error: ErrorBody | None = None
    incomplete_details: IncompleteDetails | None = None
    ds4trio: Timings | None = None


class ResponseEvent(msgspec.Struct):
    response: ResponseBody
