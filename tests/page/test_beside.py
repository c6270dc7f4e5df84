"""Two chats beside each other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, FilePayload, Locator, expect

from tests.page.visit import Visit, visit


@pytest.fixture
def wide(browser: Browser, scripted_url: str) -> Iterator[Visit]:
    with visit(browser, scripted_url, viewport={"width": 1440, "height": 900}) as seen:
        seen.ready()
        yield seen


def panes(seen: Visit) -> tuple[Locator, Locator]:
    return seen.page.locator("#pane"), seen.page.locator("#pane-beside")


def split(seen: Visit) -> tuple[Locator, Locator]:
    seen.page.get_by_role("button", name="Side by side").click()
    expect(seen.page.locator("#pane-beside")).to_be_visible()
    return panes(seen)


def draft(pane: Locator) -> Locator:
    return pane.get_by_label("Message", exact=True)


def ask(pane: Locator, text: str) -> None:
    draft(pane).fill(text)
    draft(pane).press("Enter")
    expect(pane.locator(".question .text").last).to_contain_text(text)


def answer(pane: Locator) -> Locator:
    return pane.locator(".answer").last


def test_two_answers_stream_side_by_side_over_one_socket(wide: Visit) -> None:
    expect(wide.page.locator("#link")).to_have_attribute("data-phase", "open")
    sockets: list[str] = []
    wide.page.on("websocket", lambda socket: sockets.append(socket.url))
    first, second = split(wide)
    expect(draft(second)).to_be_focused()
    ask(first, "endless one")
    ask(second, "endless two")
    for pane in (first, second):
        expect(answer(pane)).to_contain_text("word40 ")
        expect(answer(pane)).to_be_in_viewport()
    before = [answer(pane).inner_text() for pane in (first, second)]
    for pane, text in zip((first, second), before, strict=True):
        expect(answer(pane)).not_to_have_text(text)
        expect(answer(pane)).to_contain_text("batch of")
    assert sockets == []  # the one that was there from the start
    lanes = {wide.body(text)["stream_id"] for text in ("endless one", "endless two")}
    assert len(lanes) == 2
    # Escape stops the one where the reader is.
    wide.page.keyboard.press("Escape")
    expect(answer(second)).to_have_attribute("data-status", "stopped")
    expect(answer(first)).to_have_attribute("data-status", "answering")
    first.get_by_role("button", name="Stop").click()
    expect(answer(first)).to_have_attribute("data-status", "stopped")


def test_a_reload_in_mid_answer_brings_both_back_with_what_was_being_written(wide: Visit) -> None:
    first, second = split(wide)
    ask(first, "count 700")
    ask(second, "count 650")
    expect(answer(second)).to_contain_text("w20 ")
    draft(first).fill("here")
    draft(second).fill("there")
    wide.page.reload()
    expect(draft(first)).to_have_value("here")
    expect(draft(second)).to_have_value("there")
    for pane, count in ((first, 700), (second, 650)):
        expect(answer(pane)).to_have_attribute("data-status", "done", timeout=30_000)
        words = answer(pane).locator("[data-part=text]").inner_text().split()
        assert words == [f"w{number}" for number in range(1, count + 1)]


def test_the_list_opens_chats_beside_and_goes_where_they_are_open(wide: Visit) -> None:
    for text in ("apples", "pears", "plums"):
        wide.ask_and_wait(text)
        wide.new_chat()
    wide.open_chat("apples")
    pears = wide.page.locator("#chat-list [data-action=open]").get_by_text("pears", exact=True)
    pears.click(modifiers=["Control"])
    first, second = panes(wide)
    expect(second.locator(".question .text")).to_have_text(["pears"])
    expect(first.locator(".question .text")).to_have_text(["apples"])
    marked = wide.page.locator("#chat-list [aria-current]")
    expect(marked).to_have_count(2)
    # A chat is never open twice: the reader is taken to it.
    wide.open_chat("apples")
    expect(first).to_have_attribute("data-active", "")
    expect(second.locator(".question .text")).to_have_text(["pears"])
    # What is opened comes where the reader is.
    draft(second).click()
    wide.open_chat("plums")
    expect(second.locator(".question .text")).to_have_text(["plums"])
    expect(first.locator(".question .text")).to_have_text(["apples"])


def test_settings_are_those_of_the_chat_where_the_reader_is(wide: Visit) -> None:
    first, second = split(wide)
    wide.page.get_by_role("button", name="Settings").click()
    wide.page.get_by_label("Temperature").fill("1.5")
    wide.page.get_by_role("button", name="Done").click()
    ask(second, "warm")
    ask(first, "cold")
    expect(answer(first)).to_have_attribute("data-status", "done")
    expect(answer(second)).to_have_attribute("data-status", "done")
    assert wide.body("warm")["temperature"] == 1.5
    assert wide.body("cold")["temperature"] == 0


@pytest.mark.parametrize("closed", ["left", "right"])
def test_the_one_that_stays_keeps_its_draft_and_its_answer(wide: Visit, closed: str) -> None:
    first, second = split(wide)
    ask(first, "endless left")
    ask(second, "endless right")
    draft(first).fill("of the left")
    draft(second).fill("of the right")
    leaves, stays = (first, "right") if closed == "left" else (second, "left")
    leaves.get_by_role("button", name="Close this chat").click()
    expect(second).to_have_count(0)
    expect(draft(first)).to_have_value(f"of the {stays}")
    expect(draft(first)).to_be_focused()
    expect(first.locator(".question .text")).to_have_text([f"endless {stays}"])
    text = answer(first).inner_text()
    expect(answer(first)).not_to_have_text(text)
    # The other one goes on unseen, and has kept its draft.
    wide.open_chat(f"endless {closed}")
    expect(draft(first)).to_have_value(f"of the {closed}")
    expect(answer(first)).to_have_attribute("data-status", "answering")


def test_files_go_with_their_chat_from_one_side_to_the_other(wide: Visit) -> None:
    first, second = split(wide)
    chosen: FilePayload = {"name": "a.txt", "mimeType": "text/plain", "buffer": b"text of a"}
    second.locator("input[type=file]").set_input_files([chosen])
    draft(second).fill("with a file")
    first.get_by_role("button", name="Close this chat").click()
    expect(first.locator(".files li")).to_have_text(["a.txt"])
    first.get_by_role("button", name="Leave a.txt out").click()
    expect(first.locator(".files li")).to_have_count(0)
    wide.page.reload()
    expect(draft(first)).to_have_value("with a file")
    expect(first.locator(".files li")).to_have_count(0)


def test_a_removed_chat_leaves_the_other(wide: Visit) -> None:
    first, second = split(wide)
    ask(first, "to be removed")
    ask(second, "to stay")
    wide.do_in_list("to be removed", "Delete")
    wide.page.get_by_role("button", name="Delete?").click()
    expect(second).to_have_count(0)
    expect(first.locator(".question .text")).to_have_text(["to stay"])


def test_a_window_that_becomes_narrow_keeps_the_chat_where_the_reader_is(wide: Visit) -> None:
    first, second = split(wide)
    ask(first, "the first")
    ask(second, "the second")
    draft(second).fill("goes on")
    wide.page.set_viewport_size({"width": 820, "height": 900})
    expect(second).to_have_count(0)
    expect(first.locator(".question .text")).to_have_text(["the second"])
    expect(draft(first)).to_have_value("goes on")
    # There is no second one to be had here.
    expect(wide.page.get_by_role("button", name="Side by side")).to_be_hidden()
    first.locator("#log").focus()
    wide.page.keyboard.press("b")
    expect(second).to_have_count(0)
    wide.page.set_viewport_size({"width": 1440, "height": 900})
    expect(second.locator(".question .text")).to_have_text(["the first"])
    expect(draft(first)).to_have_value("goes on")
    expect(draft(first)).to_be_focused()


def test_an_edit_that_was_left_stays_so_after_its_chat_has_moved(wide: Visit) -> None:
    first, second = split(wide)
    ask(second, "to be changed")
    expect(answer(second)).to_have_attribute("data-status", "done")
    second.locator(".question").hover()
    second.get_by_role("button", name="Edit", exact=True).click()
    form = wide.page.get_by_label("Your question, to be changed")
    form.fill("in other words")
    first.get_by_role("button", name="Close this chat").click()
    expect(form).to_have_value("in other words")
    form.press("Escape")
    wide.page.reload()
    expect(first.locator(".question")).to_have_count(1)
    expect(form).to_have_count(0)


def test_by_keyboard_alone(wide: Visit) -> None:
    first, second = panes(wide)
    first.locator("#log").focus()
    wide.page.keyboard.press("b")
    expect(draft(second)).to_be_focused()
    wide.page.keyboard.type("typed")
    wide.page.keyboard.press("Enter")
    expect(answer(second)).to_have_attribute("data-status", "done")
    second.locator("#log-beside").focus()
    wide.page.keyboard.press("b")
    expect(second).to_have_count(0)
    expect(first.locator(".question .text")).to_have_text(["typed"])
