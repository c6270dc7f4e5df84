"""The chats of a reader of the default model: branched, kept, found, taken along."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.page.real import RealVisit

pytestmark = [pytest.mark.browser, pytest.mark.model]


def test_questions_and_answers_branch_and_go(real: RealVisit) -> None:
    real.ask_briefly("Say one.")
    first = real.said()
    real.button("Edit", of=real.questions.last).click()
    field = real.page.get_by_label("Your question, to be changed")
    field.fill("Name a bird.")
    field.press("Enter")
    expect(real.questions.last).to_contain_text("2 of 2")
    real.expect_status("done", "cut")
    real.button("Try again").click()
    expect(real.part("versions")).to_contain_text("2 of 2")
    real.expect_status("done", "cut")
    assert len(real.names) == 3
    assert [asked["input"][-1]["content"] for asked in real.asked[1:]] == ["Name a bird."] * 2
    real.button("Version before", of=real.questions.last).click()
    expect(real.text).to_have_text(first)
    real.button("Version after", of=real.questions.last).click()
    real.button("Delete").dblclick()  # is no answer to "Delete?"
    expect(real.part("versions")).to_contain_text("2 of 2")
    real.button("Delete?").click()
    expect(real.part("versions")).to_be_hidden()
    real.page.reload()
    real.ready()
    expect(real.answers).to_have_count(1)
    expect(real.part("versions")).to_be_hidden()


def test_chats_are_named_pinned_found_taken_along_and_deleted(
    real: RealVisit, tmp_path: Path
) -> None:
    real.ask_briefly("Name a fruit.")
    real.new_chat()
    real.ask_briefly("Name a tree.")
    real.do_in_list("Name a fruit.", "Pin")
    real.do_in_list("Name a tree.", "Rename")
    real.page.get_by_label("Title").fill("Of the wood")
    real.page.get_by_label("Title").press("Enter")
    search = real.page.get_by_label("Search all chats")
    search.fill("a tree")
    expect(real.chats).to_have_count(1)
    expect(real.chats).to_contain_text("Of the wood")
    search.fill("")
    expect(real.chats).to_have_count(2)
    with real.page.expect_download() as download:
        real.page.get_by_role("button", name="Export").click()
    file = tmp_path / "chats.json"
    download.value.save_as(file)
    assert len(json.loads(file.read_text())["messages"]) == 4
    for title in ("Of the wood", "Name a fruit."):
        real.delete_chat(title)
    expect(real.chats.filter(has_text="Name a fruit.")).to_have_count(0)
    real.page.locator("#import-file").set_input_files(file)
    expect(real.chats.filter(has_text="Of the wood")).to_have_count(1)
    real.page.reload()
    expect(real.chats.first).to_contain_text("Name a fruit.")  # it is pinned
    real.open_chat("Of the wood")
    real.ask_and_wait("And another?")  # the server is told of all of it
    assert [item["role"] for item in real.asked[-1]["input"]] == ["user", "assistant", "user"]


def test_a_draft_and_its_files_wait_for_the_reader(real: RealVisit) -> None:
    real.ask_briefly("Say one.")
    real.new_chat()
    real.draft.fill("Half a thou")
    real.attach("notes.txt", "The word is blue.")
    real.open_chat("Say one.")
    expect(real.draft).to_have_value("")
    real.chats.get_by_text("Half a thou").click()
    expect(real.draft).to_have_value("Half a thou")
    expect(real.page.locator("#files > li")).to_contain_text("notes.txt")
    real.draft.fill("What is the word?")
    real.draft.press("Enter")
    real.expect_status("done", "cut")
    assert "The word is blue." in real.asked[-1]["input"][0]["content"]
    expect(real.questions.last.locator("li")).to_have_text("notes.txt, 17 characters")


def test_the_keys_of_the_page(real: RealVisit) -> None:
    press = real.page.keyboard.press
    real.ask_at_length("Write a long story about a river.", 400)
    real.expect_words(2)
    press("Control+Shift+O")
    expect(real.page.locator("#empty")).to_be_visible()
    expect(real.draft).to_be_focused()
    press("Control+k")
    expect(real.page.get_by_label("Search all chats")).to_be_focused()
    real.page.locator("#log").focus()
    press("j")
    expect(real.page.locator("#title")).to_have_text("Write a long story about a river.")
    real.expect_status("answering")
    press("/")
    expect(real.draft).to_be_focused()
    real.draft.fill("kept")
    press("Escape")
    real.expect_status("stopped")
    expect(real.draft).to_have_value("kept")
    press("Control+,")
    expect(real.page.locator("#settings")).to_be_visible()
    press("Escape")
    real.page.locator("#log").focus()
    press("Shift+?")
    expect(real.page.locator("#shortcuts")).to_contain_text("Stop the answer")
