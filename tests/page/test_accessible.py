"""That the page is usable by those who do not see it as it is drawn: axe finds nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, expect

from tests.page.states import STATES
from tests.page.visit import Visit, visit

pytestmark = pytest.mark.browser

AXE = Path(__file__).parents[2] / "static" / "node_modules" / "axe-core" / "axe.min.js"

RUN = """async () => {
  const { violations, incomplete } = await axe.run();
  const unjudged = incomplete.filter(({ id }) => id !== "color-contrast");
  return [...violations, ...unjudged].flatMap(({ id, impact, nodes }) =>
    nodes.map(({ target, failureSummary }) => `${impact} ${id} ${target}: ${failureSummary}`));
}"""

TALL = 2600
"""So that all of a chat is in view: axe does not judge the colours of what is scrolled away."""


@pytest.mark.parametrize("state", STATES)
def test_axe_finds_nothing(browser: Browser, scripted_url: str, state: str) -> None:
    with visit(browser, scripted_url, reduced_motion="reduce") as seen:
        STATES[state](seen)
        seen.page.evaluate(AXE.read_text())
        assert found(seen, "light", 1440) == []
        assert found(seen, "dark", 390) == []


def found(seen: Visit, theme: Literal["light", "dark"], width: int) -> list[str]:
    """What axe-core (https://github.com/dequelabs/axe-core) has against the page, by all its rules,
    and what it leaves to people to judge, but for colours where there are too few letters."""
    seen.page.emulate_media(color_scheme=theme)
    seen.page.set_viewport_size({"width": width, "height": TALL})
    if width < 1024:  # where a second chat has no room, it is about to go
        expect(seen.page.locator("#pane-beside")).to_have_count(0)
    violations: list[str] = seen.page.evaluate(RUN)
    return violations


def test_axe_would_find_something(reader: Visit) -> None:
    reader.ready()
    reader.page.evaluate(AXE.read_text())
    reader.page.locator("#attach").evaluate("button => button.removeAttribute('aria-label')")
    assert "button-name #attach" in found(reader, "light", 1440)[0]
