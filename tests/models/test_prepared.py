from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file

from ds4trio.chat.tokenizer import Tokenizer
from ds4trio.errors import ModelUnavailable
from ds4trio.models.folder import open_folder
from ds4trio.models.gguf import prepared
from ds4trio.models.gguf.prepared import open_gguf
from ds4trio.models.loaded import LoadedModel
from tests.models.gguf_files import write_gguf
from tests.tiny import make_tiny_model


def test_gguf_and_safetensors_hold_the_same_model(
    cache: Path, tmp_path: Path, tiny_gguf: Path, tiny_model: Path
) -> None:
    ours, theirs = open_gguf("tiny", tiny_gguf), open_folder("tiny", tiny_model)
    assert ours.config == theirs.config.__class__(
        **{
            **{name: getattr(theirs.config, name) for name in theirs.config.__struct_fields__},
            "norm_eps": ours.config.norm_eps,  # GGUF keeps it in 32 bits
            "eos_token_ids": (2, 0),  # and <|endoftext|> counts by its name
        }
    )
    assert ours.config.norm_eps == pytest.approx(theirs.config.norm_eps)
    assert set(ours.weights) == set(theirs.weights)
    for name, tensor in theirs.weights.items():
        assert torch.equal(ours.weights[name], tensor), name
    assert (ours.bos_token, ours.eos_token) == (theirs.bos_token, theirs.eos_token)
    assert ours.chat_template == theirs.chat_template
    assert (ours.add_bos, theirs.add_bos) == (False, False)
    text = "The user and the system: 12 of <|im_end|> それ"
    encode = Tokenizer.load(ours.tokenizer_path).encode
    assert encode(text, special=True) == Tokenizer.load(theirs.tokenizer_path).encode(
        text, special=True
    )


def test_biases_and_an_own_head_are_loaded(cache: Path, tmp_path: Path) -> None:
    folder = make_tiny_model(
        tmp_path / "biased", attention_bias=True, mlp_bias=True, tie_word_embeddings=False
    )
    model = open_gguf("biased", write_gguf(tmp_path / "biased.gguf", folder))
    assert model.config.attention_bias
    assert model.config.mlp_bias
    assert not model.config.tied_head
    saved = load_file(folder / "model.safetensors")
    assert set(model.weights) == set(saved)
    for name, tensor in saved.items():
        assert torch.equal(model.weights[name], tensor), name


@pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16, Kind.Q4_1, Kind.Q8_0], ids=lambda k: k.name)
def test_quantised_rows_are_reordered_too(
    cache: Path, tmp_path: Path, tiny_model: Path, kind: Kind
) -> None:
    model = open_gguf("tiny", write_gguf(tmp_path / "tiny.gguf", tiny_model, kind=kind))
    original = load_file(tiny_model / "model.safetensors")
    for name in (
        "model.layers.1.self_attn.q_proj.weight",
        "model.layers.0.self_attn.k_proj.weight",
    ):
        expected = gguf.quants.dequantize(gguf.quants.quantize(original[name].numpy(), kind), kind)
        assert model.weights[name].dtype == torch.float32
        np.testing.assert_array_equal(model.weights[name].numpy(), expected)


def test_rope_factors_become_part_of_the_config(
    cache: Path, tmp_path: Path, tiny_model: Path
) -> None:
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    path = write_gguf(tmp_path / "x.gguf", tiny_model, extra={"rope_freqs.weight": factors})
    for model in (open_gguf("x", path), open_gguf("x", path)):  # converted, then from the cache
        assert model.config.ropes[0].factors == tuple(factors.tolist())
        assert "rope_freqs.weight" not in model.weights


def test_a_tensor_unknown_or_missing_or_misshapen_is_named(
    cache: Path, tmp_path: Path, tiny_model: Path
) -> None:
    norm = {"blk.0.attn_q_norm.weight": np.ones(16, np.float32)}
    unknown = write_gguf(tmp_path / "unknown.gguf", tiny_model, extra=norm)
    with pytest.raises(ModelUnavailable, match=r"unknown tensor 'blk\.0\.attn_q_norm\.weight'"):
        open_gguf("x", unknown)
    missing = write_gguf(tmp_path / "m.gguf", tiny_model, without=("blk.1.ffn_up.weight",))
    with pytest.raises(ModelUnavailable, match=r"no tensor 'blk\.1\.ffn_up"):
        open_gguf("x", missing)
    wrong = write_gguf(tmp_path / "w.gguf", tiny_model, metadata={"llama.feed_forward_length": 128})
    with pytest.raises(
        ModelUnavailable, match=r"has shape \[96, 64\], its config says \[128, 64\]"
    ):
        open_gguf("x", wrong)
    assert not list((cache / "converted").glob("*"))


