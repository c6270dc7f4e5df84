"""Models that are split over several GGUF files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from ds4trio.errors import ModelUnavailable
from ds4trio.models.gguf.parts import part_paths, read_parts
from ds4trio.models.gguf.prepared import open_gguf
from tests.models.gguf_files import write_gguf


@pytest.fixture
def parts(tiny_model: Path, tmp_path: Path) -> list[Path]:
    """The tiny model in three files."""
    folder = tmp_path / "parts"
    folder.mkdir()
    first = write_gguf(folder / "tiny.gguf", tiny_model, tensors_a_part=8)
    assert first.name == "tiny-00001-of-00003.gguf"
    return sorted(folder.iterdir())


def write_part(path: Path, keys: dict[str, Any], *names: str) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in keys.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_uint16(key, value)
    for name in names:
        writer.add_tensor(name, np.ones(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("given", [0, 1, 2])
def test_any_part_opens_the_whole_model(
    cache: Path, tiny_gguf: Path, parts: list[Path], given: int
) -> None:
    whole, split = open_gguf("x", tiny_gguf), open_gguf("x", parts[given])
    assert split.config == whole.config
    assert split.chat_template == whole.chat_template
    assert set(split.weights) == set(whole.weights)
    for name, tensor in whole.weights.items():
        assert torch.equal(split.weights[name], tensor), name
    assert split.folder == open_gguf("x", parts[0]).folder


def test_parts_behind_links_are_found_by_the_names_of_the_links(
    cache: Path, tmp_path: Path, parts: list[Path]
) -> None:
    blobs, links = tmp_path / "blobs", tmp_path / "links"
    blobs.mkdir()
    links.mkdir()
    for number, part in enumerate(parts):
        shutil.move(part, blobs / str(number))
        (links / part.name).symlink_to(blobs / str(number))
    assert len(open_gguf("x", links / parts[1].name).weights) == 20


@pytest.mark.parametrize("changed", [0, 1, 2])
def test_a_change_of_any_part_makes_the_conversion_anew(
    cache: Path, parts: list[Path], changed: int
) -> None:
    before = open_gguf("x", parts[0]).folder
    stat = parts[changed].stat()
    os.utime(parts[changed], ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    after = open_gguf("x", parts[0]).folder
    assert after != before
    assert list((cache / "converted").iterdir()) == [after]


def test_a_missing_part_is_named(cache: Path, parts: list[Path]) -> None:
    parts[1].unlink()
    with pytest.raises(ModelUnavailable, match=r"Part 2 of 3 is missing: .*tiny-00002-of-00003"):
        open_gguf("x", parts[2])


def test_a_part_under_the_name_of_another_is_named(cache: Path, parts: list[Path]) -> None:
    shutil.copy(parts[1], parts[2])
    with pytest.raises(
        ModelUnavailable, match=r"00003-of-00003\.gguf .*name says part 3 of 3, its header part 2"
    ):
        open_gguf("x", parts[0])


def test_a_part_of_another_model_is_named(cache: Path, tmp_path: Path, parts: list[Path]) -> None:
    keys = {"split.count": 3, "split.no": 2, "split.tensors.count": 20}
    write_part(parts[2], keys, "blk.0.attn_q.weight")
    with pytest.raises(ModelUnavailable, match=r"00003-of-00003\.gguf .*has its tensor .* too"):
        open_gguf("x", parts[0])
    write_part(parts[2], keys, "blk.7.attn_q.weight")
    with pytest.raises(ModelUnavailable, match="says that all parts have 20 tensors, they have"):
        open_gguf("x", parts[0])
    write_part(parts[2], {**keys, "split.count": 4}, "x")
    with pytest.raises(ModelUnavailable, match=r"one of 3 parts, its header one of 4"):
        open_gguf("x", parts[0])


def test_a_name_and_a_header_that_do_not_fit(tmp_path: Path) -> None:
    renamed = write_part(tmp_path / "model.gguf", {"split.count": 2}, "x")
    with pytest.raises(ModelUnavailable, match="one of 2 parts, which are found by their names"):
        read_parts(part_paths(renamed))
    odd = write_part(tmp_path / "odd.gguf", {"split.count": "two"}, "x")
    with pytest.raises(ModelUnavailable, match=r"split\.count is not a whole number"):
        read_parts(part_paths(odd))
    with pytest.raises(ModelUnavailable, match="its name says part 3 of 2"):
        part_paths(tmp_path / "m-00003-of-00002.gguf")


def test_a_single_part_is_a_whole_model(tmp_path: Path) -> None:
    only = write_part(tmp_path / "m-00001-of-00001.gguf", {"split.count": 1, "split.no": 0}, "x")
    assert part_paths(only) == [only]
    assert list(read_parts([only]).tensors) == ["x"]


def test_each_tensor_lies_in_its_own_part(tmp_path: Path) -> None:
    paths = [tmp_path / f"m-{number:05}-of-00002.gguf" for number in (1, 2)]
    for number, (path, name) in enumerate(zip(paths, "ab", strict=True)):
        write_part(path, {"split.count": 2, "split.no": number}, name)
    tensors = read_parts(part_paths(paths[1])).tensors
    assert {name: info.part for name, info in tensors.items()} == {"a": 0, "b": 1}
