from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from ds4trio.cli.pull import pull
from tests.models.gguf_files import write_gguf


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DS4TRIO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_pulled_model_is_converted_and_its_place_printed(
    cache: Path, tmp_path: Path, tiny_model: Path
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", tiny_model)
    result = CliRunner().invoke(pull, [str(path)])
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{path}\n"
    assert "converting tiny.gguf" in result.stderr
    assert len(list(cache.glob("converted/*/model.msgpack"))) == 1


def test_what_cannot_be_pulled_is_one_line(cache: Path) -> None:
    result = CliRunner().invoke(pull, ["no-such-model"])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: There is no model 'no-such-model'")
    assert result.stderr.count("\n") == 1
