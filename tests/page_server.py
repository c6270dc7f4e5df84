"""A small server that speaks the page's protocol and answers by script, for what a real model
cannot be asked to do: hostile text, faults at a chosen moment, a slow and endless answer.

Run as ``python -m tests.page_server PORT [--key KEY] [--loading]``; port 0 takes a free one. The
first line on stdout is the URL. What the last user message contains decides the answer:

    hostile     markup that would run if it were taken for markup
    endless     a token every few milliseconds until it is cancelled
    stuck       a few tokens, then nothing, and no ear for a cancel
    vanish      the connection is closed before the first event, each time
    vanish once the same, for the first time only
    drop        some tokens, then the connection is closed
    fail        some tokens, then ``response.failed`` with code ``batch_failed``
    too long    refused with code ``context_length_exceeded``, unless it stands alone
    burst       many tokens as fast as they go
    other       one line that tells what the server was sent
"""

from __future__ import annotations

import argparse
import itertools
import json
import mimetypes
from pathlib import Path
from typing import Any

import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from quart import Response, request, websocket
from quart_trio import QuartTrio

__all__ = ["HOSTILE", "POLICY", "create_fake_app"]

STATIC = Path(__file__).parent.parent / "static"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HOSTILE = (
    "<img src=x onerror=\"window.pwned='img'\"><script>window.pwned='script'</script>"
    "</p><style>body{display:none}</style><a href=\"javascript:window.pwned='link'\">go</a>"
    "\n    kept   spaces"
)


vanished: set[str] = set()


