"""The list of chats, and that nothing in it is lost."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import FilePayload, expect

from tests.page.visit import Visit

pytestmark = pytest.mark.browser


def titles(reader: Visit) -> list[str]:
    # Not as rendered: rows that are not in view yet are not.
    return reader.page.locator("#chat-list [data-action=open]").all_text_contents()


def three_chats(reader: Visit) -> None:
    for number, name in enumerate(("apples", "pears", "plums")):
        if number:
            reader.new_chat()
        reader.ask_and_wait(name)


def test_history_survives_a_reload(reader: Visit) -> None:
    three_chats(reader)
    reader.page.reload()
    expect(reader.text).to_contain_text("You said: plums")
    assert titles(reader) == ["plums", "pears", "apples"]
    reader.open_chat("apples")
    expect(reader.text).to_contain_text("You said: apples")
    reader.ask_and_wait("more")
    assert titles(reader)[0] == "apples"
    body = reader.body("more")
    assert body["previous_response_id"].startswith("resp_")
    assert len(body["input"]) == 1


def test_two_tabs_show_the_same_chats_and_write_side_by_side(reader: Visit) -> None:
    reader.ask_and_wait("shared")
    other = reader.another_tab()
    expect(other.text).to_contain_text("You said: shared")
    other.new_chat()
    other.ask_and_wait("of the second")
    expect(reader.chats).to_have_count(2)
    expect(reader.text).to_contain_text("You said: shared")
    other.do_in_list("of the second", "Rename")
    other.page.get_by_label("Title").fill("renamed there")
    other.page.get_by_label("Title").press("Enter")
    expect(reader.chats.filter(has_text="renamed there")).to_have_count(1)
    other.open_chat("shared")
    other.ask_and_wait("from the second")
    expect(reader.text).to_contain_text("You said: from the second")  # it goes on there, too
    reader.ask_and_wait("from the first")
    expect(other.text).to_contain_text("You said: from the first")
    for tab in (reader, other):
        tab.page.reload()
        expect(tab.page.locator("#title")).to_have_text("shared")
        expect(tab.questions).to_have_count(3)


def test_an_answer_to_another_tab_can_be_stopped_here(reader: Visit) -> None:
    reader.ask_and_wait("shared")
    other = reader.another_tab()
    expect(other.text).to_contain_text("You said: shared")
    reader.ask("endless")
    expect(other.text).to_contain_text("word30 ")
    other.button("Stop", of=other.page.locator("#composer")).click()
    for tab in (other, reader):
        tab.expect_status("stopped")
    reader.ask_and_wait("goes on")
    expect(other.text).to_contain_text("You said: goes on")


def test_a_tab_that_shows_another_branch_stays_there(reader: Visit) -> None:
    reader.ask_and_wait("one")
    reader.button("Try again").click()
    expect(reader.part("versions")).to_contain_text("2 of 2")
    reader.expect_status("done")
    other = reader.another_tab()
    expect(other.part("versions")).to_contain_text("2 of 2")
    reader.button("Version before").click()
    other.ask_and_wait("goes on below the second")
    expect(reader.part("versions")).to_contain_text("1 of 2")
    expect(reader.questions).to_have_count(1)
    reader.button("Version after").click()
    expect(reader.text).to_contain_text("goes on below the second")


# Reading the database lasts until `release()`, as with a slow disk: what this tab was told of by
# another is then older than what it has.
SLOW_READING = """
(kind) => {
  const released = new Promise((resolve) => (window.release = resolve));
  const { getAll } = window[kind].prototype;
  window[kind].prototype.getAll = function (...args) {
    const request = getAll.apply(this, args);
    const listen = request.addEventListener.bind(request);
    request.addEventListener = (name, listener, ...more) =>
      listen(name, async (event) => (await released, listener(event)), ...more);
    return request;
  };
}
"""


@pytest.mark.parametrize("read", ["IDBObjectStore", "IDBIndex"], ids=["chats", "messages"])
def test_what_is_newer_here_than_what_was_read_stays(reader: Visit, read: str) -> None:
    reader.ask_and_wait("first")
    other = reader.another_tab()
    expect(other.text).to_contain_text("You said: first")
    other.page.evaluate(SLOW_READING, read)
    other.ask("count 150")
    expect(other.text).to_contain_text("w3")
    # Told of the chat, the other tab reads it while its answer is on the way.
    reader.page.locator("#chat-list li").first.hover()
    reader.button("Pin", of=reader.chats.first).click()
    other.expect_status("done")
    other.ask_and_wait("later")
    other.new_chat()
    other.ask_and_wait("of another kind")
    other.page.evaluate("release()")
    other.page.wait_for_timeout(300)  # it is not to change
    expect(other.chats).to_have_count(2)
    other.open_chat("first")
    expect(other.questions).to_have_count(3)
    expect(other.answers).to_have_count(3)
    for answer in other.answers.all():
        expect(answer).to_have_attribute("data-status", "done")
    expect(reader.chats).to_have_count(2)


def test_a_chat_deleted_in_one_tab_goes_in_the_other(reader: Visit) -> None:
    three_chats(reader)
    other = reader.another_tab()
    expect(other.chats).to_have_count(3)
    reader.delete_chat("plums")
    expect(other.chats).to_have_count(2)
    expect(other.page.locator("#title")).not_to_have_text("plums")
    other.ask_and_wait("still works")


def test_another_tab_knows_of_chats_that_it_never_opened(reader: Visit) -> None:
    three_chats(reader)
    other = reader.another_tab()
    expect(other.chats).to_have_count(3)
    reader.delete_chat("apples")
    expect(other.chats).to_have_count(2)
    reader.open_chat("pears")
    reader.ask_and_wait("and then")
    other.open_chat("pears")
    expect(other.questions).to_have_count(2)


def test_a_chat_that_is_opened_slowly_has_what_came_meanwhile(reader: Visit) -> None:
    three_chats(reader)
    other = reader.another_tab()
    expect(other.text).to_contain_text("plums")
    other.page.evaluate(SLOW_READING, "IDBIndex")
    other.page.locator("#chat-list [data-action=open]").get_by_text("pears").click()
    reader.open_chat("pears")
    reader.ask_and_wait("and then")
    other.page.wait_for_timeout(200)  # it has been told
    other.page.evaluate("release()")
    expect(other.page.locator("#title")).to_have_text("pears")
    expect(other.questions).to_have_count(2)
    expect(other.text).to_contain_text("You said: and then")


def test_an_answer_ends_when_another_tab_deletes_its_chat(reader: Visit) -> None:
    reader.ask("endless")
    expect(reader.text).to_contain_text("word5")
    other = reader.another_tab()
    other.delete_chat("endless")
    expect(reader.page.locator("#empty")).to_be_visible()
    expect(reader.page.locator("#go")).to_have_attribute("data-mode", "send")


RUBBISH = [
    "{",
    "null",
    "[]",
    '{"kind": "ds4trio-chats", "version": 1, "chats": [null], "messages": [3]}',
    '{"kind": "ds4trio-chats", "version": 2, "chats": [], "messages": []}',
    '{"kind": "ds4trio-chats", "version": 1, "chats": [{"id": {"toString": 1}}], "messages": []}',
    json.dumps(
        {
            "kind": "ds4trio-chats",
            "version": 1,
            "chats": [
                {"id": "a", "leaf": "m", "title": {"x": 1}, "settings": 7, "pinned": "yes"},
                {"id": "b", "leaf": "gone", "title": "<img src=x onerror='window.pwned=1'>"},
            ],
            "messages": [
                {"id": "m", "chatId": "a", "parent": "m", "role": "system", "text": 5},
                {"id": "n", "chatId": "a", "parent": "m", "status": "nonsense", "calls": [{}]},
            ],
        }
    ),
]


def test_rubbish_is_refused_or_made_harmless(reader: Visit, tmp_path: Path) -> None:
    reader.ask_and_wait("mine")
    said = reader.page.locator("#composer-hint")
    for number, rubbish in enumerate(RUBBISH):
        file = tmp_path / "rubbish.json"
        file.write_text(rubbish)
        said.evaluate("element => { element.textContent = ''; }")
        reader.page.locator("#import-file").set_input_files(file)
        words = r"This file .*\." if number < 3 or number == 4 else r"\d chats? came in\."
        expect(said).to_have_text(re.compile(words))
    for item in reader.chats.all():
        item.get_by_role("button").first.click()
    reader.page.reload()
    reader.open_chat("mine")
    expect(reader.text).to_contain_text("You said: mine")
    reader.ask_and_wait("still works")
    assert reader.page.evaluate("window.pwned") is None


def test_the_keyboard_keeps_its_place_in_the_list(reader: Visit) -> None:
    three_chats(reader)
    focused = reader.page.locator(":focus")
    row = reader.chats.filter(has_text="apples")
    row.locator("[data-action=open]").focus()
    reader.page.keyboard.press("Tab")
    reader.page.keyboard.press("Enter")
    expect(row).to_have_attribute("data-pinned", "")
    expect(focused).to_have_attribute("aria-label", "Unpin")
    reader.page.keyboard.press("Tab")
    reader.page.keyboard.press("Enter")
    reader.page.get_by_label("Title").fill("ripe apples")
    reader.page.keyboard.press("Enter")
    expect(reader.chats.first).to_contain_text("ripe apples")
    expect(focused).to_have_attribute("aria-label", "Rename")
    reader.page.keyboard.press("Tab")
    for _ in range(2):  # the second time is the answer to "Delete?"
        reader.page.keyboard.press("Enter")
    expect(reader.chats).to_have_count(2)
    expect(focused).to_have_text("plums")  # the row that has taken its place


def test_a_search_says_at_its_field_what_it_found_and_enter_opens_it(reader: Visit) -> None:
    three_chats(reader)
    search = reader.page.get_by_label("Search all chats")
    search.fill("nowhere")
    nothing = reader.page.get_by_text("Nothing found")
    expect(nothing).to_be_visible()
    field, words = search.bounding_box(), nothing.bounding_box()
    assert field is not None
    assert words is not None
    assert words["y"] - (field["y"] + field["height"]) < 30
    search.fill("pears")
    search.press("Enter")
    expect(reader.page.locator("#title")).to_have_text("pears")
    expect(reader.text).to_contain_text("You said: pears")


def test_a_new_title_stands_wherever_the_chat_is_named(reader: Visit) -> None:
    reader.ask_and_wait("apples")
    reader.do_in_list("apples", "Rename")
    reader.page.get_by_label("Title").fill("ripe apples")
    reader.page.keyboard.press("Enter")
    expect(reader.page.locator("#title")).to_have_text("ripe apples")
    expect(reader.page).to_have_title("ripe apples · ds4trio")


def test_chats_that_are_here_do_not_come_in_once_more(reader: Visit) -> None:
    three_chats(reader)
    said = reader.page.locator("#composer-hint")
    with reader.page.expect_download() as exported:
        reader.page.get_by_role("button", name="Export").click()
    reader.page.locator("#import-file").set_input_files(exported.value.path())
    expect(said).to_have_text("All chats of this file are here already.")
    assert titles(reader) == ["plums", "pears", "apples"]
    reader.delete_chat("pears")
    reader.open_chat("plums")
    reader.ask_and_wait("more")  # it is not as it was any more
    reader.page.locator("#import-file").set_input_files(exported.value.path())
    expect(said).to_have_text("2 chats came in; 1 was here already.")
    assert sorted(titles(reader)) == ["apples", "pears", "plums", "plums"]


def test_a_new_chat_has_nothing_of_another(reader: Visit) -> None:
    reader.ask_and_wait("apples")
    reader.page.get_by_role("button", name="Settings").click()
    reader.page.get_by_label("Instructions").fill("Speak like a pirate.")
    reader.page.keyboard.press("Escape")
    settings = reader.page.locator("#settings-button")
    expect(settings).to_have_attribute("title", "Settings, changed for this chat")
    reader.questions.first.hover()
    reader.button("Delete", of=reader.questions.first).click()
    reader.button("Delete this and 1 after it?", of=reader.questions.first).click()
    expect(reader.questions).to_have_count(0)
    reader.new_chat()
    expect(settings).to_have_attribute("title", "Settings")
    reader.ask_and_wait("pears")
    assert "instructions" not in reader.body("pears")
    assert titles(reader) == ["pears", "New chat"]  # with what it was told


def selected(reader: Visit) -> str:
    return str(reader.page.evaluate("getSelection().toString()"))


def test_what_was_found_is_shown_and_opened_where_it_is(reader: Visit) -> None:
    reader.ask_and_wait("where is the Needle")
    reader.ask_and_wait("Explain")
    reader.edit(reader.questions.first, "another branch")
    reader.expect_status("done")
    for _ in range(3):
        reader.ask_and_wait("Explain")
    search = reader.page.get_by_label("Search all chats")
    found = reader.page.locator("#chat-list .excerpt")
    search.fill("said another")
    expect(found).to_have_text(["You said: another branch"])
    reader.new_chat()  # all chats are listed again
    expect(found).to_have_count(0)
    search.fill("said another")
    search.press("Enter")
    expect(reader.questions).to_have_count(4)
    expect(reader.answers.first).to_be_in_viewport()
    assert selected(reader) == "said"
    expect(reader.page.locator("#log")).to_be_focused()
    search.fill("EACH TOKEN it writes")
    expect(found).to_contain_text(["… for each token it writes. One reader"])
    expect(found.locator("mark")).to_have_text("each")
    found.click()
    expect(reader.page.get_by_text("for each token it writes").first).to_be_in_viewport()
    # A branch that is not shown.
    search.fill("you needle")
    expect(found).to_have_text(["You said: where is the Needle"])
    found.click()
    expect(reader.questions).to_have_count(2)
    expect(reader.answers.first).to_be_in_viewport()
    expect(reader.answers.first).to_contain_text("the Needle")
    assert selected(reader) == "You"


def test_what_can_be_done_with_a_chat_stands_beside_its_title(reader: Visit) -> None:
    three_chats(reader)
    reader.do_in_list("apples", "Pin")
    expect(reader.chats.first).to_have_attribute("data-pinned", "")
    for row in reader.chats.all():  # the second has the line below the pinned ones above it
        row.hover()
        title = row.locator("[data-action=open]").bounding_box()
        action = row.locator("[data-action=rename]").bounding_box()
        assert title is not None
        assert action is not None
        assert abs(title["y"] + title["height"] / 2 - action["y"] - action["height"] / 2) < 1.5


def chat_file(chats: list[dict[str, Any]], messages: list[dict[str, Any]]) -> FilePayload:
    content = {"kind": "ds4trio-chats", "version": 1, "chats": chats, "messages": messages}
    return FilePayload(
        name="chats.json", mimeType="application/json", buffer=json.dumps(content).encode()
    )


@pytest.mark.parametrize("leaf", [None, "of another chat", "gone"])
def test_a_file_that_names_no_message_to_show_hides_none(reader: Visit, leaf: str | None) -> None:
    chats: list[dict[str, Any]] = [
        {"id": "a", "title": "came in", "leaf": leaf},
        {"id": "b", "title": "other"},
    ]
    messages = [
        {"id": "mine", "chatId": "a", "parent": None, "role": "user", "text": "asked long ago"},
        {"id": "of another chat", "chatId": "b", "parent": None, "role": "user", "text": "no"},
    ]
    reader.ready()
    reader.page.locator("#import-file").set_input_files([chat_file(chats, messages)])
    reader.open_chat("came in")
    expect(reader.questions).to_have_count(1)
    expect(reader.questions).to_contain_text("asked long ago")
    reader.page.reload()
    expect(reader.questions).to_contain_text("asked long ago")


def test_settings_in_a_file_are_those_that_were_written(reader: Visit) -> None:
    chats = [
        {"id": "a", "title": "the server's", "leaf": "m", "settings": {"temperature": None}},
        {"id": "b", "title": "plain", "leaf": "n", "settings": {"temperature": 0}},
    ]
    messages = [
        {"id": name, "chatId": chat, "parent": None, "role": "user", "text": "asked"}
        for name, chat in (("m", "a"), ("n", "b"))
    ]
    reader.ready()
    reader.page.locator("#import-file").set_input_files([chat_file(chats, messages)])
    reader.open_chat("the server's")
    reader.ask_and_wait("one")
    assert "temperature" not in reader.body("one")
    reader.open_chat("plain")
    expect(reader.page.locator("#settings-button")).to_have_attribute("title", "Settings")
    reader.ask_and_wait("two")
    assert reader.body("two")["temperature"] == 0


def test_a_file_with_an_endless_title_leaves_the_list_quick(reader: Visit) -> None:
    chats = [{"id": "a", "title": "T" * 1_000_000, "leaf": "m"}]
    messages = [{"id": "m", "chatId": "a", "parent": None, "role": "user", "text": "asked"}]
    reader.ready()
    reader.page.locator("#import-file").set_input_files([chat_file(chats, messages)])
    title = reader.page.locator("#chat-list [data-action=open]").get_by_text("TTT")
    expect(title).to_have_count(1)
    assert len(title.text_content() or "") == 200
