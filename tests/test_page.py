"""The page in headless Chromium: first against ``ds4trio`` itself, whose text may be anything, and
then against the scripted server of ``page_server``, for what a model cannot be asked to do."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Locator,
    Page,
    expect,
    sync_playwright,
)

from tests.page_server import HOSTILE

pytestmark = pytest.mark.browser

CHROMIUM_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    executable = shutil.which("chromium")
    if executable is None:
        pytest.fail("the page's tests need Debian's chromium on the PATH")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@dataclass
class Visit:
    """One reader's browser profile with the page open, and what went wrong in it."""

    context: BrowserContext
    page: Page
    url: str
    errors: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def watch(self, page: Page) -> None:
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self.note_console)
        page.on("request", lambda request: self.note(request.url))
        page.on("websocket", lambda socket: self.note(socket.url))

    def note_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def note(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "data" and parts.netloc != urlsplit(self.url).netloc:
            self.foreign.append(url)

    @property
    def draft(self) -> Locator:
        return self.page.get_by_label("Message")

    @property
    def turns(self) -> Locator:
        return self.page.locator("#turns > .turn")

    def answer(self, number: int = -1) -> Locator:
        return self.turns.nth(number).locator("[data-part=answer]")

    def ask(self, text: str) -> None:
        self.draft.fill(text)
        self.draft.press("Enter")

    def expect_status(self, *statuses: str) -> None:
        pattern = re.compile(f"^({'|'.join(statuses)})$")
        expect(self.turns.last).to_have_attribute("data-status", pattern, timeout=60_000)

    def ask_and_wait(self, text: str, *statuses: str) -> None:
        before = self.turns.count()
        self.ask(text)
        expect(self.turns).to_have_count(before + 1)
        self.expect_status(*statuses or ("done", "cut"))

    def ask_and_cut_short(self, text: str) -> None:
        """Asks, and stops the answer once some of it is there: a random model may never end."""
        before = self.turns.count()
        self.ask(text)
        expect(self.turns).to_have_count(before + 1)
        expect(self.answer()).not_to_be_empty(timeout=60_000)
        self.page.keyboard.press("Escape")
        self.expect_status("stopped", "done", "cut")


@contextmanager
def visit(browser: Browser, url: str) -> Iterator[Visit]:
    """A fresh profile on the page. In the end nothing may have gone to another host, and the
    console has no error that the test did not expect and clear."""
    context = browser.new_context(viewport={"width": 900, "height": 700})
    context.set_default_timeout(10_000)
    page = context.new_page()
    seen = Visit(context, page, url)
    seen.watch(page)
    page.goto(url)
    yield seen
    context.close()
    assert seen.foreign == []
    assert seen.errors == []


@dataclass
class FakeServer:
    """The scripted server as a process."""

    url: str
    process: subprocess.Popen[str]

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def fake_server(*arguments: str, port: int = 0) -> Iterator[FakeServer]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.page_server", str(port), *arguments],
        cwd=Path(__file__).parent.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        assert process.stdout is not None
        server = FakeServer(process.stdout.readline().strip(), process)
        try:
            assert server.url.startswith("http://"), "the scripted server did not start"
            yield server
        finally:
            server.end()


@pytest.fixture(scope="module")
def fake_url() -> Iterator[str]:
    with fake_server() as server:
        yield server.url


@pytest.fixture
def fake(browser: Browser, fake_url: str) -> Iterator[Visit]:
    with visit(browser, fake_url) as seen:
        yield seen


@pytest.fixture
def real(browser: Browser, server_url: str) -> Iterator[Visit]:
    with visit(browser, server_url) as seen:
        yield seen


# Against ds4trio itself


def test_two_turns_survive_a_reload_with_the_draft(real: Visit) -> None:
    real.ask_and_cut_short("The first question")
    real.ask_and_cut_short("The second question")
    answers = [real.answer(number).text_content() for number in (0, 1)]
    assert all(answers)
    real.draft.fill("Half a thou")
    real.page.reload()
    expect(real.turns).to_have_count(2)
    assert [real.answer(number).text_content() for number in (0, 1)] == answers
    expect(real.draft).to_have_value("Half a thou")
    real.ask_and_cut_short("The third question")
    expect(real.turns).to_have_count(3)


def test_an_answer_comes_with_its_speed_and_its_company(real: Visit) -> None:
    real.ask_and_cut_short("How fast are you?")
    words = r"\d+ tokens? · (alone in its batches|[\d.]+ to a batch)$"
    expect(real.turns.last.locator("[data-part=stats]")).to_have_text(re.compile(words))
    assert real.turns.last.locator("[data-part=dots] > i").count() >= 1


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


# Against the scripted server: streaming, stopping, starting anew


def test_text_streams_in_while_the_answer_is_written(fake: Visit) -> None:
    fake.ask("endless")
    expect(fake.answer()).to_contain_text("word1 word2")
    fake.expect_status("streaming")
    earlier = fake.answer().text_content() or ""
    expect(fake.answer()).to_contain_text("word100")
    assert (fake.answer().text_content() or "").startswith(earlier)
    live = re.compile(r"^[\d.]+ tokens/s · batch of 4$")
    expect(fake.turns.last.locator("[data-part=stats]")).to_have_text(live)
    expect(fake.turns.last.locator("[data-part=dots] > i")).to_have_count(4)


@pytest.mark.parametrize("how", ["escape", "button"])
def test_stopping_keeps_what_was_said_and_the_connection(fake: Visit, how: str) -> None:
    fake.ask("endless")
    expect(fake.answer()).to_contain_text("word5")
    if how == "escape":
        fake.page.keyboard.press("Escape")
    else:
        fake.page.get_by_role("button", name="Stop").click()
    fake.expect_status("stopped")
    expect(fake.turns.last.locator("[data-part=note]")).to_have_text("Stopped")
    expect(fake.answer()).to_contain_text("word5")
    fake.ask_and_wait("and now")
    expect(fake.answer()).to_contain_text("1 sent, 3 known, chained")


def test_a_server_deaf_to_the_cancel_is_stopped_by_closing(fake: Visit) -> None:
    fake.ask("stuck")
    expect(fake.answer()).to_contain_text("word3")
    fake.page.keyboard.press("Escape")
    expect(fake.turns.last.locator("[data-part=note]")).to_have_text("Stopping")
    fake.expect_status("stopped")
    fake.ask_and_wait("and now")
    expect(fake.answer()).to_contain_text("3 sent, 3 known, whole")


def test_a_new_chat_stops_the_answer_and_the_old_one_can_come_back(fake: Visit) -> None:
    fake.ask_and_wait("alpha")
    fake.ask("endless")
    expect(fake.answer()).to_contain_text("word5")
    fake.page.get_by_role("button", name="New chat").click()
    expect(fake.turns).to_have_count(0)
    expect(fake.page.locator("#empty")).to_be_visible()
    expect(fake.draft).to_be_focused()
    fake.page.get_by_role("button", name="Bring back").click()
    expect(fake.turns).to_have_count(2)
    expect(fake.answer()).to_contain_text("word5")
    fake.expect_status("stopped")
    fake.page.get_by_role("button", name="New chat").click()
    fake.ask_and_wait("beta")
    expect(fake.answer()).to_contain_text("1 sent, 1 known, whole")


def test_a_conversation_goes_on_in_the_servers_chain(fake: Visit) -> None:
    fake.ask_and_wait("alpha")
    fake.ask_and_wait("beta")
    expect(fake.answer()).to_contain_text("1 sent, 3 known, chained")
    fake.ask_and_wait("forgotten")  # the server refuses the chain, and gets the whole instead
    expect(fake.answer()).to_contain_text("5 sent, 5 known, whole")


def test_a_finished_answer_shows_the_servers_own_figures(fake: Visit) -> None:
    fake.ask_and_wait("alpha")
    stats = fake.turns.last.locator("[data-part=stats]")
    expect(stats).to_have_text("42.5 tokens/s · 7 tokens · 3.6 to a batch")
    expect(fake.turns.last.locator("[data-part=dots] > i")).to_have_count(4)
    fake.page.reload()
    expect(stats).to_have_text("42.5 tokens/s · 7 tokens · 3.6 to a batch")


def test_a_suggestion_is_asked_and_the_draft_stays(fake: Visit) -> None:
    fake.draft.fill("my own words")
    fake.page.get_by_role("button", name="Why does the sea have tides?").click()
    fake.expect_status("done")
    expect(fake.answer()).to_contain_text("You said: Why does the sea have tides?")
    expect(fake.draft).to_have_value("my own words")


# Text


def test_hostile_text_is_only_text(fake: Visit) -> None:
    fake.ask_and_wait("hostile <b>bold</b>")
    assert fake.answer().evaluate("element => element.textContent") == HOSTILE
    assert fake.turns.locator("img, script, style, a, b").count() == 0
    assert fake.page.evaluate("window.pwned") is None
    fake.page.reload()
    assert fake.answer().evaluate("element => element.textContent") == HOSTILE
    assert "    kept   spaces" in fake.answer().evaluate("element => element.innerText")
    assert fake.turns.locator("img, script, style, a, b").count() == 0
    assert fake.page.evaluate("window.pwned") is None


def test_keys_send_break_lines_and_leave_input_methods_alone(fake: Visit) -> None:
    fake.draft.press_sequentially("one")
    fake.draft.press("Shift+Enter")
    fake.draft.press_sequentially("two")
    fake.draft.dispatch_event("keydown", {"key": "Enter", "isComposing": True})
    expect(fake.turns).to_have_count(0)
    fake.draft.press("Enter")
    expect(fake.turns.locator("[data-part=user]")).to_have_text(re.compile("^one\ntwo$"))
    fake.expect_status("done")


def test_a_right_to_left_answer_runs_right_to_left(fake: Visit) -> None:
    fake.ask_and_wait("שלום לכולם")
    asked = fake.turns.last.locator("[data-part=user]")
    assert asked.evaluate("element => element.matches(':dir(rtl)')")


# What the reader has written or read is never lost


def test_a_reload_mid_answer_keeps_it_as_far_as_it_came(fake: Visit) -> None:
    fake.ask("endless")
    expect(fake.answer()).to_contain_text("word30")
    fake.draft.fill("next thought")
    fake.page.reload()
    expect(fake.answer()).to_contain_text("word30")
    fake.expect_status("interrupted")
    expect(fake.turns.last.locator("[data-part=note]")).to_contain_text("Interrupted")
    expect(fake.draft).to_have_value("next thought")


def test_a_new_tab_goes_on_and_two_tabs_do_not_overwrite_each_other(fake: Visit) -> None:
    fake.ask_and_wait("shared")
    second = fake.context.new_page()
    fake.watch(second)
    second.goto(fake.url)
    other = Visit(fake.context, second, fake.url)
    expect(other.turns).to_have_count(1)
    other.ask_and_wait("only in the second")
    fake.ask_and_wait("only in the first")
    for tab, text in ((fake, "only in the first"), (other, "only in the second")):
        tab.page.reload()
        expect(tab.turns).to_have_count(2)
        expect(tab.turns.last.locator("[data-part=user]")).to_have_text(text)


def test_saved_rubbish_is_an_empty_chat(fake: Visit) -> None:
    fake.ask_and_wait("alpha")
    rubbish = """{"version": 1, "turns": [{"id": 3}]}"""
    fake.page.add_init_script(f"sessionStorage['ds4trio.chat'] = '{rubbish}'")
    fake.page.reload()
    expect(fake.page.locator("#empty")).to_be_visible()
    fake.ask_and_wait("still works")


def test_a_failed_batch_says_so_and_can_be_tried_again(fake: Visit) -> None:
    fake.ask_and_wait("fail", "failed")
    expect(fake.turns.last.locator("[data-part=fault]")).to_contain_text("met a fault")
    expect(fake.answer()).to_contain_text("You said: fail")
    fake.page.get_by_role("button", name="Try again").click()
    fake.expect_status("failed")
    fake.ask_and_wait("after it")
    expect(fake.answer()).to_contain_text("3 sent, 3 known, whole")


def test_a_refused_question_can_be_edited(fake: Visit) -> None:
    fake.ask_and_wait("alpha")
    fake.ask_and_wait("beta")
    fake.page.reload()  # the chain is gone, so the whole conversation is sent
    fake.ask_and_wait("too long", "failed")
    expect(fake.turns.last.locator("[data-part=fault]")).to_contain_text("8192")
    fake.draft.fill("meanwhile")
    fake.page.get_by_role("button", name="Edit").click()
    expect(fake.turns).to_have_count(2)
    expect(fake.draft).to_have_value("too long\n\nmeanwhile")


def test_a_chat_beyond_the_context_can_go_on_without_its_beginning(fake: Visit) -> None:
    fake.ask_and_wait("alpha")
    fake.ask_and_wait("beta")
    fake.page.reload()
    fake.ask_and_wait("too long", "failed")
    fake.page.get_by_role("button", name="Leave out earlier").click()
    fake.expect_status("done")
    expect(fake.answer()).to_contain_text("3 sent, 3 known, whole")
    expect(fake.turns.nth(1)).to_have_attribute("data-read-from", "")


# The connection


def test_a_lost_connection_is_said_and_the_conversation_goes_on(browser: Browser) -> None:
    with fake_server() as server, visit(browser, server.url) as seen:
        seen.ask_and_wait("alpha")
        seen.ask_and_wait("drop", "interrupted")
        expect(seen.answer()).to_contain_text("You said: drop")
        seen.ask_and_wait("beta")
        expect(seen.answer()).to_contain_text("5 sent, 5 known, whole")


def test_a_question_lost_before_it_began_is_sent_once_more(fake: Visit) -> None:
    fake.ask_and_wait("alpha")
    fake.ask_and_wait("vanish once")
    expect(fake.answer()).to_contain_text("3 sent, 3 known, whole")
    fake.ask_and_wait("vanish", "interrupted")
    fake.ask_and_wait("beta")  # and what was never answered is not sent along
    expect(fake.answer()).to_contain_text("5 sent, 5 known, whole")


def test_a_new_question_outlives_the_deaf_answer_before_it(fake: Visit) -> None:
    fake.ask("stuck")
    expect(fake.answer()).to_contain_text("word3")
    fake.page.get_by_role("button", name="New chat").click()
    fake.ask_and_wait("beta")
    expect(fake.answer()).to_contain_text("1 sent, 1 known, whole")


def test_a_restarted_server_is_found_again_and_gets_what_waited(browser: Browser) -> None:
    with fake_server() as server, visit(browser, server.url) as seen:
        notice = seen.page.locator("#notice")
        seen.ask_and_wait("alpha")
        server.end()
        expect(notice).to_be_visible()
        seen.ask("kept for later")
        expect(notice).to_contain_text("cannot be reached")
        expect(notice).to_contain_text("Trying again in")
        with fake_server(port=urlsplit(server.url).port or 0):
            seen.page.get_by_role("button", name="Try now").click()
            seen.expect_status("done")
            expect(seen.answer()).to_contain_text("3 sent, 3 known, whole")
            expect(notice).to_be_hidden()
        seen.errors.clear()  # the browser itself reports each refused connection


def test_a_loading_model_is_said_and_waited_for(browser: Browser) -> None:
    with fake_server("--loading") as server, visit(browser, server.url) as seen:
        expect(seen.page.locator("#notice")).to_contain_text("still being loaded")
        seen.ask("patience")
        seen.expect_status("waiting")
        urlopen(Request(f"{server.url}/ready", method="POST")).close()
        seen.expect_status("done")
        expect(seen.page.locator("#notice")).to_be_hidden()
        seen.errors.clear()  # the browser itself reports each 503


def test_a_key_is_asked_for_kept_and_never_in_a_url(browser: Browser) -> None:
    with fake_server("--key", "sk-right.1") as server, visit(browser, server.url) as seen:
        urls: list[str] = []
        seen.page.on("request", lambda request: urls.append(request.url))
        seen.page.on("websocket", lambda socket: urls.append(socket.url))
        key = seen.page.get_by_label("API key", exact=True)
        expect(key).to_be_visible()
        seen.ask("patience")
        for wrong, answer in (("not/sendable", "cannot send"), ("sk-wrong", "did not accept")):
            key.fill(wrong)
            key.press("Enter")
            expect(seen.page.locator("#key-hint")).to_contain_text(answer)
        key.fill("sk-right.1")
        key.press("Enter")
        seen.expect_status("done")
        expect(seen.page.locator("#key-form")).to_be_hidden()
        assert seen.page.evaluate("localStorage['ds4trio.key']") is None
        seen.page.reload()
        seen.ask_and_wait("again")
        assert urls
        assert not any("sk-" in url for url in urls)
        seen.errors.clear()  # the browser itself reports each 401


# Reading


def test_the_page_follows_the_end_only_for_a_reader_who_is_there(fake: Visit) -> None:
    def distance() -> int:
        left: int = fake.page.evaluate(
            "() => { const e = document.getElementById('log');"
            " return e.scrollHeight - e.clientHeight - e.scrollTop; }"
        )
        return left

    fake.ask("endless")
    expect(fake.answer()).to_contain_text("word300")
    fake.page.wait_for_function(
        "() => { const e = document.getElementById('log'); return e.scrollTop > 100; }"
    )
    assert distance() < 40
    fake.page.locator("#log").hover()
    fake.page.mouse.wheel(0, -300)
    expect(fake.page.get_by_role("button", name="Latest")).to_be_visible()
    top = fake.page.evaluate("document.getElementById('log').scrollTop")
    expect(fake.answer()).to_contain_text("word450")
    assert fake.page.evaluate("document.getElementById('log').scrollTop") <= top
    fake.page.get_by_role("button", name="Latest").click()
    assert distance() < 40


def test_many_deltas_cost_few_layouts(fake: Visit) -> None:
    session = fake.context.new_cdp_session(fake.page)
    session.send("Performance.enable")

    def layouts() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return float(next(one["value"] for one in metrics if one["name"] == "LayoutCount"))

    before = layouts()
    fake.ask_and_wait("burst")
    assert (fake.answer().text_content() or "").endswith("w5999 ")
    assert layouts() - before < 1000


def test_screen_readers_hear_the_answer_once_and_whole(fake: Visit) -> None:
    fake.page.evaluate(
        """() => {
          window.heard = [];
          const spoken = document.getElementById("spoken");
          new MutationObserver(() => window.heard.push(spoken.textContent))
            .observe(spoken, {childList: true, characterData: true, subtree: true});
        }"""
    )
    fake.ask_and_wait("alpha")
    heard = fake.page.evaluate("window.heard")
    assert len(heard) == 1
    assert heard[0].startswith("You said: alpha")
    live = "[aria-live], [role=status], [role=alert], [role=log]"
    assert fake.turns.last.evaluate(f"element => element.closest('{live}')") is None


@pytest.mark.parametrize("width", [320, 390, 1440])
def test_nothing_sticks_out_sideways(fake: Visit, width: int) -> None:
    fake.page.set_viewport_size({"width": width, "height": 700})
    fake.ask_and_wait("x" * 400)
    widths = "() => [document.documentElement.scrollWidth, innerWidth]"
    content, window = fake.page.evaluate(widths)
    assert content <= window
    log = fake.page.locator("#log").evaluate("element => element.scrollWidth - element.clientWidth")
    assert log == 0
