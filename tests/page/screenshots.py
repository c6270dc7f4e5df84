"""Pictures of the page's main states, in both themes and three widths.

Run as ``python -m tests.page.screenshots [FOLDER]``, with chromium on the PATH. The answers come
from the scripted server, so that a picture changes only when the page does. ``--readme`` renews
the one that the README shows.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from tests.page.conftest import CHROMIUM_FLAGS
from tests.page.states import STATES, open_panel
from tests.page.visit import Visit, scripted_server, visit

WIDTHS = {390: 844, 820: 1100, 1440: 900}
README = Path(__file__).parents[2] / "docs" / "page.png"


def take(browser: Browser, url: str, folder: Path, state: str) -> None:
    """Each width has a visit of its own, since what is opened may depend on it."""
    for width, height in WIDTHS.items():
        viewport = {"width": width, "height": height}
        with visit(browser, url, viewport=viewport, reduced_motion="reduce") as seen:
            STATES[state](seen)
            for theme in ("light", "dark"):
                seen.page.emulate_media(color_scheme=theme)
                picture(seen, folder / f"{state}-{width}-{theme}.png")
            seen.errors.clear()


def take_for_readme(browser: Browser, url: str) -> None:
    """An answer, and beside it the server at work."""
    viewport = {"width": 1440, "height": 900}
    with visit(browser, url, viewport=viewport, reduced_motion="reduce") as seen:
        STATES["answer"](seen)
        open_panel(seen)
        picture(seen, README)


def picture(seen: Visit, path: Path) -> None:
    seen.page.screenshot(path=path, animations="disabled", caret="hide")
    print(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("screenshots"))
    parser.add_argument("--state", choices=STATES, action="append")
    parser.add_argument("--readme", action="store_true", help="only docs/page.png")
    arguments = parser.parse_args()
    with sync_playwright() as playwright, scripted_server() as server:
        executable = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=executable, args=CHROMIUM_FLAGS)
        if arguments.readme:
            take_for_readme(browser, server.url)
        else:
            arguments.folder.mkdir(parents=True, exist_ok=True)
            for state in arguments.state or STATES:
                take(browser, server.url, arguments.folder, state)
        browser.close()


if __name__ == "__main__":
    main()
