"""What is typed: of the size asked for, from different places, and the code with its task."""

from __future__ import annotations

import random
import re

from hypothesis import given
from hypothesis import strategies as st

from ds4trio.cli.load.prompts import CodeToCopy, RandomWords, RealText, built_in_code

TEXT = " ".join(f"word{number}" for number in range(3000))


@given(seed=st.integers(), size=st.integers(4, 2000))
def test_pieces_of_a_text_are_about_as_long_as_asked_for_and_whole(seed: int, size: int) -> None:
    text = RealText(TEXT, "a book")
    prompt = text.first(random.Random(seed), size)
    assert abs(len(prompt) - 4 * size) <= 24
    piece = prompt.partition("\n\n")[0]
    words = piece.split()
    first = int(words[0].removeprefix("word"))
    assert words == [f"word{number % 3000}" for number in range(first, first + len(words))]


def test_prompts_come_from_different_places_of_the_text() -> None:
    text, source = RealText(TEXT, "a book"), random.Random(1)
    beginnings = {text.first(source, 64).split()[0] for _ in range(50)}
    assert len(beginnings) > 40
    assert text.shared(source, 0) == ""
    assert "great length" not in text.shared(source, 100)


@given(text=st.text(min_size=1).filter(str.strip), seed=st.integers(), size=st.integers(1, 60))
def test_any_text_and_any_code_make_prompts(text: str, seed: int, size: int) -> None:
    source = random.Random(seed)
    for prompts in (RealText(text, "x"), CodeToCopy(text, "x")):
        assert prompts.first(source, size).strip()
        assert prompts.later(source, size).strip()


def test_a_text_without_spaces_is_cut_all_the_same() -> None:
    prompt = RealText("x" * 5000, "x").first(random.Random(0), 100)
    assert 300 < len(prompt) < 600


@given(seed=st.integers(), size=st.integers(60, 1400))
def test_code_comes_with_one_change_to_make(seed: int, size: int) -> None:
    prompt = CodeToCopy(built_in_code(), "code").first(random.Random(seed), size)
    found = re.fullmatch(
        r"Change the name `(\w+)` to `(\w+)` in this code\. [^\n]*:\n```\n(.*)\n```",
        prompt,
        re.DOTALL,
    )
    assert found is not None
    old, new, code = found.groups()
    assert re.search(rf"\b{old}\b", code)
    assert new not in code
    assert abs(len(re.sub(r"\n +", "\n", prompt)) / 4 - size) < 0.2 * size + 16
    lines = [line.rstrip() for line in built_in_code().splitlines()]
    assert all(line in lines for line in code.splitlines()[1:])


def test_the_built_in_code_runs_and_copies_differ() -> None:
    names: dict[str, object] = {"__name__": "code"}
    exec(compile(built_in_code(), "code_to_copy.txt", "exec"), names)
    code, source = CodeToCopy(built_in_code(), "code"), random.Random(3)
    said = [code.first(source, 100) for _ in range(50)]
    assert len({prompt[:60] for prompt in said}) > 45


def test_random_words_have_no_text_of_no_length() -> None:
    assert RandomWords().shared(random.Random(0), 0) == ""
