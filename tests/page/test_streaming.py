"""Answers as they come, stopped, failed, and what they cost."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.page.visit import Visit

pytestmark = pytest.mark.browser


def test_text_streams_in_while_the_answer_is_written(reader: Visit) -> None:
    reader.ask("endless")
    expect(reader.text).to_contain_text("word1 word2")
    reader.expect_status("answering")
    earlier = reader.said()
    expect(reader.text).to_contain_text("word100")
    assert reader.said().startswith(earlier[:-8])
    live = re.compile(r"^[\d.]+ tokens/s · batch of 4$")
    expect(reader.part("stats")).to_have_text(live)
    expect(reader.part("dots").locator("i")).to_have_count(4)


def test_the_button_stops_and_what_was_said_is_kept(reader: Visit) -> None:
    reader.ask("endless")
    expect(reader.text).to_contain_text("word5")
    reader.page.get_by_role("button", name="Stop", exact=True).click()
    reader.expect_status("stopped")
    expect(reader.text).to_contain_text("word5")
    reader.ask_and_wait("and now")
    body = reader.body("and now")
    assert [item["role"] for item in body["input"]] == ["user", "assistant", "user"]


def test_a_server_deaf_to_the_cancel_is_stopped_by_closing(reader: Visit) -> None:
    reader.ask("stuck")
    expect(reader.text).to_contain_text("word3")
    reader.page.keyboard.press("Escape")
    expect(reader.part("note")).to_have_text("Stopping")
    reader.expect_status("stopped")
    reader.ask_and_wait("and now")


def test_thoughts_are_folded_when_the_answer_comes(reader: Visit) -> None:
    reader.ask("think endless")
    fold = reader.part("reasoning")
    expect(reader.text).to_contain_text("word3")
    expect(fold).not_to_have_attribute("open", "")
    fold.locator("summary").click()
    expect(fold).to_contain_text("thought1 thought2")
    expect(reader.text).to_contain_text("word60")
    expect(fold).to_have_attribute("open", "")  # the reader's choice is left alone
    reader.page.keyboard.press("Escape")
    reader.expect_status("stopped")


def test_an_answer_tells_what_it_cost(reader: Visit) -> None:
    reader.ask_and_wait("alpha")
    stats = reader.part("stats")
    expect(stats).to_contain_text("42.5 tokens/s")
    expect(stats).to_contain_text("first in 0.25 s")
    expect(stats).to_contain_text("250 of 1,000 cached")
    expect(reader.page.locator("#context-text")).to_contain_text("of 8,192 tokens of context")
    reader.page.reload()
    expect(stats).to_contain_text("42.5 tokens/s")


def test_a_failed_batch_says_so_and_can_be_tried_again_or_continued(reader: Visit) -> None:
    reader.ask_and_wait("fail", "failed")
    expect(reader.part("fault")).to_contain_text("met a fault")
    expect(reader.text).to_contain_text("You said: fail")
    reader.button("Try again").click()
    expect(reader.part("versions")).to_contain_text("2 of 2")
    reader.expect_status("failed")
    reader.button("Continue").click()
    expect(reader.part("versions")).to_contain_text("3 of 3")
    reader.expect_status("failed")
    expect(reader.text).to_contain_text("You said: fail")
    reader.ask_and_wait("after it")


def test_a_refused_question_is_kept_and_can_be_put_shorter(reader: Visit) -> None:
    reader.ask_and_wait("too long", "failed")
    expect(reader.part("fault")).to_contain_text("8192")
    reader.button("Edit", of=reader.questions.last).click()
    reader.page.get_by_label("Your question, to be changed").fill("shorter")
    reader.page.get_by_role("button", name="Ask", exact=True).click()
    reader.expect_status("done")
    expect(reader.text).to_contain_text("You said: shorter")
