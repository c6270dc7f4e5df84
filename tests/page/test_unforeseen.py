"""What readers and models did that nobody had foreseen: slow or broken storage, code that takes
minutes to colour, tabs that are closed, files by the hundred."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, FilePayload, expect

from tests.page.odd import answer_oddly, said
from tests.page.visit import Visit, visit

pytestmark = pytest.mark.browser

HOLD = """() => new Promise((resolve) => {
  const opening = indexedDB.open("ds4trio");
  opening.onsuccess = () => {
    const stores = [...opening.result.objectStoreNames];
    const store = opening.result.transaction(stores, "readwrite").objectStore("chats");
    window.held = true;
    const spin = () => {
      if (window.held) store.get("none").onsuccess = spin;
      else opening.result.close();
    };
    spin();
    resolve();
  };
})"""
"""Nothing can be read from the database, or written to it, until it is let go."""
LET_GO = "() => { window.held = false; }"

WATCH_TASKS = """() => {
  window.longest = 0;
  const note = ({duration}) => { window.longest = Math.max(window.longest, duration); };
  new PerformanceObserver((list) => list.getEntries().forEach(note)).observe({type: "longtask"});
}"""


def two_chats(reader: Visit) -> None:
    """The first of them is open."""
    for title in ("apples", "pears"):
        reader.ask_and_wait(title)
        reader.new_chat()
    reader.open_chat("apples")


def test_code_that_takes_minutes_to_colour_leaves_the_page_quick(reader: Visit) -> None:
    slow = "```markdown\n" + "[a](" * 5000 + "\n```\n\n"
    answer_oddly(reader, {"code": [said(f'{slow}```json\n{{"a": 1}}\n```\n')]})
    reader.page.evaluate(WATCH_TASKS)
    reader.ask_and_wait("code", "done")
    expect(reader.text.locator("[data-language=json] .hljs-attr")).to_be_visible()
    assert reader.page.evaluate("window.longest") < 2_000


def test_a_file_full_of_code_marks_is_sent(reader: Visit) -> None:
    answer_oddly(reader, {})
    reader.ready()
    marks: FilePayload = {"name": "a.md", "mimeType": "text/plain", "buffer": b"`a` " * 100_000}
    reader.page.locator("#attach-file").set_input_files([marks])
    expect(reader.page.locator("#files li")).to_have_count(1)
    reader.ask_and_wait("look", "done")


def test_a_chat_that_is_deleted_while_it_is_read_is_not_shown(reader: Visit) -> None:
    two_chats(reader)
    reader.page.reload()
    expect(reader.questions.last).to_contain_text("apples")
    reader.page.evaluate(HOLD)
    reader.page.locator("#chat-list [data-action=open]").get_by_text("pears", exact=True).click()
    reader.delete_chat("pears")
    reader.page.evaluate(LET_GO)
    reader.page.wait_for_timeout(300)
    reader.ask_and_wait("is this lost?")
    expect(reader.questions.first).to_contain_text("apples")


UNREADABLE = """
const getAll = IDBIndex.prototype.getAll;
IDBIndex.prototype.getAll = function (...given) {
  if (this.name === "status") throw new DOMException("It is damaged.", "UnknownError");
  return getAll.apply(this, given);
};"""


def test_a_page_that_cannot_read_everything_works_all_the_same(reader: Visit) -> None:
    reader.ask_and_wait("first")
    reader.context.add_init_script(UNREADABLE)
    reader.page.reload()
    expect(reader.page.locator("#composer-hint")).to_contain_text("read all its chats")
    expect(reader.questions.last).to_contain_text("first")
    reader.ask_and_wait("and now")


def test_a_database_that_never_opens_is_done_without(browser: Browser, scripted_url: str) -> None:
    with visit(browser, scripted_url) as reader:
        reader.page.clock.install()
        reader.context.add_init_script("IDBFactory.prototype.open = () => new EventTarget();")
        reader.page.reload()
        reader.page.clock.run_for(11_000)
        expect(reader.chats).not_to_have_count(0)
        reader.ask_and_wait("and now")
        expect(reader.page.locator("#composer-hint")).to_contain_text("keep its chats")


def test_what_is_asked_long_after_the_start_is_kept(browser: Browser, scripted_url: str) -> None:
    with visit(browser, scripted_url) as reader:
        reader.page.clock.install()
        reader.page.reload()
        reader.ready()
        reader.page.clock.run_for(600_000)
        reader.ask_and_wait("kept")
        expect(reader.page.locator("#composer-hint")).not_to_contain_text("keep its chats")
        reader.page.reload()
        expect(reader.text).to_contain_text("You said: kept")


def test_an_answer_goes_on_in_the_tab_that_stays(reader: Visit) -> None:
    reader.ask_and_wait("count 400")
    other = reader.another_tab()
    other.expect_status("done")
    other.answers.last.hover()
    other.button("Try again").click()
    expect(other.text).to_contain_text("w9 ")
    expect(reader.answers.last).to_contain_text("1 of 2")
    reader.answers.last.hover()
    reader.button("Version after").click()
    expect(reader.text).to_contain_text("w1 ")
    other.page.close()
    reader.expect_status("done")
    expect(reader.text).to_contain_text("w400")


def test_json_is_shown_as_it_was_written(reader: Visit) -> None:
    written = '{"2":12345678901234567890,"1":[1.10,{},[]],"a \\" {b":"x, y: z"}'
    answer_oddly(reader, {"json": [said(written)]})
    reader.ask_and_wait("json", "done")
    shown = reader.text.locator("code").inner_text()
    assert re.sub(r"\n *|(?<=:) (?=[\[\"\d])", "", shown) == written
    assert shown.splitlines()[:3] == ["{", '  "2": 12345678901234567890,', '  "1": [']


def test_without_a_database_chats_are_exported_and_searched_with_their_messages(
    browser: Browser, scripted_url: str
) -> None:
    with visit(browser, scripted_url) as reader:
        refused = "IDBFactory.prototype.open = () => { throw new DOMException('No.'); };"
        reader.context.add_init_script(refused)
        reader.page.reload()
        reader.ask_and_wait("first")
        with reader.page.expect_download() as download:
            reader.page.get_by_role("button", name="Export").click()
        exported = json.loads(Path(download.value.path()).read_text())
        assert [message["text"] for message in exported["messages"]] == [
            "first",
            "You said: first",
        ]
        reader.page.locator("#search").fill("you said")
        expect(reader.page.locator("#chat-list .excerpt")).to_have_text("You said: first")


def test_what_is_found_too_late_is_not_shown(reader: Visit) -> None:
    two_chats(reader)
    search = reader.page.locator("#search")
    reader.page.evaluate(HOLD)
    search.fill("apples")
    reader.page.wait_for_timeout(400)
    search.fill("")
    reader.page.wait_for_timeout(400)
    reader.page.evaluate(LET_GO)
    reader.page.wait_for_timeout(300)
    expect(reader.chats.filter(has_text="pears")).to_have_count(1)


def test_a_search_without_a_readable_database_finds_titles(reader: Visit) -> None:
    two_chats(reader)
    refused = "() => { IDBObjectStore.prototype.getAll = () => { throw new DOMException('No.'); } }"
    reader.page.evaluate(refused)
    reader.page.locator("#search").fill("pears")
    expect(reader.chats).to_have_count(1)
    reader.page.locator("#search").fill("a " * 150_000)
    expect(reader.chats).to_have_count(2)


def test_settings_stay_those_of_their_chat(reader: Visit) -> None:
    two_chats(reader)
    reader.open_chat("pears")
    other = reader.another_tab()
    expect(other.questions.last).to_contain_text("pears")
    reader.page.get_by_role("button", name="Settings").click()
    other.delete_chat("pears")
    expect(reader.page.locator("#empty")).to_be_visible()  # it is in another chat now
    reader.page.get_by_label("Temperature").fill("1.5")
    reader.page.get_by_role("button", name="Done").click()
    reader.ask_and_wait("as cold as ever")
    assert reader.body("as cold as ever")["temperature"] == 0


def test_words_are_selected_beyond_the_edge_of_the_settings(reader: Visit) -> None:
    reader.ready()
    reader.page.get_by_role("button", name="Settings").click()
    settings = reader.page.locator("#settings")
    field = reader.page.get_by_label("Instructions").bounding_box()
    assert field is not None
    reader.page.mouse.move(field["x"] + 100, field["y"] + 15)
    reader.page.mouse.down()
    reader.page.mouse.move(10, field["y"] + 15)
    reader.page.mouse.up()
    reader.page.mouse.click(field["x"] - 8, field["y"])  # beside the fields
    expect(settings).to_be_visible()
    reader.page.mouse.click(10, 10)
    expect(settings).to_be_hidden()


def test_files_by_the_hundred_leave_room_for_the_conversation(reader: Visit) -> None:
    reader.ready()
    kept = """() => {
      window.puts = 0;
      const put = IDBObjectStore.prototype.put;
      IDBObjectStore.prototype.put = function (...given) {
        window.puts += this.name === "files";
        return put.apply(this, given);
      };
    }"""
    reader.page.evaluate(kept)
    many: list[FilePayload] = [
        {"name": f"{number}.txt", "mimeType": "text/plain", "buffer": b"text"}
        for number in range(200)
    ]
    reader.page.locator("#attach-file").set_input_files(many)
    expect(reader.page.locator("#files li")).to_have_count(200)
    assert reader.page.evaluate("window.puts") == 1
    assert reader.page.locator("#log").evaluate("log => log.clientHeight") > 200


def test_another_version_is_shown_where_the_reader_is(reader: Visit) -> None:
    reader.ask_and_wait("alpha")
    reader.edit(reader.questions.last, "beta")
    reader.expect_status("done")
    for _ in range(3):
        reader.ask_and_wait("markdown")
    log = reader.page.locator("#log")
    log.hover()
    reader.page.mouse.wheel(0, -9000)
    reader.page.wait_for_function("document.getElementById('log').scrollTop === 0")
    for name, text in (("Version before", "alpha"), ("Version after", "beta")):
        reader.button(name, of=reader.questions.first).click()
        expect(reader.questions.first).to_contain_text(text)
        expect(reader.questions.first).to_be_in_viewport()
    reader.ask_and_wait("markdown")
    expect(reader.answers.last.locator(".stats")).to_be_in_viewport()


def test_a_held_escape_leaves_an_edit_and_stops_no_answer(reader: Visit) -> None:
    reader.ask_and_wait("first")
    reader.ask("endless")
    expect(reader.text).to_contain_text("word5")
    question = reader.questions.first
    question.hover()
    reader.button("Edit", of=question).click()
    for _ in range(4):
        reader.page.keyboard.down("Escape")
    reader.page.keyboard.up("Escape")
    expect(reader.page.locator(".editing")).to_have_count(0)
    expect(reader.text).to_contain_text("word60")
    reader.expect_status("answering")
    reader.page.keyboard.press("Escape")
    reader.expect_status("stopped")


def test_a_refusal_that_is_no_text_is_told_and_tried_again(reader: Visit) -> None:
    reader.ready()
    refusal = {"error": {"message": {"toString": 1}}}
    reader.page.route("**/v1/models", lambda route: route.fulfill(status=400, json=refusal))
    reader.page.reload()
    notice = reader.page.locator("#notice")
    expect(notice).to_contain_text("The server refused the connection: HTTP 400")
    reader.page.unroute("**/v1/models")
    expect(notice).to_be_hidden()
    reader.errors.clear()  # the browser itself reports each refusal


def test_a_long_chat_whose_end_is_not_known_comes_in_at_once(reader: Visit, tmp_path: Path) -> None:
    def message(number: int) -> dict[str, object]:
        parent = f"{number - 1}" if number else None
        return {"id": f"{number}", "chatId": "c", "parent": parent, "createdAt": number}

    chats = [{"id": "c", "title": "Long"}]
    messages = [message(number) for number in range(20_000)]
    file = tmp_path / "long.json"
    data = {"kind": "ds4trio-chats", "version": 1, "chats": chats, "messages": messages}
    file.write_text(json.dumps(data))
    reader.ready()
    reader.page.evaluate(WATCH_TASKS)
    reader.page.locator("#import-file").set_input_files(file)
    expect(reader.page.locator("#composer-hint")).to_contain_text("1 chat came in")
    longest = reader.page.evaluate("window.longest")
    print(f"{longest:.0f} ms at a time at most")
    assert longest < 2_000


FULL = """
const put = IDBObjectStore.prototype.put;
IDBObjectStore.prototype.put = function (...given) {
  if (window.full) throw new DOMException("No room.", "QuotaExceededError");
  return put.apply(this, given);
};"""


def test_an_answer_is_not_asked_anew_for_what_could_not_be_kept_once(reader: Visit) -> None:
    reader.context.add_init_script(FULL)
    reader.page.reload()
    reader.ask_and_wait("first")
    reader.page.evaluate("window.full = true")
    reader.ask("count 100")
    reader.page.evaluate("window.full = false")
    reader.expect_status("done")
    identifier = reader.answers.last.get_attribute("data-id")
    reader.page.wait_for_timeout(300)
    asked = len(reader.sent()["bodies"])
    reader.page.reload()
    expect(reader.answers.last).to_have_attribute("data-id", identifier or "")
    reader.expect_status("done")
    expect(reader.text).to_contain_text("w100")
    assert len(reader.sent()["bodies"]) == asked


def test_an_excerpt_has_the_words_after_letters_that_grow(reader: Visit) -> None:
    reader.ask_and_wait("\u0130" * 200 + " the needle " + "\U0001f600" * 100)
    reader.page.locator("#search").fill("needle")
    excerpt = reader.page.locator("#chat-list .excerpt")
    expect(excerpt).to_contain_text("the needle")
    assert "\ufffd" not in excerpt.evaluate("line => line.textContent.toWellFormed()")
    reader.page.keyboard.press("Enter")
    reader.page.wait_for_function("() => getSelection().toString() === 'needle'")


def test_a_long_name_of_the_model_leaves_the_header_whole(reader: Visit) -> None:
    named = {"data": [{"id": "model" * 100, "context_length": 8192}]}
    reader.page.route("**/v1/models", lambda route: route.fulfill(json=named))
    reader.page.reload()
    expect(reader.page.locator("#model")).to_contain_text("model")
    reader.page.locator("#panel-button").click()
    for width in (320, 560, 640, 820, 1000, 1280):
        reader.page.set_viewport_size({"width": width, "height": 350})
        wide = "document.documentElement.scrollWidth > innerWidth"
        assert not reader.page.evaluate(wide)
        expect(reader.page.locator("#title")).to_be_in_viewport()


def test_a_chat_that_is_still_read_is_not_opened_twice(browser: Browser, scripted_url: str) -> None:
    with visit(browser, scripted_url, viewport={"width": 1440, "height": 900}) as reader:
        for title in ("apples", "pears", "plums"):
            reader.ask_and_wait(title)
            reader.new_chat()
        reader.open_chat("apples")
        pears = reader.page.locator("#chat-list [data-action=open]").get_by_text("pears")
        pears.click(modifiers=["Control"])
        expect(reader.page.locator("#pane-beside .question")).to_have_count(1)
        reader.page.reload()
        expect(reader.page.locator("#pane-beside .question")).to_have_count(1)
        reader.page.evaluate(HOLD)
        plums = reader.page.locator("#chat-list [data-action=open]").get_by_text("plums")
        for draft in ("#draft", "#draft-beside"):
            reader.page.locator(draft).click()
            plums.click()
        reader.page.evaluate(LET_GO)
        shown = reader.page.locator(".pane .question .text")
        expect(shown).to_have_text(["plums", "pears"])


def test_a_clock_that_is_set_back_changes_no_order(reader: Visit) -> None:
    reader.ask_and_wait("what time is it?")
    reader.page.evaluate("() => { const now = Date.now; Date.now = () => now() - 3_600_000; }")
    reader.answers.last.hover()
    reader.button("Try again").click()
    reader.expect_status("done")
    expect(reader.part("versions")).to_contain_text("2 of 2")
    assert reader.body("what time is it?")["temperature"] == 0.7
