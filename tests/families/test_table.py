"""The table of families in the documentation is what the tests before this one have shown.

``DS4TRIO_WRITE_TABLE=1 python -m pytest tests/families`` writes it anew. This file's name puts it
after all others in its folder.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ds4trio.models.families import FAMILIES
from tests.families.harness import VERIFIED

FOLDER = Path(__file__).parent
DOCS = FOLDER.parent.parent / "docs" / "models.md"
BEGIN, END = "<!-- verified families -->\n", "<!-- end of verified families -->"


def table() -> str:
    lines = ["| Architecture | safetensors | GGUF |", "| --- | --- | --- |"]
    for name in sorted({name for name, _, _ in VERIFIED}):
        ways = [
            ", ".join(sorted(way for which, kind, way in VERIFIED if (which, kind) == (name, file)))
            for file in ("safetensors", "GGUF")
        ]
        lines.append(f"| `{name}` | {ways[0]} | {ways[1]} |")
    return "\n".join(lines) + "\n"


def test_the_table_of_families_is_what_was_shown(request: pytest.FixtureRequest) -> None:
    run = {Path(str(item.path)).name for item in request.session.items}
    if not run >= {path.name for path in FOLDER.glob("test_*.py")} or request.session.testsfailed:
        pytest.skip("needs all tests of the families to have passed")
    text = DOCS.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    found, _, after = rest.partition(END)
    if os.environ.get("DS4TRIO_WRITE_TABLE"):
        DOCS.write_text(before + BEGIN + table() + END + after, encoding="utf-8")
        return
    assert found == table(), "see the top of this file"


def test_every_family_was_shown(request: pytest.FixtureRequest) -> None:
    run = {Path(str(item.path)).name for item in request.session.items}
    if not run >= {path.name for path in FOLDER.glob("test_*.py")} or request.session.testsfailed:
        pytest.skip("needs all tests of the families to have passed")
    shown = {name for name, _, _ in VERIFIED}
    # Both are read as others are: Kimi K2 as DeepSeek V3, a model that sees by its text part.
    read_as_others = {"kimi_k2", "mistral3", "gemma3"}
    assert {name for family in FAMILIES for name in family.from_hf} - shown <= read_as_others
