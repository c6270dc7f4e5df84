"""The picture of a run: what is in it, and that holes in the figures are no obstacle."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ds4trio.cli.load.bench import Bench, LevelResult, Plan
from ds4trio.cli.load.client import Answer
from ds4trio.cli.load.document import Document, document
from ds4trio.cli.load.plot import plot
from ds4trio.cli.load.replay import RawRound
from ds4trio.cli.load.runner import Level, Limits
from ds4trio.cli.load.tally import Request, Tally
from ds4trio.cli.load.target import Target
from ds4trio.cli.load.workload import Workload
from tests.cli.load.fake_client import FakeServer
from tests.cli.load.test_bench import Log

TARGETS = [
    Target.parse("A", "one.example", "ws", None, None),
    Target.parse("B", "two.example", "sse", None, None),
]


def tally(*pieces: float) -> Tally:
    if not pieces:
        return Tally()
    request = Request(0, 0.0, pieces[-1], Answer(pieces, 10, 0, len(pieces)))
    return Tally([request], seconds=pieces[-1], complete=True)


def found(*levels: Level, raw: bool = True) -> Document:
    """Server B was not answering at the last level."""
    run = Bench(Plan(levels, Workload(), Limits()), [FakeServer("A"), FakeServer("B")], Log())
    for number, level in enumerate(levels, start=1):
        last = number == len(levels)
        tallies = {"A": [tally(0.5, 1.0, number + 1.0)], "B": [tally() if last else tally(1, 4)]}
        alone = [RawRound(1, 3, 3, 1.0)] if raw else []
        run.results.append(LevelResult(level, tallies, list(alone)))
    return document(run, TARGETS, "")


def texts(path: Path) -> set[str]:
    """What is written in an SVG; matplotlib draws letters and leaves the text beside them."""
    return set(re.findall(r"<!-- (.*?) -->", path.read_text(encoding="utf-8")))


def test_a_picture_has_both_servers_every_level_and_the_engine_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.svg"
    plot(found(Level(users=1), Level(users=8), Level(users=32)), path)
    written = texts(path)
    assert {"1", "8", "32", "users"} <= written
    assert {f"{server} {p}" for server in "AB" for p in ("p50", "p95", "p99")} <= written
    assert {"A", "B", "A's engine alone", "tokens a second, all users together"} <= written
    again = tmp_path / "again.svg"
    plot(found(Level(users=1), Level(users=8), Level(users=32)), again)
    assert texts(again) == written
    assert "<dc:date>" not in path.read_text(encoding="utf-8")


def test_a_picture_of_arrivals_says_so(tmp_path: Path) -> None:
    path = tmp_path / "run.svg"
    plot(found(Level(rate=0.5), Level(rate=2.0), raw=False), path)
    assert {"0.5", "2", "conversations a second"} <= texts(path)
    assert "A's engine alone" not in texts(path)


def test_a_png_is_one(tmp_path: Path) -> None:
    path = tmp_path / "run.png"
    plot(found(Level(users=1)), path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_file_that_cannot_be_written_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="directory"):
        plot(found(Level(users=1)), tmp_path / "gone" / "run.svg")
