"""A server that is broken or means ill: whatever a question asks, it answers with the events that a
test gives it."""

from __future__ import annotations

import json
from typing import Any

from playwright.sync_api import WebSocketRoute

from tests.page.response import Event
from tests.page.visit import Visit

__all__ = ["answer_oddly", "said"]


def said(text: str, **fields: Any) -> Event:
    return {"type": "response.output_text.delta", "delta": text, **fields}


def answer_oddly(reader: Visit, answers: dict[str, list[Event]]) -> None:
    """From now on the page's sockets lead here. Events get the lane and, unless they have one, a
    ``sequence_number``; after them comes ``response.completed``, unless they have an end.

    Args:
        answers: by question; all others are answered with ``fine``.
    """

    def talk(socket: WebSocketRoute) -> None:
        def answer(message: str | bytes) -> None:
            body = json.loads(message)
            if body["type"] != "response.create":
                return
            first: Event = {"type": "response.created", "response": {"id": "resp_odd"}}
            last: Event = {"type": "response.completed", "response": {}}
            events = answers.get(body["input"][-1]["content"], [said("fine")])
            for number, event in enumerate([first, *events, last]):
                told = {"sequence_number": number, "stream_id": body["stream_id"], **event}
                socket.send(json.dumps(told))

        socket.on_message(answer)

    reader.page.route_web_socket("**/v1/responses", talk)
    reader.page.reload()
