"""The events of a stored response once more, from any of them."""

from __future__ import annotations

from ds4trio.api.responses.stored.database import Record
from ds4trio.api.wire import encode
from ds4trio.errors import InternalError, InvalidRequest

__all__ = ["check_place", "events_after"]


def check_place(after: int, said: int) -> None:
    """Refuse a place in a stream that nobody can have seen.

    Args:
        said: how many events there are so far; 0 where none were kept.

    Raises:
        InvalidRequest: the number ``after`` is beyond them.
    """
    if said and after >= said:
        raise InvalidRequest(
            f"starting_after is beyond the last event so far, which is {said - 1}",
            param="starting_after",
        )


def events_after(record: Record, after: int) -> list[bytes]:
    """Its events as JSON, those behind number ``after``.

    Of a response that a server took with it when it died none were kept: whoever follows it is told
    that it has failed, as the next event.

    Raises:
        InternalError: it is still being written, and not by this server.
    """
    if not record.ended:
        raise InternalError("the response is being written by another server")
    if record.events:
        return [bytes(event) for event in record.events[after + 1 :]]
    kinds = ["response.created", "response.failed"] if after < 0 else ["response.failed"]
    return [
        encode({"type": kind, "sequence_number": after + 1 + number, "response": record.response})
        for number, kind in enumerate(kinds)
    ]
