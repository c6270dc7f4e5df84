"""The scripted server's protocol: lanes over a WebSocket, responses that outlive it, and how they
are followed and cancelled over HTTP."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from typing import Any

import trio
from quart import Response, request, websocket

from tests.page.response import Event, ScriptedResponse

__all__ = ["Talk", "World", "cancel", "follow", "looks"]

MINUTE = 120
"""Events: two a second."""


class World:
    """What outlives a connection: every response, and the ``response.create`` of each."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.responses: dict[str, ScriptedResponse] = {}
        self.bodies: list[dict[str, Any]] = []
        self.sockets = 0
        self.vanished: set[str] = set()
        self._nursery = nursery

    def begin(self, body: dict[str, Any]) -> ScriptedResponse:
        known = self.responses.get(body.get("previous_response_id", ""))
        conversation = [*(known.conversation if known else []), *body["input"]]
        response = ScriptedResponse(f"resp_{len(self.responses) + 1}", conversation)
        self.responses[response.id] = response
        self._nursery.start_soon(response.run)
        return response


class Talk:
    """One WebSocket."""

    def __init__(self, world: World) -> None:
        world.sockets += 1
        self._world = world
        self._lanes: dict[str, ScriptedResponse] = {}
        self._sending = trio.Lock()

    async def serve(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                message = json.loads(await websocket.receive())
                lane = message["stream_id"]
                if message["type"] == "response.cancel":
                    if lane not in self._lanes or not self._lanes[lane].cancel():
                        await self._refuse(lane, "response_cancel_not_active", "Nothing runs.")
                    continue
                if await self._create(lane, message, nursery):
                    await self._close(nursery)

    async def _create(self, lane: str, body: dict[str, Any], nursery: trio.Nursery) -> bool:
        """True where the script closes the connection instead of answering."""
        world = self._world
        world.bodies.append(body)
        text = [item for item in body["input"] if item["role"] == "user"][-1]["content"]
        previous = body.get("previous_response_id")
        if "vanish" in text and not ("once" in text and text in world.vanished):
            world.vanished.add(text)
            return True
        if previous is not None and (previous not in world.responses or "forgotten" in text):
            await self._refuse(lane, "previous_response_not_found", f"{previous} is not known.")
        elif "too long" in text:
            await self._refuse(lane, "context_length_exceeded", "9000 tokens, 8192 fit.")
        else:
            self._lanes[lane] = world.begin(body)
            nursery.start_soon(self._carry, lane, self._lanes[lane], nursery)
        return False

    async def _carry(self, lane: str, response: ScriptedResponse, nursery: trio.Nursery) -> None:
        async for event in response.follow(-1):
            if event["type"] == "drop":
                return await self._close(nursery)
            await self._send({**event, "stream_id": lane})

    async def _close(self, nursery: trio.Nursery) -> None:
        await websocket.close(1011)
        nursery.cancel_scope.cancel()

    async def _send(self, event: Event) -> None:
        async with self._sending:
            await websocket.send(json.dumps(event))

    async def _refuse(self, lane: str, code: str, message: str) -> None:
        error = {"type": "invalid_request_error", "code": code, "message": message}
        await self._send({"type": "error", "status": 400, "error": error, "stream_id": lane})


def follow(world: World, response_id: str) -> Response:
    """``GET /v1/responses/{id}?stream=true&starting_after=N``"""
    response = world.responses.get(response_id)
    if response is None:
        body = {"error": {"code": "not_found", "message": "No such response."}}
        return Response(json.dumps(body), 404, content_type="application/json")
    assert request.args["stream"] == "true"
    events = response.follow(int(request.args.get("starting_after", -1)))
    return _stream(event async for event in events if event["type"] != "drop")


def cancel(world: World, response_id: str) -> tuple[dict[str, Any], int]:
    """``POST /v1/responses/{id}/cancel``"""
    response = world.responses.get(response_id)
    if response is None:
        return {"error": {"code": "not_found", "message": "No such response."}}, 404
    response.cancel()
    return {"id": response_id}, 200


async def looks() -> Response:
    """As ``/v1/server/events``, of a server whose last minute is told at once: its batches grew and
    shrank, and in the end had three answers each, at 60 tokens a second. Nothing changes then."""

    async def events() -> AsyncIterator[Event]:
        rows = 0
        for number in range(MINUTE + 1):
            batch = 3 if number > MINUTE - 3 else round(4.5 + 3.5 * math.sin(number / 9))
            rows += 10 * batch
            yield {
                "time": number / 2,
                "ready": True,
                "sessions": 3,
                "max_sessions": 16,
                "waiting": 2,
                "free_pages": 60,
                "total_pages": 100,
                "page_size": 16,
                "context_length": 8192,
                "steps": 10 * number,
                "rows": rows,
                "prefill_tokens": 0,
                "cached_tokens": 77,
                "sampled_tokens": rows,
                "preemptions": 0,
                "failed_steps": 0,
            }
        await trio.sleep_forever()

    return _stream(events())


def _stream(events: AsyncIterator[Event]) -> Response:
    async def body() -> AsyncIterator[bytes]:
        async for event in events:
            yield f"event: {event.get('type', 'look')}\n".encode()
            yield f"data: {json.dumps(event)}\n\n".encode()

    response = Response(body(), content_type="text/event-stream")
    response.timeout = None
    return response
