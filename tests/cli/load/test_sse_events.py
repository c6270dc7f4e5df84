"""Server-sent events come out the same however the bytes are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4trio.cli.load import sse_events
from ds4trio.cli.load.sse_events import EventReader

LINES = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@given(
    events=st.lists(st.lists(LINES, min_size=1, max_size=3), max_size=5),
    end=ENDS,
    cuts=st.lists(st.integers(0, 400), max_size=20),
)
def test_events_survive_any_cutting(events: list[list[str]], end: bytes, cuts: list[int]) -> None:
    stream = b"".join(
        b"".join(b"data: " + line.encode() + end for line in event) + end for event in events
    )
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    reader = EventReader()
    found = [data for start, stop in pairwise(edges) for data in reader.feed(stream[start:stop])]
    assert found == ["\n".join(event).encode() for event in events]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_a_line_end_may_come_in_halves(end: bytes) -> None:
    reader = EventReader()
    stream = end.join([b"data: a", b"data: b", b"", b"data: c", b"", b""])
    found = [data for byte in stream for data in reader.feed(bytes([byte]))]
    assert found == [b"a\nb", b"c"]


def test_comments_and_other_fields_are_no_data() -> None:
    reader = EventReader()
    stream = b": ping\n:\n\nevent: x\nid: 3\ndata:tight\n:\ndata:  two spaces\n\ndata: unfinished\n"
    assert reader.feed(stream) == [b"tight\n two spaces"]
    assert reader.feed(b"\n") == [b"unfinished"]


@given(st.lists(st.binary(max_size=30), max_size=10))
def test_any_bytes_at_all_are_taken(chunks: list[bytes]) -> None:
    reader = EventReader()
    for chunk in chunks:
        reader.feed(chunk)


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse_events, "LARGEST_LINE", 1000)
    reader = EventReader()
    reader.feed(b"data: " + b"x" * 900)
    with pytest.raises(ValueError, match="no end"):
        reader.feed(b"x" * 200)
