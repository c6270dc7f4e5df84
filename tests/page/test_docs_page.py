"""The page about the API, with the descriptions that a server would give it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Browser, Page, expect

from ds4trio.api.description.asyncapi import asyncapi_document
from ds4trio.api.description.openapi import openapi_document
from tests.page.visit import Visit, profile, visiting
from tests.test_docs import API, rows

pytestmark = [pytest.mark.browser]

SIZES = [(390, "light"), (820, "dark"), (1440, "light")]

BROKEN_NAMES = """names => names
  .filter(name => new Set([...name.getClientRects()].map(({ top }) => Math.round(top))).size > 1)
  .map(name => name.textContent)"""


def give(page: Page, path: str, document: Any) -> None:
    """Answers with the document, as a server would."""
    body = msgspec.json.encode(document)
    page.route(path, lambda route: route.fulfill(body=body, content_type="application/json"))


@pytest.fixture(scope="module", params=SIZES, ids=lambda size: f"{size[0]} {size[1]}")
def docs(browser: Browser, scripted_url: str, request: pytest.FixtureRequest) -> Iterator[Page]:
    width, scheme = request.param
    viewport = {"width": width, "height": 800}
    with profile(browser, viewport=viewport, color_scheme=scheme) as page:
        give(page, "**/openapi.json", openapi_document())
        give(page, "**/asyncapi.json", asyncapi_document())
        with visiting(Visit(page.context, page, f"{scripted_url}/docs.html")):
            expect(page.locator("[aria-busy]")).to_have_count(0)
            yield page


def test_the_reference_is_there_and_nothing_is_wider_than_the_screen(docs: Page) -> None:
    wanted = [title.replace("`", "") for title in re.findall(r"^###? (.*)", API, re.MULTILINE)]
    reference = docs.get_by_role("region", name="Reference")
    assert reference.locator("h3, h4").all_text_contents() == wanted
    assert reference.locator("tbody tr").count() == len(list(rows(API)))
    docs.locator("details").evaluate_all("all => all.forEach(box => { box.open = true; })")
    width = docs.evaluate("() => document.documentElement.scrollWidth - innerWidth")
    assert width == 0
    assert docs.locator(".pairs .name code").evaluate_all(BROKEN_NAMES) == []


def test_every_link_of_the_page_leads_to_a_part_of_it(docs: Page) -> None:
    links = docs.locator("a[href^='#']").evaluate_all("all => all.map(({ hash }) => hash)")
    parts = docs.locator("[id]").evaluate_all("all => all.map(({ id }) => `#${id}`)")
    assert set(links) <= set(parts)
    assert len(parts) == len(set(parts))


def test_a_field_says_what_it_takes(docs: Page) -> None:
    docs.evaluate("() => { location.hash = 'post_v1_chat_completions'; }")
    box = docs.locator("#post_v1_chat_completions")
    fields = box.get_by_role("row")
    expect(fields.filter(has_text="temperature")).to_contain_text("0 to 2, by default 1")
    expect(fields.nth(1)).to_contain_text("messages")
    expect(fields.nth(1)).to_contain_text("list of Message (1 to 10,000 items), required")
    box.get_by_role("link", name="Message", exact=True).click()
    expect(docs.locator("#http-Message").get_by_role("cell", name="role")).to_be_visible()


def test_the_keyboard_passes_the_contents_by(docs: Page) -> None:
    docs.reload()
    docs.keyboard.press("Tab")
    expect(docs.get_by_role("link", name="Skip the contents")).to_be_focused()
    docs.keyboard.press("Enter")
    expect(docs.get_by_role("main")).to_be_focused()
