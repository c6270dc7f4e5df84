"""What a model writes against the page: it stays in its message, and leaves the page quick."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import expect

from tests.page.odd import answer_oddly, said
from tests.page.response import Event
from tests.page.visit import Visit

pytestmark = pytest.mark.browser

WATCH_TASKS = """() => {
  window.longest = 0;
  const note = ({duration}) => { window.longest = Math.max(window.longest, duration); };
  new PerformanceObserver((list) => list.getEntries().forEach(note)).observe({type: "longtask"});
}"""


def test_formulas_bring_no_styles(reader: Visit) -> None:
    reader.ask_and_wait(r"$\fcolorbox{red}{blue}{x}$ $\pmb{y}$ $\fbox{z}$")
    expect(reader.text.locator("math")).to_have_count(3)
    assert reader.text.locator("[style]").count() == 0
    # ``visiting`` asserts that no part of the policy was broken.


@pytest.mark.parametrize("call", [False, True])
def test_json_that_would_grow_without_end_is_shown_as_it_is(reader: Visit, call: bool) -> None:
    deep = "[" * 3000 + "]" * 3000
    item = {"type": "function_call", "name": "n" * 3000}
    called: list[Event] = [
        {"type": "response.output_item.added", "item": item},
        {"type": "response.function_call_arguments.delta", "delta": deep},
    ]
    answer_oddly(reader, {"deep": called if call else [said(deep)]})
    reader.ask_and_wait("deep", "done")
    shown = reader.part("calls" if call else "text")
    expect(shown).to_be_visible()
    assert shown.evaluate("element => element.textContent.length") < 10_000
    wide = "log => log.scrollWidth > log.clientWidth"
    assert not reader.page.locator("#log").evaluate(wide)


def test_a_thousand_openings_cost_no_more_than_one(reader: Visit) -> None:
    answer_oddly(reader, {"open": [said("\\( x " * 60_000)]})
    reader.page.evaluate(WATCH_TASKS)
    reader.ask_and_wait("open", "done")
    reader.page.wait_for_timeout(100)
    assert reader.page.evaluate("window.longest") < 2_000


def test_towers_of_accents_stay_in_their_message(reader: Visit) -> None:
    reader.ask_and_wait("plain")
    answer_oddly(reader, {"tower": [said("Z" + "\u0301" * 2000 + json.dumps("after"))]})
    reader.page.mouse.move(0, 0)
    plain = reader.answers.first.locator("[data-part=text]")
    expect(plain).to_be_visible()
    before = plain.screenshot()
    reader.ask_and_wait("tower", "done")
    assert plain.screenshot() == before
