"""What ``--dtype auto`` means on a CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ds4trio.engine import choice
from ds4trio.engine.choice import fastest_dtype
from ds4trio.models.load import load_model
from ds4trio.models.loaded import LoadedModel
from ds4trio.models.resolve import resolve
from tests.tiny import make_tiny_model


@pytest.fixture
def tiny(tmp_path: Path) -> LoadedModel:
    folder = tmp_path / "tiny"
    make_tiny_model(folder)
    (tmp_path / "kept").mkdir()
    return replace(load_model(resolve(str(folder))), folder=tmp_path / "kept")


def test_int8_is_measured_once_and_taken_where_it_changes_little(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fastest_dtype(tiny) == "int8"
    assert tiny.folder is not None
    assert 0 < float((tiny.folder / choice.VERDICT).read_text()) < choice.MOST
    monkeypatch.setattr(choice, "logits_of", None)
    assert fastest_dtype(tiny) == "int8"


@pytest.mark.parametrize("kept", ["0.5", "nan"])
def test_float32_is_taken_where_int8_changes_much(tiny: LoadedModel, kept: str) -> None:
    assert tiny.folder is not None
    (tiny.folder / choice.VERDICT).write_text(kept)
    assert fastest_dtype(tiny) == "float32"


def test_a_broken_verdict_is_measured_anew(tiny: LoadedModel) -> None:
    assert tiny.folder is not None
    (tiny.folder / choice.VERDICT).write_text("much")
    assert fastest_dtype(tiny) == "int8"


def test_without_a_place_to_keep_the_verdict_nothing_is_measured(tiny: LoadedModel) -> None:
    assert fastest_dtype(replace(tiny, folder=None)) == "float32"
