from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers import Phi3Config, Phi3ForCausalLM, PreTrainedModel

from ds4trio.errors import ModelUnavailable
from ds4trio.models.config import config_from_hf
from ds4trio.models.loaded import LoadedModel
from tests.families.converted import keys_of, tensors_of
from tests.families.harness import agree, as_folder, as_gguf, randomise

SHORT = [1.0, 1.1, 1.3, 1.4, 1.7, 2.0]
LONG = [1.0, 1.5, 2.5, 6.0, 11.0, 30.0]


def shape(**overrides: Any) -> dict[str, Any]:
    return {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "original_max_position_embeddings": 512,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        **overrides,
    }


def reference(**overrides: Any) -> PreTrainedModel:
    return randomise(Phi3ForCausalLM(Phi3Config(**shape(**overrides))))


def stretched(original: int) -> PreTrainedModel:
    """Three quarters of each head are turned, as in Phi-4-mini."""
    return reference(
        original_max_position_embeddings=original,
        partial_rotary_factor=0.75,
        rope_scaling={"type": "longrope", "short_factor": SHORT, "long_factor": LONG},
        tie_word_embeddings=True,
    )


def within(model: LoadedModel, context: int) -> LoadedModel:
    """Served with a shorter context."""
    config = msgspec.structs.replace(model.config, context_length=context)
    return replace(model, config=config)


@pytest.mark.parametrize("plain", [False, True], ids=["native", "torch"])
@pytest.mark.parametrize("window", [None, 13])
def test_safetensors(tmp_path: Path, window: int | None, plain: bool) -> None:
    model = reference(sliding_window=window, tie_word_embeddings=False)
    agree(model, as_folder(model, tmp_path), plain=plain)


@pytest.mark.parametrize("plain", [False, True], ids=["native", "torch"])
def test_long_contexts(tmp_path: Path, plain: bool) -> None:
    model = stretched(32)  # all texts of the test are longer
    agree(model, as_folder(model, tmp_path), plain=plain)


@pytest.mark.parametrize("plain", [False, True], ids=["native", "torch"])
def test_short_contexts_of_a_model_for_long_ones(tmp_path: Path, plain: bool) -> None:
    model = stretched(256)  # all are shorter
    agree(model, within(as_folder(model, tmp_path), 256), plain=plain)


@pytest.mark.parametrize("window", [0, 13])
def test_gguf(tmp_path: Path, window: int) -> None:
    model = reference(sliding_window=window or None, tie_word_embeddings=False)
    keys = keys_of(
        model,
        rope__freq_base=1e4,
        rope__dimension_count=16,
        rope__scaling__original_context_length=512,
        attention__sliding_window=window,
    )
    agree(model, as_gguf(tensors_of(model), tmp_path / "x.gguf", "phi3", keys, layers=2))


def test_gguf_long_contexts(tmp_path: Path) -> None:
    model = stretched(32)
    keys = keys_of(
        model,
        rope__freq_base=1e4,
        rope__dimension_count=12,
        rope__scaling__original_context_length=32,
        rope__scaling__attn_factor=(1 + 4 / 5) ** 0.5,  # 512 is 2 ** 9, 32 is 2 ** 5
        attention__sliding_window=0,
    )
    tensors: Mapping[str, torch.Tensor] = tensors_of(model)
    factors = {
        "rope_factors_short.weight": torch.tensor(SHORT),
        "rope_factors_long.weight": torch.tensor(LONG),
    }
    opened = as_gguf(tensors, tmp_path / "x.gguf", "phi3", keys, layers=2, extra=factors)
    agree(model, opened)


def test_what_long_contexts_were_called_first() -> None:
    factors = {"short_factor": SHORT, "long_factor": LONG}
    both = [
        config_from_hf(
            shape(
                model_type="phi3",
                partial_rotary_factor=0.75,
                rope_scaling={"type": kind, **factors},
            )
        )
        for kind in ("su", "longrope")
    ]
    assert both[0] == both[1]


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, "'yarn' is not known of Phi-3"),
        ({"rope_scaling": {"type": "su", "short_factor": SHORT}}, "rotary factors do not fit"),
        ({"rope_scaling": {"type": "su", "short_factor": "1"}}, "must be a list of numbers"),
        ({"hidden_act": "gelu_new"}, "'gelu_new' is not known"),
        ({"partial_rotary_factor": -1}, "partial_rotary_factor is -1"),
    ],
)
def test_what_is_not_known_is_refused(overrides: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelUnavailable, match=says):
        config_from_hf(shape(model_type="phi3", **overrides))
