"""The snippets of README.md do what it says of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.show.real_server import KEY, RealServer

pytestmark = pytest.mark.model

README = Path(__file__).parents[2] / "README.md"
SNIPPETS = re.findall(
    r"^```python\n(.*?)^```$", README.read_text("utf-8"), re.DOTALL | re.MULTILINE
)


def test_its_snippets_run_one_after_the_other(
    server: RealServer, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = SNIPPETS
    own = first.replace("http://127.0.0.1:8000", server.url).replace('"none"', repr(KEY))
    assert own.count(server.url) == own.count(KEY) == 1
    names: dict[str, object] = {}
    exec(own, names)
    assert "Paris" in capsys.readouterr().out
    exec(second, names)
    said = capsys.readouterr().out
    assert re.search(r"^France .*Paris", said, re.MULTILINE)
    assert {line.split()[0] for line in said.splitlines() if line} >= {"France", "Italy", "Japan"}
