"""Files that people give for weights and that are none: what they are told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ds4trio.errors import ModelUnavailable
from ds4trio.models.gguf.header import read_header
from ds4trio.models.headers import look_at_path
from ds4trio.models.load import load_model
from ds4trio.models.resolve import resolve
from ds4trio.models.safetensors import SafetensorsWeights, read_tensors
from tests.tiny import make_tiny_model

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n"

OTHERS = [
    (POINTER, r"Git LFS pointer in place of the file; run 'git lfs pull'\.$"),
    (b"", r"it is empty; was it fetched completely\?$"),
    (b"\n<!DOCTYPE html><title>404</title>", r"web page, not the file"),
    (b"PK\x03\x04" + bytes(100), r"zip archive, as PyTorch"),
    (b"\x1f\x8b" + bytes(100), r"gzip; unpack it first\.$"),
]


@pytest.mark.parametrize(("content", "says"), OTHERS)
def test_in_place_of_a_gguf_file(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelUnavailable, match=says):
        read_header(path)


@pytest.mark.parametrize(("content", "says"), OTHERS)
def test_in_place_of_safetensors(content: bytes, says: str, tmp_path: Path) -> None:
    make_tiny_model(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    for read in (
        lambda: SafetensorsWeights(tmp_path),
        lambda: look_at_path(tmp_path),
        lambda: read_tensors(path),
        lambda: load_model(resolve(str(tmp_path))),
    ):
        with pytest.raises(ModelUnavailable, match=says) as caught:
            read()
        assert str(path) in str(caught.value)


def test_one_format_under_the_name_of_the_other(tmp_path: Path) -> None:
    gguf, safetensors = tmp_path / "x.gguf", tmp_path / "model.safetensors"
    save_file({"a": torch.ones(1)}, gguf)
    safetensors.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(ModelUnavailable, match=r"safetensors file; name the folder it is in\.$"):
        read_header(gguf)
    with pytest.raises(ModelUnavailable, match=r"GGUF file under another name\.$"):
        SafetensorsWeights(tmp_path)


def test_a_fetch_that_was_cut_off_is_asked_about(tmp_path: Path) -> None:
    make_tiny_model(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ModelUnavailable, match=r"; was it fetched completely\?$"):
        SafetensorsWeights(tmp_path)
