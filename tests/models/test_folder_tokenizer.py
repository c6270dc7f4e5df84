from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ds4trio.chat.tokenizer import Tokenizer
from ds4trio.errors import ModelUnavailable
from ds4trio.models.vocabularies.folder import find_tokenizer
from tests.models.sentencepiece_files import SPACE, model_file, small_vocabulary
from tests.models.test_tekken import file as tekken_file

LLAMA = small_vocabulary()


@pytest.fixture
def folder(tmp_path: Path, cache: Path) -> Path:
    found = tmp_path / "model"
    found.mkdir()
    return found


def write(folder: Path, **contents: Any) -> None:
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def tokens(folder: Path, text: str) -> list[str]:
    tokenizer = Tokenizer.load(find_tokenizer(folder).path)
    return [tokenizer.token_text(index) for index in tokenizer.encode(text, special=True)]


def test_a_sentencepiece_model_is_converted_once(folder: Path, cache: Path) -> None:
    (folder / "tokenizer.model").write_bytes(model_file(LLAMA))
    found = find_tokenizer(folder)
    assert (found.bos, found.eos, found.eos_ids, found.add_bos) == ("<s>", "</s>", (2,), True)
    assert cache in found.path.parents
    assert tokens(folder, "<s>hello") == ["<s>", " hello"]
    made = found.path.stat().st_mtime_ns
    assert find_tokenizer(folder).path.stat().st_mtime_ns == made
    (folder / "tokenizer.model").write_bytes(model_file(LLAMA, prefix=False))
    assert tokens(folder, "hello") == ["hello"]


def test_the_settings_are_followed(folder: Path) -> None:
    (folder / "tokenizer.model").write_bytes(model_file(LLAMA))
    size = len(LLAMA.tokens)
    write(
        folder,
        added_tokens={"<|end|>": size, "<|user|>": size + 1},
        tokenizer_config={
            "legacy": False,
            "eos_token": {"content": "<|end|>"},
            "add_bos_token": False,
            "added_tokens_decoder": {
                str(size): {"content": "<|end|>", "rstrip": True, "special": True},
                str(size + 2): {"content": "<tool>", "special": False},
            },
        },
    )
    found = find_tokenizer(folder)
    assert (found.bos, found.eos, found.eos_ids, found.add_bos) == (
        *("<s>", "<|end|>", (size,), False),
    )
    assert tokens(folder, "<s>hello<|end|>  the<tool>") == [
        *("<s>", "hello", "<|end|>", "the", "<tool>"),
    ]
    assert Tokenizer.load(found.path).control_tokens[-2:] == ("<|end|>", "<|user|>")


def test_a_tekken_file_is_converted(folder: Path) -> None:
    (folder / "tekken.json").write_bytes(tekken_file())
    (folder / "tokenizer.model").write_bytes(b"older, and not looked at")
    found = find_tokenizer(folder)
    assert (found.bos, found.eos, found.eos_ids, found.add_bos) == ("<s>", "</s>", (2,), True)
    assert tokens(folder, "<s>[INST] the[/INST]") == ["<s>", "[INST]", " the", "[/INST]"]


@pytest.mark.parametrize(
    ("added", "says"),
    [({"<|end|>": 10**6}, "does not fit"), ({"hello": 5}, "does not fit")],
)
def test_added_tokens_must_fit(folder: Path, added: dict[str, int], says: str) -> None:
    (folder / "tokenizer.model").write_bytes(model_file(LLAMA))
    write(folder, added_tokens=added)
    with pytest.raises(ModelUnavailable, match=says):
        find_tokenizer(folder)


def test_a_damaged_file_is_named_and_leaves_nothing(folder: Path, cache: Path) -> None:
    (folder / "tokenizer.model").write_bytes(model_file(LLAMA)[:1000])
    with pytest.raises(ModelUnavailable, match=r"tokenizer\.model cannot be used"):
        find_tokenizer(folder)
    assert not list(cache.rglob("*.json"))
    (folder / "tokenizer.model").unlink()
    with pytest.raises(ModelUnavailable, match=r"no tokenizer\.json, tekken\.json or tokenizer"):
        find_tokenizer(folder)


def test_spaces_in_pieces_are_spaces(folder: Path) -> None:
    (folder / "tokenizer.model").write_bytes(model_file(LLAMA))
    tokenizer = Tokenizer.load(find_tokenizer(folder).path)
    index = tokenizer.token_id(f"{SPACE}{SPACE}")
    assert index is not None
    assert tokenizer.token_bytes(index) == b"  "
