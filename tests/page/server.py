"""A small server that speaks the page's protocol and answers by script (see ``script.py``), for
what a real model cannot be asked to do.

Run as ``python -m tests.page.server PORT``; port 0 takes a free one. The first line on stdout is
the URL. Beyond the answers of ``script.py`` a question may be refused:

    vanish       the connection is closed before the first event, each time
    vanish once  the same, for the first time only
    too long     refused with the code ``context_length_exceeded``
    forgotten    its ``previous_response_id`` is not known any more
"""

from __future__ import annotations

import argparse
import mimetypes
from pathlib import Path
from typing import Any

import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from quart import Response, request, websocket
from quart_trio import QuartTrio

from tests.page.wire import Talk, World, cancel, follow, looks

__all__ = ["create_scripted_app"]

STATIC = Path(__file__).parents[2] / "static" / "dist"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def create_scripted_app(world: World, key: str | None, loading: bool) -> QuartTrio:
    """The page's files and the paths it asks; ``POST /ready`` ends the loading, ``GET /bodies``
    has the ``response.create`` messages that came."""
    app = QuartTrio(__name__, static_folder=None)
    state = {"loading": loading}

    def key_is_missing() -> bool:
        if key is None:
            return False
        offered = websocket.requested_subprotocols if websocket else []
        header = request.headers.get("Authorization") if request else None
        return header != f"Bearer {key}" and f"openai-insecure-api-key.{key}" not in offered

    @app.before_request
    async def check() -> Any:
        if request.path.startswith("/v1/") and key_is_missing():
            return {"error": {"code": "invalid_api_key", "message": "Wrong key."}}, 401
        return None

    @app.get("/")
    async def index() -> Response:
        return await page_file("index.html")

    @app.get("/<name>")
    async def page_file(name: str) -> Response:
        path = STATIC / name
        if not path.is_file():
            return Response("not found", 404)
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-store"}
        return Response(path.read_bytes(), headers=headers, content_type=kind)

    @app.get("/health")
    async def health() -> tuple[dict[str, str], int]:
        return ({"status": "loading"}, 503) if state["loading"] else ({"status": "ok"}, 200)

    @app.post("/ready")
    async def ready() -> dict[str, str]:
        state["loading"] = False
        return {}

    @app.get("/bodies")
    async def bodies() -> dict[str, Any]:
        return {"bodies": world.bodies, "sockets": world.sockets}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        model = {"id": "scripted", "context_length": 8192}
        return {"object": "list", "data": [model]}

    app.get("/v1/server/events")(looks)

    @app.get("/v1/responses/<response_id>")
    async def followed(response_id: str) -> Response:
        return follow(world, response_id)

    @app.post("/v1/responses/<response_id>/cancel")
    async def cancelled(response_id: str) -> tuple[dict[str, Any], int]:
        return cancel(world, response_id)

    @app.websocket("/v1/responses")
    async def responses() -> Response | None:
        if state["loading"]:
            return Response("loading", 503)
        if key_is_missing():
            return Response("key", 401)
        offered = websocket.requested_subprotocols
        await websocket.accept(subprotocol="realtime" if "realtime" in offered else None)
        await Talk(world).serve()
        return None

    return app


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--key")
    parser.add_argument("--loading", action="store_true")
    arguments = parser.parse_args()
    config = Config()
    config.bind = [f"127.0.0.1:{arguments.port}"]
    config.graceful_timeout = 0.1
    async with trio.open_nursery() as nursery:
        world = World(nursery)
        app = create_scripted_app(world, arguments.key, arguments.loading)
        urls = await nursery.start(serve, app, config)
        print(urls[0], flush=True)


if __name__ == "__main__":
    trio.run(main)
