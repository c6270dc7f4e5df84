"""The page against ``ds4trio`` itself: with a tiny model, whose text may be anything, and with the
default one, whose text makes sense."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.page.visit import Visit, visit
from tests.serve_check import started, wait_until_ready

pytestmark = pytest.mark.browser


def test_two_questions_survive_a_reload_with_the_draft(real: Visit) -> None:
    real.ask_and_cut_short("The first question")
    real.ask_and_cut_short("The second question")
    answers = [real.answers.nth(number).locator("[data-part=text]") for number in (0, 1)]
    before = [answer.inner_text() for answer in answers]
    assert all(before)
    real.draft.fill("Half a thou")
    real.page.reload()
    expect(real.questions).to_have_count(2)
    assert [answer.inner_text() for answer in answers] == before
    expect(real.draft).to_have_value("Half a thou")
    real.ask_and_cut_short("The third question")


def test_an_answer_comes_with_its_speed_and_its_company(real: Visit) -> None:
    real.ask_and_cut_short("How fast are you?")
    words = r"\d+ tokens? · .*(alone in its batches|[\d.]+ to a batch)"
    expect(real.part("stats")).to_have_text(re.compile(words))
    assert real.part("dots").locator("i").count() >= 1


def test_stopping_before_the_first_word_leaves_the_page_ready(real: Visit) -> None:
    real.ask("Tell me a long story")
    real.page.keyboard.press("Escape")
    real.expect_status("stopped", "done", "cut")
    real.ask_and_cut_short("And now?")


def test_the_model_is_named_and_the_policy_holds(real: Visit) -> None:
    expect(real.page.locator("#link-text")).to_have_text("Connected")
    expect(real.page.locator("#model")).not_to_be_empty()
    response = real.page.request.get(real.url)
    assert "script-src 'self'" in response.headers["content-security-policy"]


def test_two_chats_stream_at_once_and_the_panel_shows_it(real: Visit) -> None:
    real.page.get_by_role("button", name="Server").click()
    real.ask("The first of two")
    expect(real.text).not_to_be_empty(timeout=60_000)
    real.new_chat()
    real.ask("The second of two")
    expect(real.text).not_to_be_empty(timeout=60_000)
    expect(real.page.locator("#chat-list > li[data-busy]")).to_have_count(2)
    expect(real.page.locator("#panel")).to_contain_text(re.compile(r"Answers now2 of \d+"))
    expect(real.part("stats")).to_contain_text("batch of 2")
    real.page.keyboard.press("Escape")
    real.expect_status("stopped")
    real.open_chat("The first of two")
    real.expect_status("answering")
    real.page.keyboard.press("Escape")
    real.expect_status("stopped")


def test_the_api_can_be_read_here(real: Visit) -> None:
    """Every operation and every message is shown, links open what they lead to, and nothing comes
    from elsewhere (``visit`` sees to that)."""
    real.page.goto(real.url + "/docs")
    expect(real.page.locator("main")).not_to_have_attribute("aria-busy", "true")
    shown = set(real.page.locator("details > summary > code").all_text_contents())
    http = real.page.request.get(real.url + "/openapi.json").json()
    socket = real.page.request.get(real.url + "/asyncapi.json").json()
    assert shown >= {*http["paths"], *socket["components"]["messages"]}
    box = real.page.locator("#post_v1_chat_completions")
    box.locator("summary").click()
    expect(box.get_by_role("cell", name="max_completion_tokens")).to_be_visible()
    box.get_by_role("link", name="Message").click()
    expect(real.page.locator("#http-Message").get_by_role("cell", name="role")).to_be_visible()


# With the default model


@pytest.fixture(scope="module")
def default_url() -> Iterator[str]:
    with started(f"exec {sys.executable} -m ds4trio serve") as (_, address):
        wait_until_ready(address)
        yield address


@pytest.fixture
def default(browser: Browser, default_url: str) -> Iterator[Visit]:
    with visit(browser, default_url) as seen:
        yield seen


@pytest.mark.model
def test_the_default_model_answers_and_remembers(default: Visit) -> None:
    default.ask_and_wait("What is the capital of France? Answer in one word.")
    expect(default.text).to_contain_text("Paris")
    default.ask_and_wait("And of Italy?")
    expect(default.text).to_contain_text("Rome")


@pytest.mark.model
def test_the_default_model_writes_three_answers_at_once(default: Visit) -> None:
    default.ask_and_wait("Name a colour.")
    default.button("Ask three times").click()
    for version in ("2 of 4", "3 of 4", "4 of 4"):
        expect(default.part("versions")).to_contain_text(version)
        default.expect_status("done", "cut")
        expect(default.text).not_to_be_empty()
        if version != "4 of 4":
            default.button("Version after").click()
