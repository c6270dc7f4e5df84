"""``GET /v1/responses`` as a WebSocket, OpenAI's Responses WebSocket mode. See ``lanes/``."""

from __future__ import annotations

import logging

from quart import Blueprint, Response, websocket

from ds4trio.api.auth import SUBPROTOCOL
from ds4trio.api.responses.lanes.connection import Connection
from ds4trio.api.service import Service
from ds4trio.api.wire import error_response
from ds4trio.errors import ClientStalled, UpgradeRequired, WireError

__all__ = ["responses_ws"]

_log = logging.getLogger(__name__)


def responses_ws(service: Service) -> Blueprint:
    """The door, as a blueprint."""
    blueprint = Blueprint("responses_ws", __name__)

    @blueprint.get("/v1/responses")
    async def not_a_websocket() -> Response:
        response = error_response(
            UpgradeRequired(
                "GET /v1/responses is a WebSocket (client.responses.connect()); "
                "over plain HTTP use POST"
            )
        )
        response.headers["Upgrade"] = "websocket"
        return response

    @blueprint.websocket("/v1/responses")
    async def responses() -> Response | None:
        try:
            _ = service.generator
        except WireError as error:
            return error_response(error)
        socket = websocket._get_current_object()  # type: ignore[attr-defined]
        chosen = SUBPROTOCOL if SUBPROTOCOL in socket.requested_subprotocols else None
        await socket.accept(subprotocol=chosen)
        try:
            await Connection(service, socket).serve()
        except* ClientStalled as stalled:
            _log.info("%s", stalled.exceptions[0])
        return None

    return blueprint
