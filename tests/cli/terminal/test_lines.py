from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ds4trio.cli.terminal import lines
from ds4trio.cli.terminal.lines import PipeLines


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


async def lines_of(data: bytes) -> list[str]:
    """What is read from a file that holds these bytes."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        source = PipeLines(file.fileno())
        found = []
        while (line := await source.read()) is not None:
            found.append(line)
        return found


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\r\n\r\ntwo", ["one", "", "two"]),
        ("é👩".encode() + b"\n\xff\xfe\n", ["é👩", "\ufffd\ufffd"]),
        (b"x" * 200_000 + b"\nend\n", ["x" * 200_000, "end"]),
    ],
)
async def test_lines_of_a_file(data: bytes, expected: list[str]) -> None:
    assert await lines_of(data) == expected


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8"))))
async def test_what_is_written_as_lines_is_read_as_lines(texts: list[str]) -> None:
    assert await lines_of("".join(f"{text}\n" for text in texts).encode()) == texts


async def test_a_line_comes_before_the_pipe_ends(pipe: tuple[int, int]) -> None:
    source = PipeLines(pipe[0])
    os.write(pipe[1], b"one\ntw")
    assert await source.read() == "one"
    os.write(pipe[1], b"o\n")
    assert await source.read() == "two"


async def test_waiting_for_a_line_can_be_cancelled(pipe: tuple[int, int]) -> None:
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(PipeLines(pipe[0]).read)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    assert scope.cancelled_caught
    os.write(pipe[1], b"\n")  # lets the thread that was left behind end


async def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LONGEST_LINE", 100_000)
    with pytest.raises(ValueError, match="longer than 100000 bytes"):
        await lines_of(b"x" * 300_000)
