"""What the default model writes, as the page shows it: Markdown, code, formulas, calls, JSON, and
nothing that does anything."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.page.real import RealVisit

pytestmark = [pytest.mark.browser, pytest.mark.model]

HOSTILE = (
    '<img src="x" onerror="window.hit=1"><script>window.hit=2</script> '
    "[click](javascript:window.hit=3)"
)
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"enum": [1, 2]}},
        "required": ["city", "days"],
    },
}
PLACE = {
    "type": "json_schema",
    "name": "place",
    "schema": {
        "type": "object",
        "properties": {"country": {"enum": ["France", "Italy"]}, "large": {"type": "boolean"}},
        "required": ["country", "large"],
        "additionalProperties": False,
    },
}


def test_a_table_takes_shape_while_it_is_written(real: RealVisit) -> None:
    real.ask_at_length("Write a Markdown table of fruits and their colours. Only the table.", 40)
    expect(real.text.locator("th").first).to_have_text("Fruit")
    real.expect_status("answering")
    expect(real.text.get_by_role("cell", name="Banana")).to_be_visible()
    real.expect_status("cut")
    real.expect_whole(real.names[0])


def test_code_has_colours_and_can_be_copied(real: RealVisit) -> None:
    real.context.grant_permissions(["clipboard-read", "clipboard-write"])
    real.ask_at_length("Write a Python function that adds two numbers. Only the code.", 40)
    code = real.text.locator("pre code")
    expect(code).to_contain_text("def ")
    real.expect_status("done", "cut")
    expect(code.locator(".hljs-keyword").first).to_have_text("def")
    real.text.get_by_role("button", name="Copy this code").first.click()
    copied = real.page.evaluate("navigator.clipboard.readText()")
    assert copied.strip() == code.first.inner_text().strip()


def test_a_formula_is_typeset(real: RealVisit) -> None:
    real.ask_at_length("Repeat this exactly: $x^2$", 10)
    real.expect_status("done", "cut")
    expect(real.text.locator("math msup")).to_have_text(re.compile("x.*2", re.DOTALL))


def test_a_call_is_readable_and_the_chat_goes_on(real: RealVisit) -> None:
    real.set(more=json.dumps({"tools": [WEATHER], "tool_choice": "required"}), maxTokens="50")
    real.ask_and_wait("What is the weather in Paris?")
    call = real.part("calls").locator("figure").first
    expect(call.locator("figcaption")).to_have_text("Calls get_weather")
    assert re.match(r'\{\n  "city": "\w+",\n  "days": \d\n\}$', call.locator("code").inner_text())
    real.set(more="", maxTokens="3")
    real.ask_and_wait("And tomorrow?")
    expect(real.questions).to_have_count(2)


def test_an_answer_in_json_is_readable(real: RealVisit) -> None:
    real.set(more=json.dumps({"text": {"format": PLACE}}), maxTokens="40")
    real.ask_and_wait("Where is Paris?", "done")
    code = real.text.locator("pre code")
    assert re.match(r'\{\n  "country": "\w+",\n  "large": \w+\n\}$', code.inner_text().strip())
    expect(code.locator(".hljs-attr").first).to_have_text('"country"')


def test_hostile_output_is_inert(real: RealVisit, tmp_path: Path) -> None:
    """The model repeats what it finds begun, while it streams and for good."""
    chat = {"id": "h", "title": "Hostile", "leaf": "a", "updatedAt": 1}
    messages: list[dict[str, Any]] = [
        {"id": "q", "parent": None, "role": "user", "text": "Give me the HTML."},
        {
            "id": "a",
            "parent": "q",
            "role": "assistant",
            "text": f"Here: {HOSTILE} And again: <img src",
            "status": "cut",
        },
    ]
    made = [{"chatId": "h", "createdAt": 1, "status": "done", **message} for message in messages]
    file = tmp_path / "hostile.json"
    data = {"kind": "ds4trio-chats", "version": 1, "chats": [chat], "messages": made}
    file.write_text(json.dumps(data))
    real.page.locator("#import-file").set_input_files(file)
    real.open_chat("Hostile")
    real.set(temperature="0", maxTokens="60")
    real.button("Continue").click()
    expect(real.part("versions")).to_contain_text("2 of 2")
    real.expect_status("done", "cut")
    again = real.response(real.names[0])["output"][0]["content"][0]["text"]
    assert "onerror" in again
    assert "<script>" in again
    assert "javascript:" in again
    assert real.page.evaluate("window.hit") is None
    assert real.text.locator("img, script, [onerror], a[href^=javascript]").count() == 0
    real.errors.clear()
