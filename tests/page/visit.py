"""A reader at the page: what tests do in the browser, in the reader's words."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import urlopen

from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Locator,
    Page,
    expect,
)

Kind = TypeVar("Kind", bound="Visit")

__all__ = ["ScriptedServer", "Visit", "profile", "scripted_server", "visit", "visiting"]

WATCH_POLICY = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
"""


@dataclass
class Visit:
    """One reader's browser profile with the page open, and what went wrong in it."""

    context: BrowserContext
    page: Page
    url: str
    errors: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def watch(self, page: Page) -> None:
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._note_console)
        page.on("request", lambda request: self._note(request.url))
        page.on("websocket", lambda socket: self._note(socket.url))

    def _note_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def _note(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("data", "blob") and parts.netloc != urlsplit(self.url).netloc:
            self.foreign.append(url)

    def another_tab(self) -> Visit:
        page = self.context.new_page()
        tab = Visit(self.context, page, self.url, self.errors, self.foreign)
        tab.watch(page)
        page.goto(self.url)
        return tab

    # -- what is on the page

    @property
    def draft(self) -> Locator:
        return self.page.get_by_label("Message", exact=True)

    @property
    def questions(self) -> Locator:
        return self.page.locator("#messages > .question")

    @property
    def answers(self) -> Locator:
        return self.page.locator("#messages > .answer")

    @property
    def candidates(self) -> Locator:
        """Answers side by side, to choose from."""
        return self.page.locator("#messages > .candidates .answer")

    @property
    def chats(self) -> Locator:
        return self.page.locator("#chat-list > li")

    def part(self, name: str) -> Locator:
        """A part of the last answer."""
        return self.answers.last.locator(f"[data-part={name}]")

    @property
    def text(self) -> Locator:
        """Of the last answer."""
        return self.part("text")

    def said(self) -> str:
        return self.text.inner_text()

    def button(self, name: str, *, of: Locator | None = None) -> Locator:
        """A button of the last answer, or of another element."""
        return (of or self.answers.last).get_by_role("button", name=name, exact=True)

    # -- what the reader does

    def ready(self) -> None:
        """The page knows its chats."""
        expect(self.chats).not_to_have_count(0)

    def ask(self, text: str) -> None:
        self.ready()
        self.draft.fill(text)
        self.draft.press("Enter")
        expect(self.questions.last).to_contain_text(text.split("\n")[0])

    def ask_and_wait(self, text: str, *statuses: str) -> None:
        self.ask(text)
        self.expect_status(*statuses or ("done", "cut"))

    def ask_and_cut_short(self, text: str) -> None:
        """Asks, and stops the answer once some of it is there: a random model may never end."""
        self.ask(text)
        expect(self.text).not_to_be_empty(timeout=20_000)
        self.page.keyboard.press("Escape")
        self.expect_status("stopped", "done", "cut")

    def expect_status(self, *statuses: str) -> None:
        pattern = re.compile(f"^({'|'.join(statuses)})$")
        expect(self.answers.last).to_have_attribute("data-status", pattern, timeout=60_000)

    def ask_three_times(self) -> None:
        """The last question, once more."""
        self.button("Ask three times").click()
        expect(self.candidates).to_have_count(3)

    def expect_candidates(self, status: str, count: int = 3) -> None:
        """All of them, at this moment."""
        alike = self.page.locator(f"#messages > .candidates .answer[data-status={status}]")
        expect(alike).to_have_count(count, timeout=60_000)

    def take(self, number: int) -> None:
        """Of the candidates."""
        self.page.get_by_role("button", name=f"Take this one, candidate {number}").click()
        expect(self.candidates).to_have_count(0)

    def new_chat(self) -> None:
        self.page.get_by_role("button", name="New chat", exact=True).first.click()
        expect(self.page.locator("#empty")).to_be_visible()

    def open_chat(self, title: str) -> None:
        self.page.locator("#chat-list [data-action=open]").get_by_text(title, exact=True).click()
        expect(self.page.locator("#title")).to_have_text(title)

    def do_in_list(self, title: str, action: str) -> None:
        item = self.chats.filter(has_text=title)
        item.hover()
        item.get_by_role("button", name=action, exact=True).click()

    def delete_chat(self, title: str) -> None:
        for action in ("Delete", "Delete?"):
            self.do_in_list(title, action)

    def edit(self, question: Locator, text: str) -> None:
        """Asks it in other words."""
        question.hover()
        self.button("Edit", of=question).click()
        field = question.get_by_label("Your question, to be changed")
        field.fill(text)
        field.press("Enter")

    def violations(self) -> list[str]:
        found: list[str] = self.page.evaluate("window.violations")
        return found

    # -- what the scripted server was sent

    def sent(self) -> dict[str, Any]:
        with urlopen(f"{self.url}/bodies", timeout=10) as response:
            found: dict[str, Any] = json.load(response)
        return found

    def body(self, text: str) -> dict[str, Any]:
        """The latest ``response.create`` whose last item contains the text."""
        found: list[dict[str, Any]] = [
            body for body in self.sent()["bodies"] if text in body["input"][-1]["content"]
        ]
        return found[-1]


@contextmanager
def visit(browser: Browser, url: str, **options: Any) -> Iterator[Visit]:
    """A fresh profile on the page; see ``visiting`` for what must hold in the end."""
    with profile(browser, **options) as page, visiting(Visit(page.context, page, url)) as seen:
        yield seen


@contextmanager
def profile(browser: Browser, **options: Any) -> Iterator[Page]:
    """A fresh profile with one empty tab."""
    context = browser.new_context(**{"viewport": {"width": 1100, "height": 700}, **options})
    context.set_default_timeout(10_000)
    context.add_init_script(WATCH_POLICY)
    yield context.new_page()
    context.close()


@contextmanager
def visiting(seen: Kind) -> Iterator[Kind]:
    """Opens the page. In the end nothing may have gone to another host, no part of the policy was
    broken, and the console has no error that the test did not expect and clear."""
    seen.watch(seen.page)
    seen.page.goto(seen.url)
    yield seen
    assert seen.violations() == []
    assert seen.foreign == []
    assert seen.errors == []


@dataclass
class ScriptedServer:
    """The scripted server as a process."""

    url: str
    process: subprocess.Popen[str]

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def scripted_server(*arguments: str, port: int = 0) -> Iterator[ScriptedServer]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.page.server", str(port), *arguments],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        assert process.stdout is not None
        server = ScriptedServer(process.stdout.readline().strip(), process)
        try:
            assert server.url.startswith("http://"), "the scripted server did not start"
            yield server
        finally:
            server.end()
