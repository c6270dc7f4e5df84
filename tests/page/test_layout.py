"""What lies over a narrow page, and what the page says about itself."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.page.visit import Visit

pytestmark = pytest.mark.browser

STATIC = Path(__file__).parents[2] / "static"
PHONE: Any = {"width": 390, "height": 844}


def test_on_a_phone_the_list_lies_over_the_chat_and_closes(reader: Visit) -> None:
    reader.ready()
    page = reader.page
    page.set_viewport_size(PHONE)
    opener = page.get_by_role("button", name="Chats", exact=True)
    search = page.get_by_label("Search all chats")
    for leave in ("Escape", "outside", "Close the list"):
        opener.click()
        expect(search).to_be_visible()
        if leave == "Escape":
            page.keyboard.press("Escape")
            expect(opener).to_be_focused()
        elif leave == "outside":
            page.mouse.click(380, 400)
        else:
            page.get_by_role("button", name=leave).click()
        expect(search).to_be_hidden()


@pytest.mark.parametrize("width", [390, 820, 1440])
def test_the_composer_stands_at_the_bottom_and_the_log_fills_what_is_above(
    reader: Visit, width: int
) -> None:
    reader.page.set_viewport_size({"width": width, "height": 844})
    reader.ask_and_wait("alpha")
    bar, log, composer = (
        reader.page.locator(each).bounding_box() for each in (".bar", "#log", "#composer")
    )
    assert bar is not None
    assert log is not None
    assert composer is not None
    assert abs(bar["y"] + bar["height"] - log["y"]) <= 1
    assert composer["y"] > 844 - 150
    assert log["height"] > 600


@pytest.mark.parametrize("width", [390, 1440])
def test_only_the_conversation_scrolls(reader: Visit, width: int) -> None:
    reader.page.set_viewport_size({"width": width, "height": 844})
    for _ in range(3):
        reader.ask_and_wait("Explain")
    page = "document.documentElement.{0} - document.documentElement.client{1}"
    assert reader.page.evaluate(page.format("scrollHeight", "Height")) == 0
    assert reader.page.evaluate(page.format("scrollWidth", "Width")) == 0


def test_on_paper_the_conversation_stands_alone_and_whole(reader: Visit) -> None:
    reader.page.set_viewport_size({"width": 1440, "height": 600})
    for _ in range(3):
        reader.ask_and_wait("Explain")
    reader.page.reload()
    expect(reader.answers).to_have_count(3)
    reader.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    expect(reader.answers.locator("table")).to_have_count(3)
    reader.page.emulate_media(media="print", color_scheme="dark")
    expect(reader.draft).to_be_hidden()
    expect(reader.page.get_by_role("navigation")).to_be_hidden()
    expect(reader.page.locator(".message button").locator("visible=true")).to_have_count(0)
    log = reader.page.locator("#log")
    assert log.evaluate("log => log.clientHeight === log.scrollHeight && log.clientHeight > 1500")
    ink = reader.text.evaluate("element => getComputedStyle(element).color")
    assert max(int(part) for part in re.findall(r"\d+", ink)) < 80, "light ink on white paper"


def test_on_a_phone_a_new_chat_is_one_touch_away(reader: Visit) -> None:
    reader.page.set_viewport_size(PHONE)
    reader.ask_and_wait("alpha")
    reader.new_chat()
    expect(reader.draft).to_be_focused()


def test_nothing_moves_where_the_pointer_is(reader: Visit) -> None:
    for question in ("alpha", "beta"):
        reader.ask_and_wait(question)
        reader.new_chat()
    place = "element => element.getBoundingClientRect().top"
    before = reader.chats.last.evaluate(place)
    reader.chats.first.hover()
    expect(reader.chats.first.get_by_role("button", name="Rename")).to_be_visible()
    assert reader.chats.last.evaluate(place) == before


def test_what_was_copied_is_seen_on_its_button(reader: Visit) -> None:
    reader.context.grant_permissions(["clipboard-read", "clipboard-write"])
    reader.ask_and_wait("alpha")
    reader.button("Copy").click()
    expect(reader.button("Copy").locator("use")).to_have_attribute("href", "#i-done")
    assert reader.page.evaluate("navigator.clipboard.readText()") == "You said: alpha"
    expect(reader.button("Copy").locator("use")).to_have_attribute("href", "#i-copy")


def test_the_reference_of_the_api_is_one_click_away(reader: Visit) -> None:
    reader.ready()
    with reader.context.expect_page() as opened:
        reader.page.get_by_role("link", name="API", exact=True).click()
    expect(opened.value).to_have_url(f"{reader.url}/docs")


def test_a_long_title_leaves_the_state_of_the_connection_room(reader: Visit) -> None:
    reader.ask_and_wait("a title that is longer than the header of this window has room for")
    model = reader.page.locator("#model").bounding_box()
    words = reader.page.locator("#link-text").bounding_box()
    assert model is not None
    assert words is not None
    assert words["x"] - (model["x"] + model["width"]) > 30  # a dot, and air on both its sides


def test_the_licences_of_the_libraries_are_one_click_away(reader: Visit) -> None:
    reader.ready()
    with reader.context.expect_page() as opened:
        reader.page.get_by_role("link", name="Licences").click()
    text = opened.value.locator("body").inner_text()
    for name in json.loads((STATIC / "package.json").read_text())["dependencies"]:
        assert f"\n{name} " in text


def test_signs_are_keys_however_a_keyboard_makes_them(reader: Visit) -> None:
    reader.ready()
    reader.page.locator("#log").focus()
    press = """key => document.activeElement.dispatchEvent(new KeyboardEvent("keydown",
      { key, shiftKey: true, bubbles: true, cancelable: true }))"""
    reader.page.evaluate(press, "/")  # with Shift, as on German keyboards
    expect(reader.draft).to_be_focused()
    reader.page.locator("#log").focus()
    reader.page.evaluate(press, "?")
    keys = reader.page.locator("#shortcuts dt")
    expect(keys.last).to_have_text("?")
