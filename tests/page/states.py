"""The main states of the page, each brought about in a fresh profile at the scripted server: what
screenshots show, and where accessibility is judged."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Locator, expect

from tests.page.visit import Visit
from tests.page.wire import MINUTE

__all__ = ["STATES", "open_panel"]

WHY = "Explain why batching makes a model server faster"
CHATS = ("Why is the sky blue?", "A poem about tides", "اكتب لي قصيدة عن البحر")


def empty(seen: Visit) -> None:
    seen.ready()
    expect(seen.page.locator("#link")).to_have_attribute("data-phase", "open")


def answer(seen: Visit) -> None:
    _earlier(seen)
    seen.ask_and_wait(WHY)
    _typeset(seen.text)


def reading(seen: Visit) -> None:
    seen.ask("read this slowly, please")
    seen.expect_status("prefill")
    expect(seen.part("wait")).to_contain_text("800 of 1000")


def thinking(seen: Visit) -> None:
    seen.ask("ponder")
    seen.expect_status("reasoning")
    expect(seen.part("reasoning-text")).to_contain_text("thought8")


def parts(seen: Visit) -> None:
    """Everything that an answer can hold."""
    seen.ask_and_wait("call the weather")
    seen.ask_and_wait("some json")
    seen.ask_and_wait("think, then write markdown")
    seen.part("reasoning").locator("summary").click()
    _typeset(seen.text)


def candidates(seen: Visit) -> None:
    seen.ask_and_wait(WHY)
    seen.ask_three_times()
    seen.expect_candidates("done")
    for candidate in seen.candidates.all():
        _typeset(candidate)


def versions(seen: Visit) -> None:
    seen.ask_and_wait("count 40")
    seen.ask_three_times()
    seen.expect_candidates("done")
    seen.take(2)
    expect(seen.part("versions")).to_contain_text("3 of 4")


def beside(seen: Visit) -> None:
    """Two chats at once, where both have room."""
    _earlier(seen)
    seen.ask_and_wait(WHY)
    _typeset(seen.answers.last)
    if seen.page.locator("#beside-button").is_visible():
        seen.page.locator("#beside-button").click()
        other = seen.page.locator("#pane-beside")
        other.get_by_label("Message").fill("ponder")
        other.get_by_role("button", name="Send").click()
        expect(other).to_contain_text("thought8")


def fault(seen: Visit) -> None:
    seen.ask_and_wait("count 12, then cut")
    seen.ask_and_wait("fail", "failed")


def editing(seen: Visit) -> None:
    seen.ask_and_wait("A question to be changed")
    seen.questions.last.hover()
    seen.button("Edit", of=seen.questions.last).click()


def settings(seen: Visit) -> None:
    empty(seen)
    seen.page.get_by_role("button", name="Settings").click()


def keys(seen: Visit) -> None:
    empty(seen)
    seen.page.locator("#shortcuts-button").evaluate("button => button.click()")


def panel(seen: Visit) -> None:
    seen.ask_and_wait("count 30")
    open_panel(seen)


def search(seen: Visit) -> None:
    _earlier(seen)
    if seen.page.locator("#chats-button").is_visible():
        seen.page.locator("#chats-button").click()
    seen.page.locator("#search").fill("poem")
    expect(seen.chats).to_have_count(1)
    seen.chats.last.hover()


def offline(seen: Visit) -> None:
    seen.ask("vanish")
    expect(seen.page.locator("#notice")).to_be_visible()


STATES: dict[str, Callable[[Visit], None]] = {
    "empty": empty,
    "answer": answer,
    "reading": reading,
    "thinking": thinking,
    "parts": parts,
    "candidates": candidates,
    "versions": versions,
    "beside": beside,
    "fault": fault,
    "editing": editing,
    "settings": settings,
    "keys": keys,
    "panel": panel,
    "search": search,
    "offline": offline,
}


def open_panel(seen: Visit) -> None:
    seen.page.get_by_role("button", name="Server", exact=True).click()
    expect(seen.page.locator("#panel rect")).to_have_count(MINUTE)  # it has caught up


def _earlier(seen: Visit) -> None:
    """Some chats, and a new one that is open; by a key, since narrow pages hide the button."""
    for question in CHATS:
        seen.ask_and_wait(question)
        seen.page.keyboard.press("Control+Shift+O")
        expect(seen.page.locator("#empty")).to_be_visible()


def _typeset(answer: Locator) -> None:
    """Colours and formulas come a moment after the words."""
    expect(answer.locator("math").first).to_be_visible()
    expect(answer.locator(".hljs-keyword").first).to_be_visible()
