"""What the page costs the reader's machine, and that nothing moves under the reader's eyes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.page.texts import MARKDOWN
from tests.page.visit import Visit, visit

pytestmark = pytest.mark.browser

WATCH = """
window.longest = 0;
new PerformanceObserver((list) => {
  for (const { duration } of list.getEntries()) window.longest = Math.max(window.longest, duration);
}).observe({ type: "longtask" });
// But for the answer that grows, and what is below it.
window.shifts = [];
new PerformanceObserver((list) => {
  for (const { hadRecentInput, sources, value } of list.getEntries()) {
    const stands = ({ node }) => node?.isConnected && !node.parentElement?.closest("[data-last]");
    if (!hadRecentInput && sources.some(stands)) window.shifts.push(value);
  }
}).observe({ type: "layout-shift" });
"""


# Until the wheel's turn has come to its end.
SCROLLED = """new Promise((done) => {
  const log = document.getElementById("log");
  let top = NaN;
  let still = 0;
  requestAnimationFrame(function next() {
    still = log.scrollTop === top ? still + 1 : 0;
    top = log.scrollTop;
    if (still > 20) done();
    else requestAnimationFrame(next);
  });
})"""

# Milliseconds from each key to the paint of what it did, and between the frames.
TAKE_TIMES = """
window.keys = [];
new PerformanceObserver((list) => {
  for (const { name, duration } of list.getEntries()) {
    if (name === "keydown") window.keys.push(duration);
  }
}).observe({ type: "event", durationThreshold: 16 });
window.frames = [];
let last = performance.now();
requestAnimationFrame(function next(now) {
  window.frames.push(now - last);
  last = now;
  requestAnimationFrame(next);
});
"""


class Work:
    """Seconds of the processor that the page's main thread has worked since the last look, which,
    unlike those of the clock, do not depend on what else the machine does."""

    def __init__(self, reader: Visit) -> None:
        self._session = reader.context.new_cdp_session(reader.page)
        self._session.send("Performance.enable", {"timeDomain": "threadTicks"})
        self._before = 0.0
        self.seconds()

    def seconds(self) -> float:
        metrics = self._session.send("Performance.getMetrics")["metrics"]
        now = next(float(one["value"]) for one in metrics if one["name"] == "TaskDuration")
        since, self._before = now - self._before, now
        return since


def times(reader: Visit, name: str) -> str:
    """Those since the last look, in words; there may be none, where all keys took below 16 ms."""
    found: list[float] = sorted(reader.page.evaluate(f"window.{name}.splice(0)")) or [0]
    worst = found[-1]
    return f"{name}: median {found[len(found) // 2]:.0f}, worst {worst:.0f} ms of {len(found)}"


def test_the_page_follows_the_end_only_for_a_reader_who_is_there(reader: Visit) -> None:
    log = reader.page.locator("#log")

    def distance() -> int:
        left: int = log.evaluate("e => e.scrollHeight - e.clientHeight - e.scrollTop")
        return left

    reader.ask("endless")
    expect(reader.text).to_contain_text("word300")
    assert log.evaluate("e => e.scrollTop") > 100
    assert distance() < 40
    log.hover()
    reader.page.mouse.wheel(0, -300)
    expect(reader.page.get_by_role("button", name="Latest")).to_be_visible()
    top = log.evaluate("e => e.scrollTop")
    expect(reader.text).to_contain_text("word450")
    assert log.evaluate("e => e.scrollTop") <= top
    reader.page.get_by_role("button", name="Latest").click()
    assert distance() < 40
    reader.page.keyboard.press("Escape")
    reader.expect_status("stopped")


def test_nothing_that_was_read_moves_while_an_answer_comes(reader: Visit) -> None:
    reader.ask_and_wait("alpha")
    reader.page.evaluate(WATCH)
    places = """() => {
      const log = document.getElementById("log");
      return [...document.querySelectorAll("#messages .question, [data-part=text] > *")]
        .slice(0, 2).map((one) => one.getBoundingClientRect().top + log.scrollTop);
    }"""
    before = reader.page.evaluate(places)
    reader.ask("think markdown")
    reader.expect_status("done")
    assert reader.page.evaluate(places) == before
    shifted = sum(reader.page.evaluate("window.shifts"))
    print(f"shifted by {shifted:.4f}")
    assert shifted < 0.02


def test_many_deltas_cost_few_layouts(reader: Visit) -> None:
    session = reader.context.new_cdp_session(reader.page)
    session.send("Performance.enable")

    def layouts() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return float(next(one["value"] for one in metrics if one["name"] == "LayoutCount"))

    work = Work(reader)
    before = layouts()
    reader.ask_and_wait("burst")
    assert (reader.text.text_content() or "").strip().endswith("w5999")
    seconds = work.seconds()
    print(f"{layouts() - before:.0f} layouts, {seconds:.2f} s of work")
    assert layouts() - before < 1000
    assert seconds < 10


def test_words_that_come_change_nothing_beside_the_answer(reader: Visit) -> None:
    reader.ask_and_wait("alpha")  # from here on the page says how full the context is
    reader.ask("endless")
    expect(reader.text).to_contain_text("word50")
    reader.page.evaluate(
        """() => {
          window.beside = [];
          new MutationObserver((records) => {
            for (const { target } of records) {
              const element = target instanceof Element ? target : target.parentElement;
              if (!element.closest("#messages")) window.beside.push(element.id);
            }
          }).observe(document.body, { childList: true, characterData: true, subtree: true });
        }"""
    )
    expect(reader.text).to_contain_text("word200")
    assert reader.page.evaluate("window.beside") == []
    reader.page.keyboard.press("Escape")
    reader.expect_status("stopped")


def long_chat(path: Path, messages: int) -> Path:
    chat = {"id": "long", "title": "A long chat", "leaf": f"m{messages - 1}", "updatedAt": 1}
    made = [
        {
            "id": f"m{number}",
            "chatId": "long",
            "parent": f"m{number - 1}" if number else None,
            "role": "assistant" if number % 2 else "user",
            "text": MARKDOWN if number % 2 else f"Question {number}",
            "createdAt": number + 1,
            "status": "done",
        }
        for number in range(messages)
    ]
    data = {"kind": "ds4trio-chats", "version": 1, "chats": [chat], "messages": made}
    file = path / "long.json"
    file.write_text(json.dumps(data))
    return file


def test_a_thousand_messages_open_and_stream_smoothly(reader: Visit, tmp_path: Path) -> None:
    reader.ask_and_wait("alpha")
    reader.page.locator("#import-file").set_input_files(long_chat(tmp_path, 1000))
    expect(reader.chats).to_have_count(2)
    work = Work(reader)
    reader.page.evaluate(WATCH)
    began = reader.page.evaluate("performance.now()")
    reader.open_chat("A long chat")
    expect(reader.questions).to_have_count(500)
    expect(reader.text.locator("math").first).to_be_visible()
    opened = reader.page.evaluate("performance.now()") - began
    longest_opening = reader.page.evaluate("window.longest")
    opening = work.seconds()
    print(f"opened in {opened:.0f} ms, {longest_opening:.0f} ms at a time, {opening:.2f} s of work")
    reader.page.evaluate("window.longest = 0")
    reader.page.evaluate(TAKE_TIMES)
    reader.page.locator("#log").hover()
    for _ in range(10):
        reader.page.mouse.wheel(0, -2000)
    print(f"scrolled, {times(reader, 'frames')}")
    reader.page.locator("#latest").click()
    reader.page.locator("#draft").focus()  # to look by label through so much takes seconds
    reader.page.keyboard.type("count 150", delay=30)
    print(f"written, {times(reader, 'keys')}; {times(reader, 'frames')}")
    reader.page.keyboard.press("Enter")
    reader.page.evaluate("window.shifts.length = 0")
    work.seconds()
    reader.expect_status("done")
    streaming = work.seconds()
    shifted = sum(reader.page.evaluate("window.shifts"))
    print(f"streamed, {times(reader, 'frames')}; {streaming:.2f} s of work; shifted {shifted:.4f}")
    longest = reader.page.evaluate("window.longest")
    print(f"{longest:.0f} ms at a time at most")
    assert opening < 2.5
    assert streaming < 2.5
    assert shifted < 0.02


def test_reading_back_through_a_long_chat_does_not_jump(reader: Visit, tmp_path: Path) -> None:
    reader.ready()
    reader.page.locator("#import-file").set_input_files(long_chat(tmp_path, 200))
    reader.open_chat("A long chat")
    expect(reader.text.locator("math").first).to_be_visible()
    reader.page.locator("#log").hover()
    middle = """() => {
      window.seen ??= [...document.querySelectorAll("#messages > *")]
        .find((one) => one.getBoundingClientRect().bottom > 350);
      return window.seen.getBoundingClientRect().top;
    }"""
    for _ in range(5):
        reader.page.mouse.wheel(0, -1500)
        reader.page.evaluate(SCROLLED)
        reader.page.evaluate("delete window.seen")
        before = reader.page.evaluate(middle)
        reader.page.wait_for_timeout(150)
        assert abs(reader.page.evaluate(middle) - before) < 3


def test_the_first_paint_is_under_a_second_from_a_cold_cache(
    browser: Browser, scripted_url: str
) -> None:
    with visit(browser, scripted_url) as seen:
        seen.ready()
        paint = seen.page.evaluate(
            "performance.getEntriesByName('first-contentful-paint')[0].startTime"
        )
        print(f"first paint after {paint:.0f} ms")
        assert paint < 1000


def test_screen_readers_hear_the_answer_once_and_whole(reader: Visit) -> None:
    reader.page.evaluate(
        """() => {
          window.heard = [];
          const spoken = document.getElementById("spoken");
          new MutationObserver(() => window.heard.push(spoken.textContent))
            .observe(spoken, {childList: true, characterData: true, subtree: true});
        }"""
    )
    reader.ask_and_wait("alpha")
    heard = reader.page.evaluate("window.heard")
    assert len(heard) == 1
    assert heard[0].startswith("You said: alpha")
    live = "[aria-live], [role=status], [role=alert], [role=log]"
    assert reader.answers.last.evaluate(f"element => element.closest('{live}')") is None


def test_nothing_sticks_out_sideways(reader: Visit) -> None:
    reader.ready()
    reader.draft.fill("x" * 400)
    reader.draft.press("Enter")
    reader.expect_status("done")
    for width in (320, 390, 820, 1440):
        reader.page.set_viewport_size({"width": width, "height": 700})
        content, window = reader.page.evaluate(
            "() => [document.documentElement.scrollWidth, innerWidth]"
        )
        assert content <= window
        log = reader.page.locator("#log")
        assert log.evaluate("element => element.scrollWidth - element.clientWidth") == 0
