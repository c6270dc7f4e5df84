"""Answers of the default model on their way to the page: resumed, stopped, several at once."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.page.real import RealVisit

pytestmark = [pytest.mark.browser, pytest.mark.model]

STORY = "Write a long story about a lighthouse keeper."


def text_file(first: int, words: int) -> str:
    """Numbers, unlike those of any other ``first``, so that the prefix cache has nothing."""
    return " ".join(str(first * 1000 + number) for number in range(words // 5))


def test_it_answers_remembers_and_reads_nothing_twice(real: RealVisit) -> None:
    real.ask_and_wait("What is the capital of France? Answer in one word.")
    expect(real.text).to_contain_text("Paris")
    expect(real.part("stats")).to_have_text(re.compile(r"\d+ tokens? · .*alone in its batches"))
    real.ask_and_wait("And of Italy?")
    expect(real.text).to_contain_text("Rome")
    assert len(real.asked[1]["input"]) == 1
    assert real.asked[1]["previous_response_id"] == real.names[0]
    usage = real.response(real.names[1])["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] >= 32
    expect(real.part("stats")).to_contain_text(" cached")
    expect(real.page.locator("#context-text")).to_contain_text("of 8,192 tokens")
    expect(real.page.locator("#model")).to_have_text("smollm2-135m-instruct")
    real.expect_whole(real.names[1])


def test_a_reload_in_mid_answer_goes_on_to_the_letter(real: RealVisit) -> None:
    real.ask_at_length(STORY, 80)
    real.expect_words(10)
    real.page.reload()
    real.expect_words(20)
    real.expect_status("answering")
    real.draft.fill("Half a thou")
    real.page.reload()
    real.expect_status("cut")
    expect(real.draft).to_have_value("Half a thou")
    assert len(real.names) == 1
    real.expect_whole(real.names[0])


def test_a_lost_socket_in_mid_answer_goes_on_to_the_letter(real: RealVisit) -> None:
    real.ask_at_length(STORY, 50)
    real.expect_words(10)
    real.close_socket()
    expect(real.page.locator("#notice")).to_contain_text("The connection was lost")
    real.expect_status("cut")
    real.expect_whole(real.names[0])
    expect(real.page.locator("#link-text")).to_have_text("Connected")
    real.set(maxTokens="5")
    real.ask_and_wait("And then?")
    assert real.sockets == 2


def test_two_chats_stream_side_by_side_over_one_socket_and_the_panel_shows_it(
    real: RealVisit,
) -> None:
    real.page.get_by_role("button", name="Server", exact=True).click()
    real.set(maxTokens="80")
    real.page.get_by_role("button", name="Side by side").click()
    real.set(maxTokens="80")
    panel, chats = (
        real.page.locator("#panel"),
        [real.page.locator("#pane"), real.page.locator("#pane-beside")],
    )
    for chat, question in zip(chats, (STORY, "Write a long story about a river."), strict=True):
        chat.get_by_label("Message", exact=True).fill(question)
        chat.get_by_role("button", name="Send").click()
    for chat in chats:
        expect(chat.locator("[data-part=stats]")).to_contain_text("batch of 2")
        expect(chat.locator("[data-status=answering]")).to_be_in_viewport()
    expect(real.page.locator("#chat-list > li[data-busy]")).to_have_count(2)
    expect(panel).to_contain_text(re.compile(r"Answers now2 of \d+"))
    expect(panel).to_contain_text(re.compile(r"Answers per batch(2\.0|1\.[5-9])"))
    expect(panel).to_contain_text(re.compile(r"KV pages in use[1-9]\d* of [1-9]\d*"))
    for chat in chats:
        expect(chat.locator("[data-status=cut]")).to_be_visible(timeout=60_000)
    assert real.sockets == 1
    assert len({asked["stream_id"] for asked in real.asked}) == 2
    for name in real.names:
        real.expect_whole(name)
        assert real.response(name)["ds4trio"]["mean_batch_size"] > 1


def test_an_answer_says_what_it_cost(real: RealVisit) -> None:
    """The figures are the server's own, digit by digit."""
    real.ask_briefly("What is the capital of France?")
    real.set(maxTokens="40")
    real.ask_and_wait("And of Italy?")
    response = real.response(real.names[-1])
    usage, timings = response["usage"], response["ds4trio"]
    cached = usage["input_tokens_details"]["cached_tokens"]
    assert cached > 0
    shown = real.part("stats")
    expect(shown).to_contain_text(f"{timings['tokens_per_second']:.1f} tokens/s")
    expect(shown).to_contain_text(f"{usage['output_tokens']} token")
    expect(shown).to_contain_text(f"first in {timings['first_token_seconds']:.2f} s")
    expect(shown).to_contain_text(f"{cached} of {usage['input_tokens']} cached")
    filled = usage["input_tokens"] + usage["output_tokens"]
    expect(real.page.locator("#context-text")).to_contain_text(f"{filled} of ")


