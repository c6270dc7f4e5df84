"""The socket: lost, refused, in want of a key."""

from __future__ import annotations

from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import Browser, expect

from tests.page.visit import Visit, scripted_server, visit

pytestmark = pytest.mark.browser


def test_a_question_that_never_began_is_asked_once_more(reader: Visit) -> None:
    reader.ask_and_wait("vanish once")
    expect(reader.text).to_contain_text("You said: vanish once")


def test_a_question_that_breaks_the_connection_twice_is_given_up(reader: Visit) -> None:
    reader.ask_and_wait("vanish", "interrupted")
    expect(reader.questions.last).to_contain_text("vanish")
    reader.ask_and_wait("and now")


def test_a_restarted_server_is_found_again_and_gets_what_waited(browser: Browser) -> None:
    with scripted_server() as server, visit(browser, server.url) as seen:
        notice = seen.page.locator("#notice")
        seen.ask_and_wait("alpha")
        server.end()
        expect(notice).to_be_visible()
        seen.ask("kept for later")
        expect(notice).to_contain_text("cannot be reached")
        expect(notice).to_contain_text("Trying again in")
        with scripted_server(port=server.port):
            seen.page.get_by_role("button", name="Try now").click()
            seen.expect_status("done")
            expect(seen.text).to_contain_text("You said: kept for later")
            expect(notice).to_be_hidden()
        seen.errors.clear()  # the browser itself reports each refused connection


def test_a_question_that_waited_for_a_server_outlives_a_reload(reader: Visit) -> None:
    reader.ask_and_wait("alpha")
    reader.context.set_offline(True)
    reader.ask("while offline")
    reader.context.set_offline(False)
    reader.page.reload()
    expect(reader.questions.last).to_contain_text("while offline")
    reader.expect_status("done", "interrupted")
    reader.errors.clear()


def test_two_tabs_ask_an_unsent_question_once(browser: Browser) -> None:
    with scripted_server("--loading") as server, visit(browser, server.url) as seen:
        seen.ask("asked once")
        other = seen.another_tab()
        expect(other.questions.last).to_contain_text("asked once")
        with urlopen(Request(f"{server.url}/ready", method="POST")):
            pass
        for tab in (seen, other):
            tab.expect_status("done")
            expect(tab.text).to_contain_text("You said: asked once")
        assert len(seen.sent()["bodies"]) == 1
        seen.errors.clear()  # the browser reports the 503 of each check


def test_an_unsent_question_is_asked_by_the_tab_that_is_left(browser: Browser) -> None:
    with scripted_server("--loading") as server, visit(browser, server.url) as seen:
        first = seen.another_tab()
        first.ask("asked by another")
        seen.open_chat("asked by another")
        first.page.close()
        with urlopen(Request(f"{server.url}/ready", method="POST")):
            pass
        seen.expect_status("done")
        assert len(seen.sent()["bodies"]) == 1
        seen.errors.clear()


def test_a_loading_model_is_said_and_waited_for(browser: Browser) -> None:
    with scripted_server("--loading") as server, visit(browser, server.url) as seen:
        expect(seen.page.locator("#notice")).to_contain_text("as soon as it is ready")
        expect(seen.page.locator("#link")).to_have_attribute("data-phase", "loading")  # no alarm
        seen.ask("patience")
        seen.expect_status("waiting")
        urlopen(Request(f"{server.url}/ready", method="POST")).close()
        seen.expect_status("done")
        expect(seen.page.locator("#notice")).to_be_hidden()
        seen.errors.clear()  # the browser itself reports each 503


def test_a_key_is_asked_for_kept_and_never_in_a_url(browser: Browser) -> None:
    with scripted_server("--key", "sk-right.1") as server, visit(browser, server.url) as seen:
        urls: list[str] = []
        seen.page.on("request", lambda request: urls.append(request.url))
        seen.page.on("websocket", lambda socket: urls.append(socket.url))
        key = seen.page.get_by_label("API key", exact=True)
        expect(key).to_be_visible()
        seen.ask("count 200")
        for wrong, answer in (("not/sendable", "cannot send"), ("sk-wrong", "did not accept")):
            key.fill(wrong)
            key.press("Enter")
            expect(seen.page.locator("#key-hint")).to_contain_text(answer)
        key.fill("sk-right.1")
        key.press("Enter")
        expect(seen.text).to_contain_text("w5")
        expect(seen.page.locator("#key-form")).to_be_hidden()
        assert seen.page.evaluate("localStorage['ds4trio.key']") is None
        seen.page.reload()
        seen.expect_status("done")  # followed with the key
        seen.ask_and_wait("again")
        assert urls
        assert not any("sk-" in url for url in urls)
        seen.errors.clear()  # the browser itself reports each 401


def test_the_panel_draws_the_server_at_work(reader: Visit) -> None:
    reader.page.get_by_role("button", name="Server").click()
    panel = reader.page.locator("#panel")
    expect(panel).to_contain_text("3 of 16")
    expect(panel).to_contain_text("40 of 100")
    expect(panel).to_contain_text("77 tokens")
    expect(panel.locator("dd").nth(1)).to_have_text("3.0")
    expect(panel.locator("rect").nth(3)).to_be_attached()
    reader.page.reload()
    expect(panel.locator("rect").nth(3)).to_be_attached()  # it stays open
    panel.get_by_role("button", name="Close").click()
    expect(panel).to_be_hidden()
    expect(reader.page.get_by_role("button", name="Server")).to_be_focused()