class Conversation:
    """One connection: what it was sent, what it remembers, and the answer being given."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}
        self.numbers = itertools.count(1)
        self.running: trio.CancelScope | None = None
        self.deaf = False

    async def talk(self) -> None:
        send, receive = trio.open_memory_channel[dict[str, Any]](16)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.answer_all, receive, nursery.cancel_scope)
            async with send:
                while True:
                    message = json.loads(await websocket.receive())
                    if message["type"] == "response.create":
                        await send.send(message)
                    elif self.running is None:
                        await self.refuse("response_cancel_not_active", "Nothing is running.")
                    elif not self.deaf:
                        self.running.cancel()

    async def answer_all(
        self, requests: trio.MemoryReceiveChannel[dict[str, Any]], everything: trio.CancelScope
    ) -> None:
        async for message in requests:
            if await self.answer(message):
                await websocket.close(1011)
                everything.cancel()

    async def answer(self, message: dict[str, Any]) -> bool:
        """Gives one answer; True where the script closes the connection instead of ending it."""
        items = message["input"]
        text = items[-1]["content"]
        previous = message.get("previous_response_id")
        if "vanish" in text and not ("once" in text and text in vanished):
            vanished.add(text)
            return True
        if previous is not None and (previous not in self.known or "forgotten" in text):
            await self.refuse("previous_response_not_found", f"{previous} is not known here.")
            return False
        if "too long" in text and len(items) > 3:
            await self.refuse("context_length_exceeded", "9000 tokens do not fit into 8192.")
            return False
        remembered = self.known.get(previous or "", 0) + len(items)
        answer = Answer(f"resp_{next(self.numbers)}")
        self.deaf = "stuck" in text
        with trio.CancelScope() as self.running:
            await answer.begin()
            sent = f"{len(items)} sent, {remembered} known, {'chained' if previous else 'whole'}"
            await answer.say(text, sent)
        self.running = None
        if "drop" in text:
            return True
        self.known[answer.id] = remembered + 1
        await answer.end("fail" in text)
        return False

    async def refuse(self, code: str, message: str) -> None:
        error = {"type": "invalid_request_error", "code": code, "message": message, "param": None}
        event = {**error, "type": "error", "status": 400, "error": error, "sequence_number": 0}
        await websocket.send(json.dumps(event))


class Answer:
    """The events of one response, in order."""

    def __init__(self, response_id: str) -> None:
        self.id = response_id
        self.text = ""
        self.tokens = 0
        self.numbers = itertools.count()
        self.finished = False

    async def send(self, kind: str, **fields: Any) -> None:
        event = {"type": kind, "sequence_number": next(self.numbers), **fields}
        with trio.CancelScope(shield=True):  # a cancel falls between events, never into one
            await websocket.send(json.dumps(event))

    async def begin(self) -> None:
        await self.send("response.created", response={"id": self.id, "status": "in_progress"})
        await self.send("response.in_progress", response={"id": self.id, "status": "in_progress"})
        await self.send("response.output_item.added", output_index=0, item={"id": "msg_1"})
        await self.send("response.content_part.added", **self.place, part={"type": "output_text"})

    @property
    def place(self) -> dict[str, Any]:
        return {"item_id": "msg_1", "output_index": 0, "content_index": 0}

    async def say(self, script: str, sent: str) -> None:
        if "endless" in script or "stuck" in script:
            for number in itertools.count(1) if "endless" in script else range(1, 4):
                await self.delta(f"word{number}{' ' if number % 12 else chr(10)}")
                await trio.sleep(0.004)
            await trio.sleep_forever()
        if "burst" in script:
            for number in range(6000):
                await self.delta(f"w{number} ")
        elif "hostile" in script:
            for start in range(0, len(HOSTILE), 7):
                await self.delta(HOSTILE[start : start + 7])
        else:
            for word in f"You said: {script}\n{sent}".split(" "):
                await self.delta(f"{word} ")
                await trio.sleep(0.002)
        self.finished = True

    async def delta(self, text: str) -> None:
        self.text += text
        self.tokens += 1
        extra = {"tokens": 1, "batch_size": 4}
        await self.send(
            "response.output_text.delta", **self.place, delta=text, logprobs=[], ds4trio=extra
        )

    async def end(self, failed: bool) -> None:
        status = "failed" if failed else "completed" if self.finished else "incomplete"
        response: dict[str, Any] = {
            "id": self.id,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "usage": {"output_tokens": self.tokens},
            "ds4trio": {
                "queue_seconds": 0.01,
                "first_token_seconds": 0.25,
                "decode_seconds": 1.5,
                "tokens_per_second": 42.5,
                "mean_batch_size": 3.6,
            },
        }
        if failed:
            response["error"] = {
                "code": "batch_failed",
                "message": "The batch of this step failed.",
            }
        else:
            await self.send("response.output_text.done", **self.place, text=self.text)
            await self.send("response.output_item.done", output_index=0, item={"id": "msg_1"})
        if status == "incomplete":
            response["incomplete_details"] = {"reason": "cancelled"}
        await self.send(f"response.{status}", response=response)


def create_fake_app(key: str | None, loading: bool) -> QuartTrio:
    """The page's files and the three paths it asks; ``POST /ready`` ends the loading."""
    app = QuartTrio(__name__, static_folder=None)
    state = {"loading": loading}

    def key_is_missing() -> bool:
        if key is None:
            return False
        offered = websocket.requested_subprotocols if websocket else []
        header = request.headers.get("Authorization") if request else None
        return header != f"Bearer {key}" and f"openai-insecure-api-key.{key}" not in offered

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

    @app.get("/v1/models")
    async def models() -> tuple[dict[str, Any], int]:
        if key_is_missing():
            return {"error": {"code": "invalid_api_key", "message": "Wrong key."}}, 401
        return {"object": "list", "data": [{"id": "scripted"}]}, 200

    @app.websocket("/v1/responses")
    async def responses() -> Response | None:
        if state["loading"]:
            return Response("loading", 503)
        if key_is_missing():
            return Response("key", 401)
        offered = websocket.requested_subprotocols
        await websocket.accept(subprotocol="realtime" if "realtime" in offered else None)
        await Conversation().talk()
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
    app = create_fake_app(arguments.key, arguments.loading)
    async with trio.open_nursery() as nursery:
        urls = await nursery.start(serve, app, config)
        print(urls[0], flush=True)


if __name__ == "__main__":
    trio.run(main)
