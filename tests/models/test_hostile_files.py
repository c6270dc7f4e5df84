"""Whatever the files of a model or an adapter hold: it is opened, or refused in a sentence."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from ds4trio.errors import ModelUnavailable
from ds4trio.models.folder import open_folder
from ds4trio.models.gguf.header import read_header
from ds4trio.models.gguf.prepared import open_gguf
from ds4trio.models.headers import look_at_path
from ds4trio.models.lora import open_adapter
from ds4trio.models.vocabularies.folder import find_tokenizer
from ds4trio.models.vocabularies.gguf import build_tokenizer
from tests.engine.builders import make_pair
from tests.lora_files import make_adapter
from tests.models.gguf_files import tokenizer_metadata, write_gguf
from tests.models.sentencepiece_files import model_file, small_vocabulary

FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "tokenizer.json",
    "special_tokens_map.json",
)
INDEX = "model.safetensors.index.json"
DEEP = b"[" * 100_000
PAIR = make_pair()


@pytest.fixture
def folder(tiny_model: Path, tmp_path: Path) -> Path:
    """A copy that has a beginning of text to look for."""
    shutil.copytree(tiny_model, tmp_path / "model")
    settings = {"bos_token": "<s>", "add_bos_token": None}
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(settings))
    return tmp_path / "model"


@pytest.mark.parametrize("name", [*FILES, INDEX])
@pytest.mark.parametrize("closed", [True, False])
def test_json_without_end(folder: Path, name: str, closed: bool) -> None:
    if name == INDEX:
        (folder / "model.safetensors").unlink()
    if name == "special_tokens_map.json":
        (folder / "tokenizer_config.json").unlink()
    end = b"]" * len(DEEP) + b"}" if closed else b""
    (folder / name).write_bytes(b'{"weight_map": {"a": ' + DEEP + end)
    with pytest.raises(ModelUnavailable):
        open_folder("x", folder)
    if name in ("config.json", INDEX):
        with pytest.raises(ModelUnavailable):
            look_at_path(folder)


@pytest.mark.parametrize("name", ["x" * 5000, "..", "", "a\0b", "/etc/passwd", "../model"])
def test_names_of_files_that_cannot_be(folder: Path, name: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(ModelUnavailable):
        open_folder("x", folder)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
PROCESSORS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["TemplateProcessing", "Sequence", 3]),
        "single": VALUES | st.lists(st.fixed_dictionaries({"SpecialToken": VALUES}), max_size=2),
        "processors": VALUES,
    },
)


@settings(max_examples=150, deadline=None)
@given(
    settings_=st.dictionaries(
        st.sampled_from(
            ["bos_token", "eos_token", "add_bos_token", "chat_template", "added_tokens_decoder"]
        ),
        VALUES,
    ),
    processor=PROCESSORS | VALUES,
    added=VALUES,
)
def test_tokenizers_and_their_settings(
    tiny_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
    settings_: dict[str, Any],
    processor: Any,
    added: Any,
) -> None:
    folder = tmp_path_factory.mktemp("tokenizer")
    changed = {"post_processor": processor, "added_tokens": added}
    (folder / "tokenizer.json").write_text(json.dumps(changed))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", **settings_}))
    try:
        find_tokenizer(folder)
    except ModelUnavailable:
        return


def test_a_token_with_an_endless_number(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(model_file(small_vocabulary()))
    tokens = {"9" * 5000: {"content": "x"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": tokens}))
    assert find_tokenizer(tmp_path).path.is_file()


def header(*values: bytes, keys: int = 1, tensors: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + b"".join(values)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


@pytest.mark.parametrize(
    "content",
    [
        header(text(b"k") + struct.pack("<IIQ", 9, 0, 1 << 31)),
        header(text(b"k") + struct.pack("<IIQ", 9, 8, 1 << 27)),
        header(text(b"k") + struct.pack("<IQ", 8, 1 << 31)),
        header(tensors=1 << 26),
    ],
    ids=["bytes", "strings", "string", "tensors"],
)
def test_counts_that_a_large_file_would_hold(tmp_path: Path, content: bytes) -> None:
    """A count that is damaged must not become a list of all there is."""
    path = tmp_path / "x.gguf"
    with path.open("wb") as file:
        file.write(content)
        file.truncate(4 << 30)  # a hole, which takes no room
    with pytest.raises(ModelUnavailable, match=r"more values|a string of"):
        read_header(path)


TYPES = [torch.float8_e4m3fn, torch.int8, torch.int64, torch.bool, torch.complex64, torch.float64]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_adapters_of_any_type(tmp_path: Path, dtype: torch.dtype) -> None:
    make_adapter(tmp_path, PAIR.weights, seed=0, rank=4)
    name = "base_model.model.model.layers.0.mlp.up_proj.lora_"
    tensors = {f"{name}A.weight": torch.ones(4, 64), f"{name}B.weight": torch.ones(96, 4)}
    path = tmp_path / "adapter_model.safetensors"
    save_file({key: value.to(dtype) for key, value in tensors.items()}, path)
    if dtype is torch.float64:
        assert len(open_adapter("x", tmp_path, PAIR.config).pairs) == 1
    else:
        with pytest.raises(ModelUnavailable, match="of type"):
            open_adapter("x", tmp_path, PAIR.config)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"alpha_pattern": {"up_proj": 10**400}}, "too large|no number|cannot be read"),
        ({"alpha_pattern": {"up_proj": 1e15}}, None),
        ({"alpha_pattern": {"up_proj": "x"}}, "must be a number"),
        ({"alpha_pattern": {r".*\.up_proj": 3}}, "only names"),
        ({"rank_pattern": ["up_proj"]}, "not an object"),
        ({"lora_alpha": 1e308}, "no number"),
    ],
)
def test_scales_that_cannot_be(tmp_path: Path, config: dict[str, Any], says: str | None) -> None:
    make_adapter(tmp_path, PAIR.weights, seed=0, rank=4, **config)
    if says is None:
        open_adapter("x", tmp_path, PAIR.config)
        return
    with pytest.raises(ModelUnavailable, match=says):
        open_adapter("x", tmp_path, PAIR.config)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damaged_adapters(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("adapter")
    make_adapter(folder, PAIR.weights, seed=0, rank=4)
    content = bytearray((folder / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, min(len(content), 3000) - 1))] = data.draw(
            st.integers(0, 255)
        )
    (folder / name).write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        open_adapter("x", folder, PAIR.config)
    except ModelUnavailable:
        return


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"token_embd.weight": np.float32(1)}, "dimensions in place of 2"),
        ({"token_embd.weight": np.zeros((320, 1, 64), np.float32)}, "dimensions in place of 2"),
        ({"rope_freqs.weight": np.zeros(8, np.float32)}, "not a positive number"),
        ({"rope_freqs.weight": np.full(8, np.nan, np.float32)}, "not a positive number"),
        ({"rope_freqs.weight": np.ones((1 << 20) + 1, np.float32)}, "has 1048577 numbers"),
        ({"rope_factors_long.weight": np.ones(8, np.float32)}, "not for both"),
    ],
)
def test_tensors_that_a_config_is_made_of(
    tiny_model: Path, tmp_path: Path, cache: Path, tensors: dict[str, Any], says: str
) -> None:
    path = write_gguf(tmp_path / "x.gguf", tiny_model, extra=tensors, without=tuple(tensors))
    with pytest.raises(ModelUnavailable, match=says):
        open_gguf("x", path)


@pytest.mark.parametrize("value", [["llama"], 3, None])
def test_a_tokenizer_of_no_kind(tiny_model: Path, value: Any) -> None:
    with pytest.raises(ModelUnavailable, match="unknown tokenizer"):
        build_tokenizer({**tokenizer_metadata(tiny_model), "tokenizer.ggml.model": value})
