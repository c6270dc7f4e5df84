"""A config may say anything: it is read, or refused in a sentence, and nothing else happens."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4trio.engine.rope import inverse_frequencies
from ds4trio.errors import ModelUnavailable
from ds4trio.models.config import GgufFile, ModelConfig, config_from_gguf, config_from_hf
from ds4trio.models.tensors import tensor_shapes
from tests.families.published import PUBLISHED

NUMBERS = [None, True, False, -1, 0, 1, 3, 10**12, 10**400, 0.0, -0.5, 1e308, math.inf, math.nan]
OTHERS = ["", "x", "yarn", "llama3", "longrope", [], [0], [1.0] * 8, ["sliding_attention"], {}]
ROPES = [{"rope_type": "yarn", "factor": 0}, {"full_attention": 1}, {"sliding_attention": {}}]
NEWER: dict[str, dict[str, Any]] = {
    "deepseek-v2": {
        "model_type": "deepseek_v2",
        "hidden_size": 5120,  # whose heads would be narrower than what of them is turned
        "num_attention_heads": 128,
        "moe_intermediate_size": 1536,
        "num_experts_per_tok": 6,
        "n_routed_experts": 160,
    },
    "deepseek-v3": {"model_type": "deepseek_v3", "rope_scaling": {"type": "yarn", "factor": 40}},
    "deepseek-v4": {"model_type": "deepseek_v4", "num_hidden_layers": 4},
    "gpt-oss": {"model_type": "gpt_oss", "num_hidden_layers": 4},
    "mixtral": {"model_type": "mixtral", "num_hidden_layers": 4},
    "qwen2-moe": {"model_type": "qwen2_moe", "num_hidden_layers": 4},
    "qwen3-moe": {"model_type": "qwen3_moe", "num_hidden_layers": 4},
}
"""Models with experts, and with attention of their own: as transformers has them by default."""


NEWER_KEYS = [
    *("vocab_size", "hidden_size", "moe_intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "head_dim", "num_key_value_heads", "q_lora_rank", "kv_lora_rank"),
    *("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "n_routed_experts", "n_shared_experts"),
    *("num_experts_per_tok", "num_local_experts", "num_experts", "n_group", "topk_group"),
    *("topk_method", "scoring_func", "norm_topk_prob", "routed_scaling_factor"),
    *("first_k_dense_replace", "moe_layer_freq", "layer_types", "mlp_layer_types"),
    *("compress_rates", "compress_ratios", "compress_rate_csa", "compress_rope_theta"),
    *("num_hash_layers", "hc_mult", "hc_sinkhorn_iters", "hc_eps", "o_groups", "o_lora_rank"),
    *("index_n_heads", "index_head_dim", "index_topk", "swiglu_limit", "swiglu_alpha"),
    *("sliding_window", "hidden_act", "use_sliding_window", "max_window_layers"),
    *("decoder_sparse_step", "mlp_only_layers", "rope_parameters", "rope_scaling"),
    *("shared_expert_intermediate_size", "partial_rotary_factor", "rope_theta", "qkv_bias"),
    *("max_position_embeddings", "eos_token_id", "rms_norm_eps", "rope_interleave"),
    *("tie_word_embeddings"),
]

VALUES = st.sampled_from([*NUMBERS, *OTHERS, *ROPES])

INNER = ("text_config", "rope_scaling", "rope_parameters")

KEYS = sorted(
    {key for config in PUBLISHED.values() for key in config}
    | {key for config in PUBLISHED.values() for inner in INNER for key in config.get(inner) or {}}
    | {"layer_types", "head_dim", "no_rope_layers", "rope_parameters", "rope_local_base_freq"}
    | {"sliding_window_pattern", "use_bidirectional_attention", "partial_rotary_factor"}
)

GGUF_KEYS = [
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.scale",
    "attention.temperature_scale",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "embedding_scale",
    "residual_scale",
    "logit_scale",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.attn_factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_log_multiplier",
]

SOUND = {
    "block_count": 2,
    "context_length": 512,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.sliding_window": 16,
}

ARCHITECTURES = ["llama", "mistral3", "qwen2", "qwen3", "smollm3"]
ARCHITECTURES += ["granite", "gemma2", "gemma3", "phi3", "olmo2"]

MOST_EXPERTS = 2000
"""Names of more are not counted here; a file that has not the first of them is refused at once."""

LONGEST = 4096
"""Rotations are looked at up to here; wider heads than that no file has tensors for."""


def check(read: Callable[[], ModelConfig]) -> None:
    try:
        config = read()
    except ModelUnavailable:
        return
    experts = 0 if config.experts is None else config.experts.count
    if experts < MOST_EXPERTS:
        assert len(tensor_shapes(config)) < (100 + 6 * experts) * config.layers + 6
    for rope in config.ropes:
        if rope.dims <= LONGEST:
            frequencies, scale = inverse_frequencies(rope, config.context_length)
            assert frequencies.shape == (rope.dims // 2,)
            assert math.isfinite(scale)


@settings(max_examples=600, deadline=None)
@given(
    name=st.sampled_from(sorted(PUBLISHED)),
    changes=st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=4),
    place=st.sampled_from(["outside", *INNER]),
)
def test_hf(name: str, changes: dict[str, Any], place: str) -> None:
    config = copy.deepcopy(PUBLISHED[name])
    inner = config.get(place)
    (inner if isinstance(inner, dict) else config).update(changes)
    check(lambda: config_from_hf(config))


@settings(max_examples=800, deadline=None)
@given(
    name=st.sampled_from(sorted(NEWER)),
    changes=st.dictionaries(st.sampled_from(NEWER_KEYS), VALUES, min_size=1, max_size=4),
)
def test_hf_with_experts_and_attention_of_its_own(name: str, changes: dict[str, Any]) -> None:
    check(lambda: config_from_hf({**NEWER[name], **changes}))


@pytest.mark.parametrize("name", NEWER)
def test_hf_without_changes_is_read(name: str) -> None:
    assert config_from_hf(NEWER[name]).layers >= 4


def gguf(architecture: str, changes: Mapping[str, Any]) -> ModelConfig:
    own = {"logit_scale": 8.0} if architecture == "granite" else {}
    keys = {f"{architecture}.{key}": value for key, value in {**SOUND, **own, **changes}.items()}
    shapes = {"token_embd.weight": (320, 64)}
    return config_from_gguf(GgufFile({"general.architecture": architecture, **keys}, shapes))


@settings(max_examples=600, deadline=None)
@given(
    architecture=st.sampled_from(ARCHITECTURES),
    changes=st.dictionaries(st.sampled_from(GGUF_KEYS), VALUES, min_size=1, max_size=4),
)
def test_gguf(architecture: str, changes: dict[str, Any]) -> None:
    check(lambda: gguf(architecture, changes))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_gguf_without_changes_is_read(architecture: str) -> None:
    assert gguf(architecture, {}).layers == 2
