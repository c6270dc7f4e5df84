"""The composer: keys, drafts, files, and the settings that go along."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, FilePayload, expect

from tests.page.visit import Visit, visit

pytestmark = pytest.mark.browser


def test_keys_send_break_lines_and_leave_input_methods_alone(reader: Visit) -> None:
    reader.ready()
    reader.draft.press_sequentially("one")
    reader.draft.press("Shift+Enter")
    reader.draft.press_sequentially("two")
    reader.draft.dispatch_event("keydown", {"key": "Enter", "isComposing": True})
    expect(reader.questions).to_have_count(0)
    reader.draft.press("Enter")
    asked = reader.questions.locator("[data-part=text]")
    expect(asked).to_have_text(re.compile("^one\ntwo$"))
    reader.expect_status("done")


def test_a_suggestion_is_asked_and_the_draft_stays(reader: Visit) -> None:
    reader.ready()
    reader.draft.fill("my own words")
    reader.page.get_by_role("button", name="Why does the sea have tides?").click()
    reader.expect_status("done")
    expect(reader.text).to_contain_text("You said: Why does the sea have tides?")
    expect(reader.draft).to_have_value("my own words")


def test_drafts_outlive_reloads_and_belong_to_their_chats(reader: Visit) -> None:
    reader.ask_and_wait("first")
    reader.draft.fill("for the first")
    reader.new_chat()
    reader.draft.fill("for the second")
    reader.page.reload()
    expect(reader.draft).to_have_value("for the second")
    reader.open_chat("first")
    expect(reader.draft).to_have_value("for the first")
    reader.page.reload()
    expect(reader.draft).to_have_value("for the first")


def test_other_words_for_a_question_outlive_reloads_until_they_are_asked(reader: Visit) -> None:
    reader.ask_and_wait("first")
    reader.button("Edit", of=reader.questions.last).click()
    words = reader.page.get_by_label("Your question, to be changed")
    words.fill("first, in other words")
    reader.page.reload()
    expect(words).to_have_value("first, in other words")
    words.press("End")
    words.type(", at last")
    reader.new_chat()  # at once
    reader.open_chat("first")
    expect(words).to_have_value("first, in other words, at last")
    words.press("Enter")
    expect(reader.text).to_contain_text("You said: first, in other words, at last")
    reader.button("Edit", of=reader.questions.last).click()
    words.fill("never asked")
    words.press("Escape")
    reader.page.reload()
    expect(reader.questions.last).to_contain_text("first, in other words")
    expect(words).to_have_count(0)


def test_what_is_written_before_the_page_is_ready_is_kept(reader: Visit) -> None:
    reader.ready()
    reader.page.add_init_script(
        """new MutationObserver((_, observer) => {
          const field = document.getElementById("draft");
          if (!field) return;
          observer.disconnect();
          field.value = "early words";
        }).observe(document, {childList: true, subtree: true});"""
    )
    reader.page.reload()
    reader.ready()
    expect(reader.draft).to_have_value("early words")


def test_a_draft_can_be_written_while_an_answer_comes(reader: Visit) -> None:
    reader.ask("endless")
    expect(reader.text).to_contain_text("word3")
    reader.draft.fill("next")
    reader.draft.press("Enter")
    expect(reader.draft).to_have_value("next")
    reader.page.keyboard.press("Escape")
    reader.expect_status("stopped")
    reader.draft.press("Enter")
    expect(reader.text).to_contain_text("You said: next")


def test_enter_says_why_it_does_nothing_while_an_answer_comes(reader: Visit) -> None:
    reader.ask("endless")
    expect(reader.text).to_contain_text("word3")
    reader.draft.fill("next")
    reader.draft.press("Enter")
    expect(reader.page.locator("#composer-hint")).to_contain_text("still being written")
    reader.draft.press("Escape")
    reader.expect_status("stopped")
    expect(reader.page.locator("#composer-hint")).to_contain_text("Enter sends")


def test_files_go_along_as_text(reader: Visit) -> None:
    reader.ready()
    note = FilePayload(name="notes.md", mimeType="text/markdown", buffer=b"use ``` here")
    picture = FilePayload(name="cat.png", mimeType="image/png", buffer=b"\x89PNG\x00\xff")
    reader.page.locator("#attach-file").set_input_files([note, picture])
    expect(reader.page.locator("#files li")).to_have_count(1)
    expect(reader.page.locator("#composer-hint")).to_contain_text("cat.png is not a text")
    reader.ask_and_wait("look at this")
    expect(reader.questions.last.locator("li")).to_have_text("notes.md, 12 characters")
    content = reader.body("look at this")["input"][-1]["content"]
    assert content == "notes.md\n````\nuse ``` here\n````\n\nlook at this"
    reader.questions.last.get_by_text("notes.md, 12 characters").click()
    expect(reader.questions.last.get_by_text("use ``` here", exact=True)).to_be_visible()
    expect(reader.page.locator("#files")).to_be_hidden()


def test_a_long_text_is_pasted_as_a_file(reader: Visit) -> None:
    reader.context.grant_permissions(["clipboard-read", "clipboard-write"])
    reader.ready()
    reader.page.evaluate("navigator.clipboard.writeText('word '.repeat(200_000))")
    reader.draft.focus()
    reader.page.keyboard.press("Control+V")
    expect(reader.page.locator("#files li")).to_contain_text("Pasted text.txt")
    expect(reader.draft).to_have_value("")
    reader.page.get_by_text("Pasted text.txt").click()
    pasted = reader.page.locator("#files pre")
    expect(pasted).to_contain_text("word word word")
    expect(pasted).to_contain_text("(900,000 more characters)")
    box = pasted.bounding_box()
    assert box is not None
    assert box["height"] < 300  # there is still room to write


def test_a_double_click_asks_and_the_button_stops_though_more_is_written(reader: Visit) -> None:
    reader.ready()
    reader.draft.fill("endless")
    reader.page.locator("#go").dblclick()
    expect(reader.text).to_contain_text("word20")
    reader.draft.fill("next")
    reader.button("Stop", of=reader.page.locator("#composer")).click()
    reader.expect_status("stopped")
    expect(reader.draft).to_have_value("next")


def test_files_that_were_not_sent_outlive_a_reload(reader: Visit) -> None:
    file: FilePayload = {"name": "kept.txt", "mimeType": "text/plain", "buffer": b"seven"}
    files = reader.page.locator("#files > li")
    reader.ready()
    reader.page.locator("#attach-file").set_input_files([file])
    expect(files).to_have_count(1)
    reader.page.wait_for_timeout(100)
    reader.page.reload()
    expect(files).to_contain_text("kept.txt")
    reader.ask_and_wait("what is in it")
    assert "seven" in reader.body("what is in it")["input"][-1]["content"]
    reader.page.reload()
    expect(reader.questions).to_have_count(1)
    expect(files).to_have_count(0)


def test_a_touch_beside_the_settings_only_closes_them(browser: Browser, scripted_url: str) -> None:
    with visit(browser, scripted_url, has_touch=True) as reader:
        reader.ask_and_wait("apples")
        reader.new_chat()
        reader.page.locator("#settings-button").tap()
        apples = reader.page.locator("#chat-list [data-action=open]").get_by_text("apples")
        box = apples.bounding_box()
        assert box is not None
        reader.page.touchscreen.tap(box["x"] + 20, box["y"] + 10)
        expect(reader.page.locator("#settings")).to_be_hidden()
        reader.page.wait_for_timeout(200)
        expect(reader.page.locator("#title")).to_have_text("New chat")


def test_settings_belong_to_a_chat_and_are_sent(reader: Visit) -> None:
    reader.ask_and_wait("plain")
    body = reader.body("plain")
    assert body["store"] is True
    assert body["background"] is True
    assert not {"instructions", "top_p", "seed", "reasoning"} & set(body)
    reader.page.get_by_role("button", name="Settings").click()
    for label, value in (
        ("Instructions", "Be brief."),
        ("Temperature", "0.7"),
        ("Top p", "0.9"),
        ("Top k", "40"),
        ("Min p", "0.05"),
        ("Longest answer", "100"),
        ("Seed", "7"),
    ):
        reader.page.get_by_label(label, exact=True).fill(value)
    reader.page.get_by_label("Thinking", exact=True).select_option("low")
    reader.page.get_by_role("button", name="Done").click()
    reader.ask_and_wait("with settings")
    body = reader.body("with settings")
    expected = {
        "instructions": "Be brief.",
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "max_output_tokens": 100,
        "seed": 7,
        "reasoning": {"effort": "low"},
    }
    assert {name: body[name] for name in expected} == expected
    reader.page.reload()
    reader.ask_and_wait("after a reload")
    assert reader.body("after a reload")["instructions"] == "Be brief."
    reader.new_chat()
    reader.ask_and_wait("in another chat")
    assert "instructions" not in reader.body("in another chat")


def test_a_right_to_left_chat_runs_right_to_left(reader: Visit) -> None:
    reader.ask_and_wait("שלום לכולם")
    is_rtl = "element => element.matches(':dir(rtl)')"
    asked = reader.questions.last.locator("[data-part=text]")
    assert asked.evaluate(is_rtl)
    reader.draft.fill("שלום")
    assert reader.draft.evaluate(is_rtl)
    reader.ask_and_wait("first from the left\n\nثم من اليمين")
    assert reader.text.locator(".block").evaluate_all(f"all => all.map({is_rtl})") == [False, True]


def test_nothing_moves_for_those_who_asked_for_it(browser: Browser, scripted_url: str) -> None:
    with visit(browser, scripted_url, reduced_motion="reduce") as seen:
        seen.ask("ponder")
        seen.expect_status("reasoning", "waiting", "prefill")
        running = "document.getAnimations().filter((one) => one.playState === 'running').length"
        assert seen.page.evaluate(running) == 0
        seen.page.keyboard.press("Escape")
        seen.expect_status("stopped")


DROP = """(element, kind) => {
  const data = new DataTransfer();
  data.items.add(new File(["from a folder"], "dropped.txt"));
  const event = new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true });
  return !element.dispatchEvent(event);
}"""


def test_a_file_can_be_dropped_anywhere_on_a_chat_and_never_replaces_the_page(
    reader: Visit,
) -> None:
    reader.ready()
    pane = reader.page.locator("#pane")
    log = reader.page.locator("#log")
    assert log.evaluate(DROP, "dragover")
    expect(pane).to_have_attribute("data-dragged", "")
    assert log.evaluate(DROP, "drop")
    expect(reader.page.locator("#files li")).to_contain_text("dropped.txt")
    expect(pane).not_to_have_attribute("data-dragged", "")
    elsewhere = reader.page.locator("#chats")
    assert elsewhere.evaluate(DROP, "dragover")
    assert elsewhere.evaluate(DROP, "drop")
    expect(reader.page.locator("#files li")).to_have_count(1)


def test_a_file_and_the_button_that_leaves_it_out_stand_in_one_row(reader: Visit) -> None:
    reader.ready()
    note = FilePayload(name="notes.md", mimeType="text/markdown", buffer=b"noted")
    reader.page.locator("#attach-file").set_input_files([note])
    item = reader.page.locator("#files li").bounding_box()
    button = reader.page.get_by_role("button", name="Leave notes.md out").bounding_box()
    assert item is not None
    assert button is not None
    assert item["height"] < button["height"] + 10


def test_what_is_told_below_the_composer_goes_with_the_next_question(reader: Visit) -> None:
    reader.ready()
    hint = reader.page.locator("#composer-hint")
    picture = FilePayload(name="cat.png", mimeType="image/png", buffer=b"\x89PNG\x00\xff")
    reader.page.locator("#attach-file").set_input_files([picture])
    expect(hint).to_contain_text("cat.png is not a text")
    reader.ask_and_wait("without it")
    expect(hint).to_contain_text("Enter sends")
