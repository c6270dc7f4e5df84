"""``/openapi.json`` and ``/asyncapi.json``. They say nothing secret and need no key."""

from __future__ import annotations

from quart import Blueprint, Response

from ds4trio.api.description.asyncapi import asyncapi_document
from ds4trio.api.description.openapi import openapi_document
from ds4trio.api.wire import encode

__all__ = ["description"]


def description() -> Blueprint:
    """The doors, as a blueprint."""
    blueprint = Blueprint("description", __name__)
    openapi, asyncapi = encode(openapi_document()), encode(asyncapi_document())

    @blueprint.get("/openapi.json")
    async def over_http() -> Response:
        return Response(openapi, content_type="application/json")

    @blueprint.get("/asyncapi.json")
    async def over_a_websocket() -> Response:
        return Response(asyncapi, content_type="application/json")

    return blueprint
