"""The browser, the servers, and a reader at each."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.page.real import RealServer, RealVisit, real_visit
from tests.page.visit import Visit, scripted_server, visit

CHROMIUM_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    # One process draws all pages, and none draws the frame of a window that nobody sees: together
    # they halve what a fresh profile costs. The other features are those that Playwright turns off.
    "--renderer-process-limit=1",
    "--disable-features="
    + ",".join(
        (
            "PreloadTopChromeWebUI",
            "InitialWebUI",
            "WebUIReloadButton",
            "WebUIOmniboxPopup",
            "AvoidUnnecessaryBeforeUnloadCheckSync",
            "DestroyProfileOnBrowserClose",
            "HttpsUpgrades",
            "HttpsFirstBalancedModeAutoEnable",
            "LensOverlay",
            "MediaRouter",
            "PaintHolding",
            "ThirdPartyStoragePartitioning",
            "OptimizationHints",
            "NetworkTimeServiceQuerying",
            "AimEnabled",
            "PreconnectToSearch",
            "Translate",
        )
    ),
]
PATIENCE_MS = 15_000
"""For what is expected: a machine may have other work."""


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Ends with these tests: while Playwright is there, the thread can run no event loop."""
    executable = shutil.which("chromium")
    if executable is None:
        pytest.fail("the page's tests need Debian's chromium on the PATH")
    expect.set_options(timeout=PATIENCE_MS)
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


@pytest.fixture(scope="package")
def real_server() -> Iterator[RealServer]:
    """``ds4trio serve``, started when it is first asked for a model."""
    server = RealServer()
    yield server
    server.end()


@pytest.fixture
def real(browser: Browser, real_server: RealServer) -> Iterator[RealVisit]:
    """At ds4trio with the default model."""
    real_server.serve()
    with real_visit(browser, real_server.url) as seen:
        yield seen
