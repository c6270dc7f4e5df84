"""The browser, the servers, and a reader at each."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.page.visit import Visit, scripted_server, visit

CHROMIUM_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    executable = shutil.which("chromium")
    if executable is None:
        pytest.fail("the page's tests need Debian's chromium on the PATH")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def scripted_url() -> Iterator[str]:
    with scripted_server() as server:
        yield server.url


@pytest.fixture
def reader(browser: Browser, scripted_url: str) -> Iterator[Visit]:
    """At the scripted server."""
    with visit(browser, scripted_url) as seen:
        yield seen
