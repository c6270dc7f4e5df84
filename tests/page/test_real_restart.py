"""A server that goes in mid-answer and comes back with another model: a small one that thinks, as
the default model does not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.page.real import RealServer, RealVisit, real_visit
from tests.tiny import CHATML, make_tiny_model

pytestmark = [pytest.mark.browser, pytest.mark.model]

STORY = "Write a long story about a lighthouse keeper."
THINKING = CHATML.replace("assistant\n' }}", "assistant\n<think>\n' }}").replace(
    "message['content']", "message['content'].split('</think>')[-1]"
)
"""Begins every answer with reasoning and leaves that out afterwards, as QwQ's does."""


@pytest.fixture(scope="module")
def thinking_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model, which left to itself never ends its reasoning."""
    folder = tmp_path_factory.mktemp("models") / "thinking"
    make_tiny_model(folder, scale=0.5, ends=False, max_position_embeddings=8192)
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    settings["chat_template"] = THINKING
    file.write_text(json.dumps(settings))
    return folder


@pytest.fixture
def thinker(browser: Browser, real_server: RealServer, thinking_model: Path) -> Iterator[RealVisit]:
    real_server.serve(str(thinking_model))
    with real_visit(browser, real_server.url) as seen:
        yield seen


def test_a_server_that_comes_back_with_another_model_is_found_and_the_chat_goes_on(
    real: RealVisit, real_server: RealServer, thinking_model: Path
) -> None:
    real.ask(STORY)
    real.expect_words(10)
    real_server.end()
    expect(real.page.locator("#notice")).to_contain_text("The connection was lost")
    expect(real.part("wait-text")).to_contain_text("being looked for")
    begun = real.said()
    real_server.serve(str(thinking_model))
    real.expect_status("interrupted", "failed")
    expect(real.page.locator("#model")).to_have_text("thinking")
    expect(real.page.locator("#notice")).to_be_hidden()
    assert real.said() == begun
    real.set(maxTokens="20")
    real.button("Continue").click()
    expect(real.part("versions")).to_contain_text("2 of 2")
    real.expect_status("cut", "done")
    assert real.said().startswith(begun.rstrip())
    real.ask_and_wait("And then?")
    real.errors.clear()  # the browser itself reports each refused connection


def test_reasoning_streams_into_a_fold_that_closes_for_the_answer(thinker: RealVisit) -> None:
    thinker.set(more='{"reasoning": {"max_tokens": 100}}', maxTokens="2000")
    thinker.ask("Why?")
    fold = thinker.part("reasoning")
    expect(fold).to_have_attribute("open", "")
    expect(thinker.text).not_to_be_empty()
    expect(fold).not_to_have_attribute("open", "")
    thinker.expect_status("answering")
    fold.locator("summary").click()
    expect(fold.locator("[data-part=reasoning-text]")).not_to_be_empty()
    thinker.page.keyboard.press("Escape")
    thinker.expect_status("stopped")
    usage = thinker.response(thinker.names[0])["usage"]
    assert usage["output_tokens_details"]["reasoning_tokens"] >= 100


def test_it_is_stopped_while_it_thinks(thinker: RealVisit) -> None:
    thinker.ask("Why?")
    expect(thinker.part("reasoning-text")).not_to_be_empty()
    thinker.expect_status("reasoning")
    thinker.page.keyboard.press("Escape")
    thinker.expect_status("stopped")
    expect(thinker.text).to_be_empty()
    response = thinker.response(thinker.names[0])
    assert response["status"] == "cancelled"
    assert [item["type"] for item in response["output"]] == ["reasoning"]
