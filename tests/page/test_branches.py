"""Other questions, other answers, and the way between them."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.page.texts import counted
from tests.page.visit import Visit

pytestmark = pytest.mark.browser


def test_an_edited_question_is_a_branch_and_the_old_one_stays(reader: Visit) -> None:
    reader.ask_and_wait("first")
    reader.ask_and_wait("second")
    reader.edit(reader.questions.nth(0), "another first")
    reader.expect_status("done")
    expect(reader.questions).to_have_count(1)
    expect(reader.text).to_contain_text("You said: another first")
    versions = reader.questions.first.locator("[data-part=versions]")
    expect(versions).to_contain_text("2 of 2")
    assert len(reader.body("another first")["input"]) == 1
    bubble = reader.questions.first.locator("article").bounding_box()
    place = versions.bounding_box()
    assert bubble is not None
    assert place is not None
    # Under the question's own end: at the other they would seem to be the answer's.
    assert abs(place["x"] + place["width"] - bubble["x"] - bubble["width"]) < 12
    reader.button("Version before", of=versions).click()
    expect(reader.questions).to_have_count(2)
    expect(reader.text).to_contain_text("You said: second")
    reader.page.reload()
    expect(reader.questions).to_have_count(2)
    reader.button("Version after", of=reader.questions.first).click()
    expect(reader.text).to_contain_text("You said: another first")


def test_editing_can_be_left(reader: Visit) -> None:
    reader.ask_and_wait("first")
    reader.button("Edit", of=reader.questions.last).click()
    field = reader.page.get_by_label("Your question, to be changed")
    field.fill("thrown away")
    field.press("Escape")
    expect(field).to_be_hidden()
    expect(reader.questions.last).to_contain_text("first")
    expect(reader.answers).to_have_count(1)


def test_another_answer_is_a_version(reader: Visit) -> None:
    reader.ask_and_wait("first")
    reader.button("Try again").click()
    expect(reader.part("versions")).to_contain_text("2 of 2")
    reader.expect_status("done")
    reader.ask_and_wait("second")
    before = reader.answers.first
    before.hover()
    reader.button("Version before", of=before).click()
    expect(reader.questions).to_have_count(1)  # what followed hangs on the other version
    expect(reader.part("versions")).to_contain_text("1 of 2")
    reader.button("Version after").click()
    expect(reader.questions).to_have_count(2)


def test_a_stopped_answer_goes_on(reader: Visit) -> None:
    reader.ask("count 200")
    expect(reader.text).to_contain_text("w30")
    reader.page.keyboard.press("Escape")
    reader.expect_status("stopped")
    reader.button("Continue").click()
    expect(reader.part("versions")).to_contain_text("2 of 2")
    reader.expect_status("done")
    assert reader.said().strip() == counted(1, 200).strip()
    body = reader.sent()["bodies"][-1]
    assert body["continue_final_message"] is True
    assert [item["role"] for item in body["input"]] == ["user", "assistant"]


def test_an_answer_that_met_its_limit_says_so_and_can_go_on(reader: Visit) -> None:
    reader.ask_and_wait("cut", "cut")
    expect(reader.part("note")).to_have_text("Reached the length limit")
    expect(reader.button("Continue")).to_be_visible()


def test_a_message_is_deleted_with_what_follows(reader: Visit) -> None:
    reader.ask_and_wait("first")
    reader.ask_and_wait("second")
    reader.button("Delete").click()
    reader.button("Delete?").click()
    expect(reader.answers).to_have_count(1)
    expect(reader.questions).to_have_count(2)
    expect(reader.page.locator("#log")).to_be_focused()  # from there the keyboard goes on
    reader.button("Answer this", of=reader.questions.last).click()
    expect(reader.answers).to_have_count(2)
    expect(reader.text).to_contain_text("You said: second")
    expect(reader.button("Answer this", of=reader.questions.last)).to_have_count(0)
    first = reader.questions.first
    first.hover()
    reader.button("Delete", of=first).click()
    reader.button("Delete this and 3 after it?", of=first).click()
    expect(reader.page.locator("#messages > li")).to_have_count(0)
    expect(reader.page.locator("#title")).to_have_text("New chat")
    reader.page.reload()
    reader.ready()
    expect(reader.page.locator("#messages > li")).to_have_count(0)


def test_a_second_answer_is_asked_for_with_other_words(reader: Visit) -> None:
    """At temperature 0 it would be the first one once more."""
    reader.ask_and_wait("first, then cut")
    for _ in range(2):
        reader.button("Try again").click()
        reader.expect_status("cut")
    expect(reader.part("versions")).to_contain_text("3 of 3")
    bodies = reader.sent()["bodies"][-3:]
    assert [body["temperature"] for body in bodies] == [0, 0.7, 0.7]
    reader.button("Continue").click()
    expect(reader.part("versions")).to_contain_text("4 of 4")
    assert reader.sent()["bodies"][-1]["temperature"] == 0
