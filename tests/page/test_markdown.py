"""What an answer looks like, and that hostile ones do nothing."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.page.visit import Visit

pytestmark = pytest.mark.browser


def test_markdown_becomes_elements(reader: Visit) -> None:
    reader.ask_and_wait("markdown")
    text = reader.text
    expect(text.get_by_role("heading", name="A heading", level=1)).to_be_visible()
    for element, inner in (("strong", "bold"), ("em", "slanted"), ("s", "struck")):
        expect(text.locator(element)).to_have_text(inner)
    expect(text.locator("p code")).to_have_text("inline")
    expect(text.locator("ul > li")).to_have_count(2)
    expect(text.locator("ul ol > li")).to_have_text("inner")
    expect(text.locator("blockquote")).to_have_text("quoted")
    expect(text.get_by_role("cell", name="1", exact=True)).to_be_visible()
    link = text.get_by_role("link", name="link")
    assert link.get_attribute("href") == "https://example.org/page"
    assert link.get_attribute("target") == "_blank"
    assert "noopener" in (link.get_attribute("rel") or "")


def test_formulas_are_mathml_and_money_is_money(reader: Visit) -> None:
    reader.ask_and_wait("markdown")
    expect(reader.text.locator("math")).to_have_count(2)
    expect(reader.text.locator('math[display="block"] munderover')).to_have_count(1)
    expect(reader.text.locator("math mfrac")).to_have_count(2)
    expect(reader.text).to_contain_text("It costs $5 and $6.")


def test_tasks_have_boxes(reader: Visit) -> None:
    reader.ask_and_wait("tasks\n\n- [ ] to do\n- [x] done\n\n[ ] no item")
    expect(reader.text.locator("li")).to_have_text(["☐ to do", "☑ done"])
    expect(reader.text.locator("p").last).to_have_text("[ ] no item")


def test_words_in_tables_stay_whole(reader: Visit) -> None:
    heads = ["Language", "Appeared", "Paradigm", "Typing", "Designer", "Population", "Influences"]
    row = ["Python", "1991", "Multi-paradigm", "Dynamic", "Guido", "68,000,000", "Everything"]
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), row)]
    reader.page.set_viewport_size({"width": 390, "height": 844})
    reader.ask_and_wait("\n".join(["a table", "", *lines]))
    table = reader.text.locator(".table")
    assert table.evaluate("element => element.scrollWidth > element.clientWidth")
    for cell in table.locator("th").all():
        box = cell.bounding_box()
        assert box is not None
        assert box["height"] < 45, cell.inner_text()  # one line


def test_the_lines_of_a_poem_stay_lines(reader: Visit) -> None:
    reader.ask_and_wait("roses are red\nviolets are blue")
    assert reader.said() == "You said: roses are red\nviolets are blue"


def test_blocks_that_stand_are_not_made_anew(reader: Visit) -> None:
    reader.ask("endless")
    expect(reader.text).to_contain_text("word20")
    first = reader.text.locator(".block").first
    first.evaluate("element => { element.seen = true; }")
    expect(reader.text).to_contain_text("word100")
    assert first.evaluate("element => element.seen")
    reader.page.keyboard.press("Escape")
    reader.expect_status("stopped")


def harmless(reader: Visit) -> None:
    kept = "img, script, style, iframe, svg, form, object, embed, [onerror], [onload], [style]"
    assert reader.text.locator(kept).count() == 0
    handlers = """element => [...element.querySelectorAll("*")].flatMap((one) =>
      [...one.attributes].filter(({name, value}) => name.startsWith("on")
        || /^\\s*(javascript|data|vbscript):/i.test(value)).map(({name}) => name))"""
    assert reader.text.evaluate(handlers) == []
    for link in reader.text.locator("a").all():
        assert (link.get_attribute("href") or "https:").startswith(("https:", "http:", "mailto:"))
    assert reader.page.evaluate("window.pwned") is None


def test_hostile_answers_do_nothing(reader: Visit) -> None:
    reader.ask_and_wait("hostile")
    harmless(reader)
    expect(reader.text).to_contain_text("""<img src=x onerror="window.pwned='img'">""")
    expect(reader.text).to_contain_text("https://elsewhere.example/pixel.png")
    reader.page.reload()
    expect(reader.text).to_contain_text("<iframe srcdoc")
    harmless(reader)


def test_a_hostile_question_is_only_text(reader: Visit) -> None:
    asked = "<img src=x onerror=\"window.pwned='question'\"> **not bold**"
    reader.ask_and_wait(asked)
    expect(reader.questions.last.locator("[data-part=text]")).to_have_text(asked)
    assert reader.page.locator("#messages img").count() == 0
    assert reader.page.evaluate("window.pwned") is None
    assert reader.page.locator("#chat-list img").count() == 0
