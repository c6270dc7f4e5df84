"""Answers that go on though the page or its connection went: no gap, and no word twice."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.page.texts import counted
from tests.page.visit import Visit, scripted_server, visit

pytestmark = pytest.mark.browser


def whole(reader: Visit, last: int) -> None:
    reader.expect_status("done")
    assert reader.said().strip() == counted(1, last).strip()


def test_a_reload_in_mid_answer_goes_on(reader: Visit) -> None:
    reader.ask("count 300")
    expect(reader.text).to_contain_text("w40")
    reader.draft.fill("next thought")
    reader.page.reload()
    expect(reader.text).to_contain_text("w100")
    reader.page.reload()
    whole(reader, 300)
    expect(reader.draft).to_have_value("next thought")
    expect(reader.part("stats")).to_contain_text("300 tokens")
    reader.ask_and_wait("and now")
    assert len(reader.body("and now")["input"]) == 1  # the server knows the answer by its name


def test_a_reload_before_the_first_word_goes_on(reader: Visit) -> None:
    reader.ask("read count 20")
    reader.expect_status("prefill")
    reader.page.reload()
    whole(reader, 20)


def test_a_lost_socket_in_mid_answer_goes_on(reader: Visit) -> None:
    reader.ask("drop count 200")
    expect(reader.text).to_contain_text("w20")
    reader.expect_status("done")
    assert reader.said().strip() == f"before the drop {counted(1, 200)}".strip()
    expect(reader.page.locator("#link-text")).to_have_text("Connected")
    expect(reader.page.locator("#notice")).to_be_hidden()


def test_an_answer_that_is_followed_can_be_stopped(reader: Visit) -> None:
    reader.ask("endless")
    expect(reader.text).to_contain_text("word20")
    reader.page.reload()
    expect(reader.text).to_contain_text("word60")
    reader.page.keyboard.press("Escape")
    reader.expect_status("stopped")
    expect(reader.part("note")).to_have_text("Stopped")


def test_a_chat_that_is_not_shown_goes_on_after_a_reload(reader: Visit) -> None:
    reader.ask("count 150")
    reader.new_chat()
    reader.page.reload()
    reader.open_chat("count 150")
    whole(reader, 150)


def test_a_second_tab_shows_the_answer_that_is_coming(reader: Visit) -> None:
    reader.ask("count 250")
    expect(reader.text).to_contain_text("w20")
    other = reader.another_tab()
    expect(other.text).to_contain_text("w20")
    for tab in (reader, other):
        whole(tab, 250)
        tab.page.reload()
        whole(tab, 250)


def test_two_chats_stream_side_by_side_over_one_socket(reader: Visit) -> None:
    expect(reader.page.locator("#link-text")).to_have_text("Connected")
    before = reader.sent()["sockets"]
    reader.ask("count 250 first")
    reader.new_chat()
    reader.ask("count 251 second")
    expect(reader.text).to_contain_text("w20")
    expect(reader.page.locator("#chat-list > li[data-busy]")).to_have_count(2)
    reader.open_chat("count 250 first")
    reader.expect_status("answering")
    reader.draft.fill("kept apart")
    whole(reader, 250)
    reader.open_chat("count 251 second")
    whole(reader, 251)
    expect(reader.page.locator("#chat-list > li[data-busy]")).to_have_count(0)
    after = reader.sent()
    lanes = [body["stream_id"] for body in after["bodies"][-2:]]
    assert len(set(lanes)) == 2
    assert after["sockets"] == before


def test_an_answer_that_the_server_lost_is_kept_as_far_as_it_came(browser: Browser) -> None:
    with scripted_server() as server, visit(browser, server.url) as seen:
        seen.ask("endless")
        expect(seen.text).to_contain_text("word30")
        server.end()
        expect(seen.page.locator("#notice")).to_contain_text("The connection was lost")
        expect(seen.part("wait-text")).to_contain_text("being looked for")
        with scripted_server(port=server.port):
            seen.expect_status("interrupted")
            expect(seen.text).to_contain_text("word30")
            seen.button("Continue").click()
            expect(seen.part("versions")).to_contain_text("2 of 2")
            seen.expect_status("answering")
            seen.page.keyboard.press("Escape")
            seen.expect_status("stopped")
        seen.errors.clear()  # the browser itself reports each refused connection


def test_a_chain_that_the_server_forgot_is_sent_whole(reader: Visit) -> None:
    reader.ask_and_wait("alpha")
    reader.ask_and_wait("beta")
    reader.ask_and_wait("forgotten")
    first, second = reader.sent()["bodies"][-2:]
    assert (len(first["input"]), "previous_response_id" in first) == (1, True)
    assert (len(second["input"]), "previous_response_id" in second) == (5, False)
