"""Three answers to one question, side by side, and the choice between them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from tests.page.texts import counted
from tests.page.visit import Visit

pytestmark = pytest.mark.browser

WIDE: Any = {"width": 1440, "height": 900}
PHONE: Any = {"width": 390, "height": 844}

COLUMNS = """() => [...document.querySelectorAll(".candidates .answer")].map((column) => {
  const text = column.querySelector("[data-part=text]");
  const { left, right, top } = column.getBoundingClientRect();
  const words = text.textContent.split(" ").length;
  return { words, status: column.dataset.status, left, right, top };
})"""
"""Of all at one moment."""


def texts(reader: Visit) -> Locator:
    return reader.candidates.locator("[data-part=text]")


def expect_texts(reader: Visit, words: str) -> None:
    for text in texts(reader).all():
        expect(text).to_contain_text(words)


def test_three_grow_side_by_side_and_the_one_that_is_taken_stays(reader: Visit) -> None:
    reader.page.set_viewport_size(WIDE)
    reader.ask_and_cut_short("count 300")
    before = reader.sent()
    reader.ask_three_times()
    expect_texts(reader, "w20")
    early = reader.page.evaluate(COLUMNS)
    expect_texts(reader, f"w{max(column['words'] for column in early) + 20}")
    late = reader.page.evaluate(COLUMNS)
    assert {column["status"] for column in early + late} == {"answering"}
    for column, grown in zip(early, late, strict=True):
        assert grown["words"] > column["words"]
    edges = [edge for column in late for edge in (column["left"], column["right"])]
    assert edges == sorted(edges)
    assert edges[-1] <= WIDE["width"]
    assert len({column["top"] for column in late}) == 1
    expect(reader.candidates.last.locator("[data-part=stats]")).to_contain_text("batch of 4")
    reader.expect_candidates("done")
    expect(texts(reader)).to_have_text([counted(1, 300).strip()] * 3)
    after = reader.sent()
    assert len(after["bodies"]) == len(before["bodies"]) + 3
    assert len({body["stream_id"] for body in after["bodies"][-3:]}) == 3
    assert after["sockets"] == before["sockets"]
    reader.button("Take this one, candidate 2", of=reader.candidates.nth(1)).focus()
    reader.page.keyboard.press("Enter")
    expect(reader.part("versions")).to_contain_text("3 of 4")
    expect(reader.candidates).to_have_count(0)
    expect(reader.page.locator("#log")).to_be_focused()
    reader.ask_and_wait("and then")
    reader.page.reload()
    expect(reader.answers.first.locator("[data-part=versions]")).to_contain_text("3 of 4")
    expect(reader.text).to_contain_text("You said: and then")


def test_a_reload_in_mid_stream_brings_all_of_them_back(reader: Visit) -> None:
    reader.ask_and_cut_short("count 300")
    reader.ask_three_times()
    reader.page.reload()  # in their first moment
    expect_texts(reader, "w20")
    reader.page.reload()
    expect_texts(reader, "w40")
    reader.expect_candidates("answering")
    reader.expect_candidates("done")
    expect(texts(reader)).to_have_text([counted(1, 300).strip()] * 3)


def test_asking_on_goes_on_from_the_one_that_is_marked(reader: Visit) -> None:
    reader.ask_and_wait("count 20")
    reader.ask_three_times()
    reader.expect_candidates("done")
    expect(reader.candidates.first).to_contain_text("The chat goes on here")
    pager = reader.page.locator(".candidates [data-part=versions]").locator("visible=true")
    expect(pager).to_contain_text("2 of 4")
    reader.button("Version before", of=pager).click()
    expect(reader.part("versions")).to_contain_text("1 of 4")
    reader.button("Version after").click()
    expect(reader.candidates).to_have_count(3)
    reader.button("Version after", of=pager).click()
    expect(reader.candidates.nth(1)).to_contain_text("The chat goes on here")
    expect(reader.candidates.first).not_to_contain_text("The chat goes on")
    reader.ask_and_wait("and then")
    expect(reader.candidates).to_have_count(0)
    expect(reader.answers.first.locator("[data-part=versions]")).to_contain_text("3 of 4")


@pytest.mark.parametrize("goes_on", [False, True])
def test_the_one_that_was_taken_is_there_after_another_branch(reader: Visit, goes_on: bool) -> None:
    reader.ask_and_wait("a colour")
    reader.ask_three_times()
    reader.expect_candidates("done")
    reader.button("Take this one, candidate 1", of=reader.candidates.first).click()
    expect(reader.candidates).to_have_count(0)
    if goes_on:
        reader.ask_and_wait("and then")
    question = reader.questions.first
    reader.edit(question, "an animal")
    expect(reader.text).to_contain_text("You said: an animal")
    reader.expect_status("done")
    if goes_on:
        reader.page.reload()
    question.hover()
    reader.button("Version before", of=question).click()
    expect(reader.answers.first.locator("[data-part=versions]")).to_contain_text("2 of 4")
    expect(reader.questions).to_have_count(2 if goes_on else 1)


def test_all_are_stopped_and_each_can_be_deleted(reader: Visit) -> None:
    log = reader.page.locator("#log")
    reader.ask("endless")
    expect(reader.text).to_contain_text("word20")
    reader.page.keyboard.press("Escape")
    reader.expect_status("stopped")
    reader.ask_three_times()
    expect_texts(reader, "word200")
    assert log.evaluate("e => e.scrollTop") > 0
    assert log.evaluate("e => e.scrollHeight - e.clientHeight - e.scrollTop") < 40
    reader.page.keyboard.press("Escape")
    reader.expect_candidates("stopped")
    for left in (2, 0):
        reader.button("Delete", of=reader.candidates.last).click()
        reader.button("Delete?", of=reader.candidates.last).click()
        expect(reader.candidates).to_have_count(left)
    expect(reader.part("versions")).to_contain_text("2 of 2")
    reader.button("Continue").click()
    expect(reader.part("versions")).to_contain_text("3 of 3")
    reader.page.keyboard.press("Escape")
    reader.expect_status("stopped")


def test_another_tab_shows_them_and_hears_of_the_choice(reader: Visit) -> None:
    reader.ask_and_cut_short("count 300")
    reader.ask_three_times()
    other = reader.another_tab()
    expect_texts(other, "w20")
    other.take(3)
    expect(other.part("versions")).to_contain_text("4 of 4")
    expect(reader.candidates).to_have_count(0)
    expect(reader.part("versions")).to_contain_text("2 of 4")  # where it was
    for tab in (reader, other):
        tab.expect_status("done")
        assert tab.said().strip() == counted(1, 300).strip()


def test_on_a_phone_they_are_moved_sideways_and_the_page_is_not(reader: Visit) -> None:
    reader.page.set_viewport_size(PHONE)
    reader.ask_and_wait("Explain a batch")
    reader.ask_three_times()
    reader.expect_candidates("done")
    first, second, _ = reader.page.evaluate(COLUMNS)
    assert first["right"] < second["left"] < PHONE["width"]
    for edge in ("documentElement", "querySelector('#log')"):
        width = f"document.{edge}.scrollWidth - document.{edge}.clientWidth"
        assert reader.page.evaluate(width) <= 0
    reader.take(3)
    expect(reader.part("versions")).to_contain_text("4 of 4")


def test_they_are_exported_and_imported(reader: Visit, tmp_path: Path) -> None:
    answers = ("one", "two", "three")
    candidates = ["two", "gone", 5, None, "asked", "three", "two"]
    chat = {"id": "c", "title": "From a file", "leaf": "three", "candidates": candidates}
    asked = {"id": "asked", "chatId": "c", "role": "user", "text": "asked"}
    made = [{"id": id, "chatId": "c", "parent": "asked", "text": id} for id in answers]
    data = {"kind": "ds4trio-chats", "version": 1, "chats": [chat], "messages": [asked, *made]}
    file = tmp_path / "chats.json"
    file.write_text(json.dumps(data))
    reader.ready()
    for _ in range(2):
        reader.page.locator("#import-file").set_input_files(file)
        reader.open_chat("From a file")
        expect(texts(reader)).to_have_text(["two", "three"])
        expect(reader.candidates.last).to_contain_text("The chat goes on here")
        with reader.page.expect_download() as download:
            reader.page.get_by_role("button", name="Export").click()
        download.value.save_as(file)
        reader.delete_chat("From a file")


def test_they_are_asked_so_that_they_differ(reader: Visit) -> None:
    reader.ready()
    reader.page.get_by_role("button", name="Settings").click()
    reader.page.get_by_label("Seed", exact=True).fill("7")
    reader.page.get_by_role("button", name="Done").click()
    reader.ask_and_wait("first")
    reader.ask_three_times()
    reader.expect_candidates("done")
    bodies = reader.sent()["bodies"][-4:]
    assert [body["seed"] for body in bodies] == [7, 8, 9, 10]
    assert [body["temperature"] for body in bodies] == [0, 0.7, 0.7, 0.7]
    reader.ask_and_wait("on")
    assert reader.body("on")["seed"] == 7
