from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3Config,
    Gemma3ForCausalLM,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    PreTrainedModel,
)

from ds4trio.errors import ModelUnavailable
from ds4trio.models.config import GgufFile, config_from_gguf, config_from_hf
from ds4trio.models.folder import open_folder
from tests.families.converted import keys_of, tensors_of
from tests.families.harness import agree, as_folder, as_gguf, randomise

ROPES = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}


def shape(**overrides: Any) -> dict[str, Any]:
    return {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 512,
        "query_pre_attn_scalar": 32,
        "sliding_window": 11,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        **overrides,
    }


def gemma2(**overrides: Any) -> PreTrainedModel:
    # Scores and logits of random weights reach these.
    caps = {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0}
    config = Gemma2Config(**shape(attn_implementation="eager", **caps, **overrides))
    return randomise(Gemma2ForCausalLM(config))


def gemma3(**overrides: Any) -> PreTrainedModel:
    settings = shape(num_hidden_layers=7, rope_parameters=ROPES, **overrides)
    return randomise(Gemma3ForCausalLM(Gemma3TextConfig(**settings)))


def converted(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Norms hold there what they multiply by."""
    return {
        name: tensor + 1 if name.endswith("norm.weight") else tensor
        for name, tensor in tensors_of(model).items()
    }


@pytest.mark.parametrize("plain", [False, True], ids=["native", "torch"])
@pytest.mark.parametrize("scalar", [32, 9])
def test_gemma2_safetensors(tmp_path: Path, scalar: int, plain: bool) -> None:
    model = gemma2(query_pre_attn_scalar=scalar, attention_bias=scalar == 9)
    opened = as_folder(model, tmp_path)
    assert [opened.config.kind(i).window for i in range(3)] == [11, 0, 11]
    agree(model, opened, plain=plain)


@pytest.mark.parametrize("plain", [False, True], ids=["native", "torch"])
def test_gemma2_gguf(tmp_path: Path, plain: bool) -> None:
    model = gemma2()
    keys = keys_of(
        model,
        attention__sliding_window=11,
        attn_logit_softcapping=3.0,
        final_logit_softcapping=5.0,
    )
    opened = as_gguf(converted(model), tmp_path / "x.gguf", "gemma2", keys, layers=3)
    agree(model, opened, plain=plain)


@pytest.mark.parametrize("plain", [False, True], ids=["native", "torch"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_gemma3_safetensors(tmp_path: Path, tied: bool, plain: bool) -> None:
    cap = None if tied else 6.0
    model = gemma3(tie_word_embeddings=tied, final_logit_softcapping=cap)
    opened = as_folder(model, tmp_path)
    assert [opened.config.kind(i).window for i in range(7)] == [11] * 5 + [0, 11]
    agree(model, opened, plain=plain)


@pytest.mark.parametrize("plain", [False, True], ids=["native", "torch"])
def test_gemma3_gguf(tmp_path: Path, plain: bool) -> None:
    model = gemma3()
    keys = keys_of(
        model,
        rope__freq_base=1e6,
        rope__scaling__type="linear",
        rope__scaling__factor=8.0,
        attention__sliding_window=11,
    )
    opened = as_gguf(converted(model), tmp_path / "x.gguf", "gemma3", keys, layers=7)
    agree(model, opened, plain=plain)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_part_of_one_that_sees(tmp_path: Path, prefix: str) -> None:
    pictures = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    text = shape(num_hidden_layers=7, rope_parameters=ROPES)
    whole = Gemma3ForConditionalGeneration(
        Gemma3Config(
            text_config=text,
            vision_config=pictures,
            mm_tokens_per_image=4,
            image_token_index=310,
            boi_token_index=311,
            eoi_token_index=312,
        )
    )
    randomise(whole)
    alone = Gemma3ForCausalLM(Gemma3TextConfig(**text))
    alone.model.load_state_dict(whole.model.language_model.state_dict())
    alone.train(False)
    opened = as_folder(whole, tmp_path)
    if prefix == "model.language_model.":
        path = tmp_path / "model.safetensors"
        saved = {
            name.replace("language_model.model.", prefix): t for name, t in load_file(path).items()
        }
        save_file(saved, path)
        opened = open_folder("tiny", tmp_path)
    agree(alone, opened)


@pytest.mark.parametrize(("layers", "scale"), [(62, 16**-0.5), (34, 32**-0.5)])
def test_scores_of_the_largest_one_are_scaled_otherwise(layers: int, scale: float) -> None:
    metadata = {
        "general.architecture": "gemma3",
        **{f"gemma3.{key}": value for key, value in keys_of(gemma3()).items()},
        "gemma3.block_count": layers,
    }
    config = config_from_gguf(GgufFile(metadata, {"token_embd.weight": (320, 64)}))
    assert config.scale == pytest.approx(scale)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"use_bidirectional_attention": True}, "sees what comes after"),
        ({"attn_logit_softcapping": 50.0}, "soft caps"),
        ({"query_pre_attn_scalar": 0}, "must be positive"),
        ({"layer_types": ["full_attention", "linear_attention", None]}, "'linear_attention'"),
        ({"sliding_window": None}, "its width is None"),
        ({"num_hidden_layers": 10**12}, "more than any model has"),
        ({"hidden_activation": "gelu"}, "activation 'gelu' is not known"),
    ],
)
def test_what_is_not_known_is_refused(overrides: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelUnavailable, match=says):
        config_from_hf(shape(model_type="gemma3_text", **overrides))