def test_three_more_answers_come_at_once(real: RealVisit) -> None:
    real.set(maxTokens="60")
    real.ask_and_wait("Name a colour and say what it reminds you of.")
    real.ask_three_times()
    real.expect_candidates("answering")
    in_one_batch = re.compile(r"batch of 3|[23]\.\d per batch")
    expect(real.candidates.last.locator("[data-part=stats]")).to_have_text(in_one_batch)
    for candidate in real.candidates.all():
        expect(candidate).to_have_attribute("data-status", re.compile("done|cut"), timeout=60_000)
    real.take(3)
    expect(real.part("versions")).to_contain_text("4 of 4")
    assert len(real.names) == 4
    assert [asked["temperature"] for asked in real.asked] == [0, 0.7, 0.7, 0.7]
    for name in real.names[1:]:
        real.expect_whole(name)
        assert real.response(name)["ds4trio"]["mean_batch_size"] > 1


def test_a_long_prompt_is_read_behind_a_bar(real: RealVisit) -> None:
    bar = real.page.get_by_role("progressbar", name="Reading the prompt")
    real.set(maxTokens="3")
    real.attach("numbers.txt", text_file(1, 1000))
    real.ask("What is this?")
    expect(bar).to_be_visible()
    expect(real.part("wait-text")).to_have_text(
        re.compile(r"Reading: [1-9]\d* of [1-9]\d{3} tokens")
    )
    assert 0 < bar.evaluate("bar => bar.value") < bar.evaluate("bar => bar.max")
    real.expect_status("cut", "done")
    expect(bar).to_be_hidden()
    real.expect_whole(real.names[0])


def test_it_is_stopped_while_it_reads_and_while_it_answers(real: RealVisit) -> None:
    real.attach("numbers.txt", text_file(2, 4000))
    real.ask("What is this?")
    expect(real.part("wait-text")).to_contain_text("Reading:")
    real.page.keyboard.press("Escape")
    real.expect_status("stopped")
    assert real.response(real.names[0])["status"] == "cancelled"
    assert real.response(real.names[0])["usage"]["output_tokens"] == 0
    real.new_chat()
    real.ask(STORY)
    real.expect_words(5)
    real.page.keyboard.press("Escape")
    real.expect_status("stopped")
    assert real.response(real.names[1])["status"] == "cancelled"
    real.expect_whole(real.names[1])
    real.set(maxTokens="10")
    real.ask_and_wait("And now?")
    expect(real.text).not_to_be_empty()
    assert real.sockets == 1


def test_an_answer_that_is_followed_is_stopped_over_http(real: RealVisit) -> None:
    real.ask(STORY)
    real.expect_words(5)
    real.page.reload()
    real.expect_words(10)
    real.page.keyboard.press("Escape")
    real.expect_status("stopped")
    real.expect_whole(real.names[0])


def test_a_cut_answer_goes_on_where_it_was(real: RealVisit) -> None:
    real.ask_at_length(STORY, 20)
    real.expect_status("cut")
    first = real.said()
    expect(real.part("note")).to_have_text("Reached the length limit")
    real.button("Continue").click()
    expect(real.part("versions")).to_contain_text("2 of 2")
    real.expect_status("cut")
    # At temperature 0 the two halves are what one answer of both lengths would have been.
    whole = real.said()
    assert whole.startswith(first)
    assert len(whole) > len(first)
    assert real.asked[1]["continue_final_message"] is True
    real.new_chat()
    real.ask_at_length(STORY, 40)
    real.expect_status("cut")
    assert real.said() == whole


def test_settings_reach_the_server(real: RealVisit) -> None:
    real.set(system="You are a pirate.", temperature="0.5", maxTokens="12", seed="7")
    real.ask_and_wait("Who are you?")
    had = real.response(real.names[0])
    assert had["instructions"] == "You are a pirate."
    assert (had["temperature"], had["max_output_tokens"]) == (0.5, 12)
    assert had["usage"]["output_tokens"] <= 12
    first = real.said()
    real.button("Edit", of=real.questions.last).click()
    real.page.get_by_label("Your question, to be changed").press("Enter")  # in the same words
    expect(real.questions.last.locator("[data-part=versions]")).to_contain_text("2 of 2")
    real.expect_status("cut", "done")
    assert real.said() == first  # the seed's doing
    real.button("Try again").click()
    expect(real.part("versions")).to_contain_text("2 of 2")
    real.expect_status("cut", "done")
    assert real.asked[-1]["seed"] == 8


def test_the_policy_holds_and_the_api_can_be_read_here(real: RealVisit) -> None:
    """Every operation and every message is shown, links open what they lead to, and nothing comes
    from elsewhere (``visiting`` sees to that)."""
    response = real.page.request.get(real.url)
    assert "script-src 'self'" in response.headers["content-security-policy"]
    real.page.goto(real.url + "/docs")
    expect(real.page.locator("[aria-busy]")).to_have_count(0)
    shown = set(real.page.locator("details > summary > code").all_text_contents())
    http = real.page.request.get(real.url + "/openapi.json").json()
    socket = real.page.request.get(real.url + "/asyncapi.json").json()
    assert shown >= {*http["paths"], *socket["components"]["messages"]}
    box = real.page.locator("#post_v1_chat_completions")
    box.locator("summary").click()
    expect(box.get_by_role("cell", name="max_completion_tokens")).to_be_visible()
    box.get_by_role("link", name="Message").click()
    expect(real.page.locator("#http-Message").get_by_role("cell", name="role")).to_be_visible()
