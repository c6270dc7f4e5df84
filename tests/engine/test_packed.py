"""Packed weights are kept in a file, and a file that is not right is made anew."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from ds4trio.engine.attention import Span, make_attention
from ds4trio.engine.decoder import Decoder
from ds4trio.engine.native.packed import Packed, PackedFile
from tests.engine.builders import CPU, Pair, make_pair

TOKENS = [5, 9, 200, 3, 17]


class Unreadable(dict[str, torch.Tensor]):
    """Weights of which only those that have no packed form may be read."""

    def __getitem__(self, name: str) -> torch.Tensor:
        assert "norm" in name, f"{name} was read"
        return super().__getitem__(name)


def logits(pair: Pair, path: Path | None, dtype: str = "int8") -> torch.Tensor:
    attention = make_attention(
        pair.config, context_length=64, pages=4, page_size=16, dtype=dtype, device=CPU
    )
    with torch.inference_mode():
        decoder = Decoder(pair.config, pair.weights, dtype=dtype, device=CPU, keep_in=path)
        plan = attention.plan([Span([0], 0, len(TOKENS))])
        return decoder(torch.tensor(TOKENS), plan, attention, None)


@pytest.mark.parametrize("dtype", ["float32", "w8a16", "int8"])
@pytest.mark.parametrize("bias", [False, True])
def test_a_second_start_reads_the_packed_weights_and_not_the_others(
    tmp_path: Path, dtype: str, bias: bool
) -> None:
    pair = make_pair(attention_bias=bias, mlp_bias=bias)
    path = tmp_path / "packed"
    first = logits(pair, path, dtype)
    assert path.is_file()
    again = Pair(pair.reference, pair.config, Unreadable(pair.weights))
    assert torch.equal(logits(again, path, dtype), first)
    assert torch.equal(logits(pair, None, dtype), first)


@pytest.mark.parametrize("damage", ["empty", "cut", "a byte", "another model's", "another form"])
def test_a_file_that_is_not_right_is_made_anew(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, path = make_pair(), tmp_path / "packed"
    expected = logits(pair, path)
    whole = path.read_bytes()
    if damage == "empty":
        path.write_bytes(b"")
    elif damage == "cut":
        path.write_bytes(whole[: len(whole) // 2])
    elif damage == "a byte":
        middle = len(whole) // 2
        path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 16]) + whole[middle + 1 :])
    elif damage == "another model's":
        logits(make_pair(num_hidden_layers=1), tmp_path / "other")
        (tmp_path / "other").replace(path)
    else:
        with monkeypatch.context() as patch:
            patch.setattr("ds4trio.engine.native.packed.FORMAT", "0")
            path.unlink()
            logits(pair, path)
    assert torch.equal(logits(pair, path), expected)
    assert path.read_bytes() == whole


def test_a_folder_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with caplog.at_level(logging.WARNING):
        logits(make_pair(), blocked / "packed")
    assert "packed weights are not kept" in caplog.text


def test_a_failure_while_packing_leaves_no_file(tmp_path: Path) -> None:
    def fail() -> Packed:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError), PackedFile(tmp_path / "packed") as kept:
        kept.get("name", fail)
    assert not list(tmp_path.iterdir())
