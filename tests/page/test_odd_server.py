"""A server that is broken, or means ill: the page waits for nothing that cannot come, and asks no
more often than is polite."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, WebSocketRoute, expect

from tests.page.odd import answer_oddly, said
from tests.page.response import Event
from tests.page.visit import Visit, visit

pytestmark = pytest.mark.browser

HUGE = {
    "usage": {"input_tokens": 1e300, "output_tokens": 1e300},
    "ds4trio": {"mean_batch_size": 1e300, "tokens_per_second": -1, "first_token_seconds": 1e300},
}
NO_TEXT = {"toString": 1, "valueOf": 1}
ODD: dict[str, tuple[list[Event], str]] = {
    "the end has an earlier number": ([said("so far", sequence_number=50)], "done"),
    "nothing has a later number": ([said("so far", sequence_number=2**53)], "done"),
    "a code that is no text": ([{"type": "error", "error": {"code": NO_TEXT}}], "failed"),
    "a message that is no text": ([{"type": "error", "error": {"message": NO_TEXT}}], "failed"),
    "a name that is none": ([{"type": "response.created", "response": {"id": NO_TEXT}}], "done"),
    "figures beyond all reason": ([{"type": "response.completed", "response": HUGE}], "done"),
}


@pytest.mark.parametrize("question", ODD)
def test_an_odd_answer_ends(reader: Visit, question: str) -> None:
    events, status = ODD[question]
    answer_oddly(reader, {question: events})
    reader.ask_and_wait(question, status)
    reader.ask_and_wait("and now", "done")
    expect(reader.text).to_have_text("fine")
    assert reader.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("code", ["constructor", "__proto__"])
def test_an_unknown_error_is_told_in_the_pages_own_words(reader: Visit, code: str) -> None:
    answer_oddly(reader, {"x": [{"type": "error", "error": {"code": code, "message": "why"}}]})
    reader.ask_and_wait("x", "failed")
    expect(reader.part("fault-text")).to_have_text("The server could not answer.")
    expect(reader.part("fault-detail")).to_have_text("why")


def test_a_followed_answer_that_does_not_end_is_stopped_all_the_same(reader: Visit) -> None:
    reader.ask("stuck")
    expect(reader.text).to_contain_text("word3")
    reader.page.reload()
    expect(reader.text).to_contain_text("word3")
    reader.page.keyboard.press("Escape")
    reader.expect_status("stopped")
    reader.ask_and_wait("and now")


def test_a_server_that_says_something_and_hangs_up_is_left_alone(reader: Visit) -> None:
    tries = []

    def hang_up(socket: WebSocketRoute) -> None:
        tries.append(socket)
        socket.send('{"hello": "there"}')
        socket.close(code=1011)

    reader.page.route_web_socket("**/v1/responses", hang_up)
    reader.page.reload()
    reader.page.wait_for_timeout(4_000)
    assert 0 < len(tries) < 6


NEVER_OPENS = """window.WebSocket = class {
  static OPEN = 1;
  readyState = 0;
  send() {}
  close() {}
};"""


def test_a_socket_that_never_opens_is_given_up(browser: Browser, scripted_url: str) -> None:
    with visit(browser, scripted_url) as reader:
        reader.page.clock.install()
        reader.page.add_init_script(NEVER_OPENS)
        reader.page.reload()
        reader.ready()
        reader.page.clock.run_for(11_000)
        expect(reader.page.locator("#notice")).to_contain_text("The server cannot be reached.")
