"""``ds4trio serve`` with the default model, and what a reader can find out beside the page."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, FilePayload, Page, WebSocket, expect

from ds4trio.models.default import DEFAULT_MODEL
from tests.page.visit import Visit, profile, visiting
from tests.serve_check import started, wait_until_ready

__all__ = ["RealServer", "RealVisit", "real_visit"]

REMEMBER_SOCKETS = """
window.sockets = [];
window.WebSocket = class extends WebSocket {
  constructor(...given) {
    super(...given);
    window.sockets.push(this);
  }
};
"""

STORED_TEXT = """(id) => new Promise((resolve) => {
  const opening = indexedDB.open("ds4trio");
  opening.onsuccess = () => {
    const all = opening.result.transaction("messages").objectStore("messages").getAll();
    all.onsuccess = () => {
      opening.result.close();
      resolve(all.result.find(({ responseId }) => responseId === id)?.text ?? null);
    };
  };
})"""


class RealServer:
    """A server that can be ended at once and started again at the same address."""

    def __init__(self) -> None:
        self._life = ExitStack()
        self._model = ""
        self.url = ""

    def serve(self, model: str = DEFAULT_MODEL) -> None:
        """Starts it, or starts it anew where it serves another model."""
        if self._model == model:
            return
        self.end()
        port = urlsplit(self.url).port or 0
        command = f"exec {sys.executable} -m ds4trio serve --model {model} --port {port}"
        _, self.url = self._life.enter_context(started(command))
        wait_until_ready(self.url)
        self._model = model

    def end(self) -> None:
        """By SIGKILL: it cannot say goodbye."""
        self._life.close()
        self._model = ""


@dataclass
class RealVisit(Visit):
    """A reader, and what went over the sockets of the page.

    Attributes:
        asked: every ``response.create``, in order.
        names: of the responses, in the order in which they began.
    """

    asked: list[dict[str, Any]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    sockets: int = 0

    def watch(self, page: Page) -> None:
        super().watch(page)
        page.add_init_script(REMEMBER_SOCKETS)
        page.on("websocket", self._hear)

    def _hear(self, socket: WebSocket) -> None:
        self.sockets += 1
        socket.on("framesent", self._note_request)
        socket.on("framereceived", self._note_name)

    def _note_request(self, frame: str | bytes) -> None:
        message = json.loads(frame)
        if message["type"] == "response.create":
            self.asked.append(message)

    def _note_name(self, frame: str | bytes) -> None:
        if '"response.created"' in str(frame):
            self.names.append(json.loads(frame)["response"]["id"])

    def set(self, **settings: str) -> None:
        """Of the chat that is shown, by the names that ``settings_view.js`` gives them."""
        self.page.locator("#settings-button").click()
        for name, value in settings.items():
            self.page.locator(f"#setting-{name}").fill(value)
            self.page.locator(f"#setting-{name}").dispatch_event("change")
        self.page.keyboard.press("Escape")

    def ask_briefly(self, text: str) -> None:
        """For an answer of three tokens at most."""
        self.set(maxTokens="3")
        self.ask_and_wait(text)

    def ask_at_length(self, text: str, tokens: int) -> None:
        """For an answer of so many tokens, unless the model has less to say."""
        self.set(maxTokens=f"{tokens}")
        self.ask(text)

    def expect_words(self, least: int) -> None:
        """The last answer, still alive, has at least so many."""
        self.page.wait_for_function(
            """(least) => {
              const texts = document.querySelectorAll("#messages > .answer [data-part=text]");
              return (texts.item(texts.length - 1)?.textContent ?? "").split(/\\s+/).length > least;
            }""",
            arg=least,
            timeout=60_000,
        )

    def attach(self, name: str, text: str) -> None:
        file = FilePayload(name=name, mimeType="text/plain", buffer=text.encode())
        self.page.locator("#attach-file").set_input_files([file])
        expect(self.page.locator("#files > li")).to_have_count(1)

    def close_socket(self) -> None:
        self.page.evaluate("window.sockets.at(-1).close()")

    def response(self, name: str) -> dict[str, Any]:
        """As the server has it."""
        found: dict[str, Any] = self.page.request.get(f"{self.url}/v1/responses/{name}").json()
        return found

    def expect_whole(self, name: str) -> None:
        """What the page kept of a response is what the server has, to the letter."""
        items = [item for item in self.response(name)["output"] if item["type"] == "message"]
        text = "".join(part["text"] for item in items for part in item["content"])
        assert text
        kept = self.page.evaluate(STORED_TEXT, name)
        assert kept == text, f"kept {kept!r}, of {text!r}"


@contextmanager
def real_visit(browser: Browser, url: str) -> Iterator[RealVisit]:
    with profile(browser) as page, visiting(RealVisit(page.context, page, url)) as seen:
        expect(page.locator("#link-text")).to_have_text("Connected")
        yield seen
