"""What a file says and a family does not read: refused, where it would change the answer."""

from __future__ import annotations

from typing import Any

import pytest
import transformers

from ds4trio.errors import ModelUnavailable
from ds4trio.models.config import config_from_hf, find_gguf_tensors
from tests.families.test_hostile import ARCHITECTURES, gguf

HF = [
    ("llama", {"partial_rotary_factor": 0.5}, "turns whole heads"),
    ("qwen3", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "turns whole heads"),
    ("deepseek_v3", {"partial_rotary_factor": 0.5}, "turns whole heads"),
    ("deepseek_v4", {"hidden_act": "gelu_pytorch_tanh"}, "activation gelu_tanh"),
    ("qwen2", {"is_causal": False}, "what comes after"),
    ("llama", {"use_bidirectional_attention": True}, "what comes after"),
]


CONFIGS = [
    *("Llama", "Mistral", "Ministral3", "Mixtral", "Qwen2", "Qwen3", "Qwen2Moe", "Qwen3Moe"),
    *("SmolLM3", "Granite", "Gemma2", "Gemma3Text", "Phi3", "Olmo2", "Olmo3", "GptOss"),
    *("DeepseekV3", "DeepseekV4"),
]


@pytest.mark.parametrize("name", CONFIGS)
def test_what_a_config_leaves_out_is_what_transformers_takes(name: str) -> None:
    kind = getattr(transformers, f"{name}Config")
    assert config_from_hf({"model_type": kind.model_type}) == config_from_hf(kind().to_dict())


@pytest.mark.parametrize(("kind", "says", "why"), HF)
def test_hf(kind: str, says: dict[str, Any], why: str) -> None:
    config_from_hf({"model_type": kind})
    with pytest.raises(ModelUnavailable, match=why):
        config_from_hf({"model_type": kind, **says})


GGUF = {
    "attention.causal": False,
    "attention.clamp_kqv": 30.0,
    "attention.key_length_swa": 99,
    "attn_logit_softcapping": 5.0,
    "attention.scale": 0.3,
    "expert_gating_func": 2,
    "logit_scale": 0.5,
    "router_logit_softcapping": 30.0,
    "rope.scaling.yarn_ext_factor": 0.5,
    "use_parallel_residual": True,
}


@pytest.mark.parametrize("key", GGUF)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_gguf(architecture: str, key: str) -> None:
    """Read or refused, never left out."""
    as_ever = gguf(architecture, {"attention.key_length": 16})
    try:
        changed = gguf(architecture, {"attention.key_length": 16, key: GGUF[key]})
    except ModelUnavailable as refused:
        changed = None
        said = str(refused)
    assert changed != as_ever
    assert changed is not None or f"{architecture}.{key} is" in said


def test_gguf_with_a_part_of_heads_turned_in_pairs() -> None:
    config = gguf("llama", {"rope.dimension_count": 8})
    with pytest.raises(ModelUnavailable, match="only a part is turned"):
        find_gguf_tensors(config, {})
