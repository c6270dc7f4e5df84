"""What happens to readers in a hurry: held keys, two tabs, data that is gone."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.page.visit import Visit

pytestmark = pytest.mark.browser

STORED = """() => new Promise((resolve) => {
  const opening = indexedDB.open("ds4trio");
  opening.onsuccess = () => {
    const all = opening.result.transaction("messages").objectStore("messages").getAll();
    all.onsuccess = () => {
      opening.result.close();
      resolve(all.result.map(({ text }) => text));
    };
  };
})"""

DELETE_ALL = """() => new Promise((resolve) => {
  indexedDB.deleteDatabase("ds4trio").onsuccess = resolve;
})"""


def hold(reader: Visit, key: str) -> None:
    for _ in range(8):
        reader.page.keyboard.down(key)
    reader.page.keyboard.up(key)


def delete_question(reader: Visit) -> None:
    question = reader.questions.last
    question.hover()
    reader.button("Delete", of=question).click()
    question.get_by_role("button", name=re.compile("^Delete this and ")).click()


def test_a_held_key_does_not_say_really(reader: Visit) -> None:
    reader.ask_and_wait("keep me")
    reader.questions.last.hover()
    reader.button("Delete", of=reader.questions.last).focus()
    hold(reader, "Enter")
    expect(reader.questions).to_have_count(1)
    asked = reader.button("Delete this and 1 after it?", of=reader.questions.last)
    expect(asked).to_be_focused()


def test_a_held_key_on_send_does_not_stop(reader: Visit) -> None:
    reader.ready()
    reader.draft.fill("endless")
    reader.page.locator("#go").focus()
    hold(reader, "Enter")
    expect(reader.text).to_contain_text("word20")
    reader.expect_status("answering")
    reader.page.keyboard.press("Escape")
    reader.expect_status("stopped")


def test_a_held_shortcut_acts_once_and_writes_nothing(reader: Visit) -> None:
    reader.ask_and_wait("first")
    reader.page.locator("#log").focus()
    hold(reader, "b")
    expect(reader.page.locator(".pane")).to_have_count(2)
    hold(reader, "/")  # here it is a letter
    beside = reader.page.locator("#draft-beside")
    expect(beside).to_have_value("////////")


def test_the_list_is_not_made_anew(reader: Visit) -> None:
    for title in ("apples", "pears"):
        reader.ask_and_wait(title)
        reader.new_chat()
    apples = reader.chats.filter(has_text="apples")
    apples.evaluate("element => { element.seen = true; }")
    reader.draft.fill("plums")
    expect(reader.chats.filter(has_text="plums")).to_have_count(1)
    reader.ask_and_wait("plums")
    assert apples.evaluate("element => element.seen")
    reader.do_in_list("apples", "Pin")
    expect(reader.chats.first).to_contain_text("apples")
    reader.do_in_list("apples", "Rename")
    reader.page.get_by_label("Title", exact=True).fill("cherries")
    reader.page.keyboard.press("Enter")
    expect(reader.chats.first).to_contain_text("cherries")


def test_a_removed_answer_does_not_come_back_while_it_is_being_stopped(reader: Visit) -> None:
    reader.ask("stuck")  # it is deaf to the cancel for three seconds
    expect(reader.text).to_contain_text("word3")
    delete_question(reader)
    expect(reader.page.locator("#empty")).to_be_visible()
    reader.page.wait_for_timeout(1_000)
    assert reader.page.evaluate(STORED) == []


def test_an_answer_goes_when_another_tab_deletes_its_question(reader: Visit) -> None:
    reader.ask("endless")
    expect(reader.text).to_contain_text("word5")
    other = reader.another_tab()
    expect(other.text).to_contain_text("word5")
    delete_question(other)
    for tab in (reader, other):
        expect(tab.page.locator("#empty")).to_be_visible()
    reader.page.wait_for_timeout(1_000)
    assert reader.page.evaluate(STORED) == []
    reader.ask_and_wait("and now")


def test_chats_that_are_gone_are_said_to_be(reader: Visit) -> None:
    reader.ask_and_wait("first")
    reader.new_chat()
    reader.ask_and_wait("second")
    reader.page.reload()
    expect(reader.text).to_contain_text("second")
    reader.page.evaluate(DELETE_ALL)
    reader.chats.filter(has_text="first").get_by_role("button").first.click()
    hint = reader.page.locator("#composer-hint")
    expect(hint).to_contain_text("does not let the page read this chat")
    reader.ask_and_wait("and now")