def test_a_file_is_converted_once_and_nothing_is_written_beside_it(
    cache: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[tuple[str, int, int | None]] = []
    first = open_gguf("a", tiny_gguf, progress=lambda *report: reports.append(report))
    assert reports[0] == ("converting tiny.gguf", 0, 3)
    assert reports[-1] == ("converting tiny.gguf", 3, 3)
    monkeypatch.setattr(prepared, "read_parts", _must_not_be_called)
    again = open_gguf("b", tiny_gguf)
    assert again.config == first.config
    assert again.tokenizer_path == first.tokenizer_path
    assert again.tokenizer_path.is_relative_to(cache)
    name = "model.layers.1.self_attn.q_proj.weight"
    assert torch.equal(again.weights[name], first.weights[name])
    assert list(tiny_gguf.parent.iterdir()) == [tiny_gguf]


def test_a_changed_file_is_converted_anew_and_the_old_conversion_goes(
    cache: Path, tiny_gguf: Path, tmp_path: Path, tiny_model: Path
) -> None:
    before = open_gguf("a", tiny_gguf)
    stat = tiny_gguf.stat()
    write_gguf(tiny_gguf, tiny_model, metadata={"llama.context_length": 256})
    assert tiny_gguf.stat().st_size == stat.st_size
    os.utime(tiny_gguf, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    after = open_gguf("a", tiny_gguf)
    assert (before.config.context_length, after.config.context_length) == (512, 256)
    assert list((cache / "converted").iterdir()) == [after.tokenizer_path.parent]


@pytest.mark.parametrize("name", ["model.msgpack", "tokenizer.json"])
@pytest.mark.parametrize("damage", ["cut", "gone", "empty", "flipped"])
def test_a_damaged_conversion_is_made_anew(
    cache: Path, tiny_gguf: Path, name: str, damage: str
) -> None:
    kept = open_gguf("a", tiny_gguf).tokenizer_path.with_name(name)
    good = kept.read_bytes()
    if damage == "gone":
        kept.unlink()
    elif damage == "flipped":
        for place in range(0, len(good), len(good) // 50):
            kept.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
            open_gguf("a", tiny_gguf)
            assert kept.read_bytes() == good
    else:
        kept.write_bytes(good[: len(good) // 2 if damage == "cut" else 0])
    open_gguf("a", tiny_gguf)
    assert kept.read_bytes() == good


def test_many_conversions_at_once_agree(cache: Path, tiny_gguf: Path) -> None:
    start = threading.Barrier(6)

    def convert() -> tuple[Path, float]:
        start.wait()
        model = open_gguf("a", tiny_gguf)
        Tokenizer.load(model.tokenizer_path)
        return model.tokenizer_path, float(model.weights["model.norm.weight"].sum())

    with ThreadPoolExecutor(6) as pool:
        results = [future.result() for future in [pool.submit(convert) for _ in range(6)]]
    assert len(set(results)) == 1
    assert list((cache / "converted").iterdir()) == [results[0][0].parent]


def test_a_cache_that_cannot_be_written_says_what_to_do_and_nothing_else(
    tmp_path: Path,
    tiny_gguf: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("DS4TRIO_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelUnavailable, match="set DS4TRIO_CACHE"):
        open_gguf("a", tiny_gguf)
    assert not caplog.records


def test_a_file_that_is_gone_is_named(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"absent\.gguf cannot be read"):
        open_gguf("a", tmp_path / "absent.gguf")


@pytest.mark.model
def test_the_default_model_is_what_it_should_be(
    default_model: LoadedModel,
) -> None:
    config = default_model.config
    assert (config.layers, config.hidden_size, config.vocab_size) == (30, 576, 49152)
    assert (config.heads, config.kv_heads, config.head_dim) == (9, 3, 64)
    assert config.ropes[0].theta == 100_000
    assert config.tied_head
    assert config.eos_token_ids == (2, 0)
    assert (default_model.bos_token, default_model.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert not default_model.add_bos
    assert len(default_model.weights) == 272
    assert default_model.weights["model.layers.29.mlp.down_proj.weight"].shape == (576, 1536)
    scale = default_model.weights["model.embed_tokens.weight"].std()
    assert 0.01 < scale < 1.0


def _must_not_be_called(*_: object) -> None:
    raise AssertionError("the header was read again")
