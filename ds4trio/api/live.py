"""``GET /v1/server/events``: how busy the server is, as server-sent events, for a panel to draw.

Each event has the gauges of the moment and the counts since the start, so that whoever misses some
loses nothing: a rate is the difference of two counts by the time between them.
"""

from __future__ import annotations

import time

import trio
from quart import Blueprint, Response

from ds4trio.api.service import Service
from ds4trio.api.sse import EventStreamBody, SendEvent, event_stream
from ds4trio.api.wire import encode
from ds4trio.batching.coalescer import Coalescer

__all__ = ["EVERY", "live"]

EVERY = 0.5
"""Seconds between two looks; nothing is sent for one that finds what the last one found."""


def live(service: Service) -> Blueprint:
    """The door, as a blueprint."""
    blueprint = Blueprint("live", __name__)

    @blueprint.get("/v1/server/events")
    async def events() -> Response:
        coalescer = service.generator.coalescer

        async def produce(send: SendEvent) -> None:
            sent: dict[str, object] | None = None
            while not service.stopping.is_set() and not service.failed.is_set():
                found = _look(coalescer, service.settings.max_sessions)
                if found != sent:
                    sent = found
                    await send(encode({"time": time.time(), **found}))
                with trio.move_on_after(EVERY):
                    await service.stopping.wait()

        return event_stream(EventStreamBody(produce, send_timeout=service.settings.send_timeout))

    return blueprint


def _look(coalescer: Coalescer, max_sessions: int) -> dict[str, object]:
    stats, info = coalescer.stats, coalescer.info
    return {
        "ready": coalescer.ready,
        "sessions": coalescer.sessions,
        "max_sessions": max_sessions,
        "waiting": coalescer.waiting,
        "free_pages": coalescer.free_pages,
        "total_pages": info.total_pages,
        "page_size": info.page_size,
        "context_length": info.longest_sequence,
        "steps": stats.steps,
        "rows": stats.rows,
        "prefill_tokens": stats.prefill_tokens,
        "cached_tokens": stats.cached_tokens,
        "sampled_tokens": stats.sampled_tokens,
        "preemptions": stats.preemptions,
        "failed_steps": stats.failed_steps,
    }
