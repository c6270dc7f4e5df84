from __future__ import annotations

from typing import Any

import msgspec
import pytest
from transformers import LlamaConfig

from ds4trio.errors import ModelUnavailable
from ds4trio.models.config import (
    GgufFile,
    ModelConfig,
    RopeScaling,
    config_from_gguf,
    config_from_hf,
)
from tests.tiny import tiny_config

GGUF: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 512,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.eos_token_id": 2,
}


def of(metadata: dict[str, Any]) -> ModelConfig:
    return config_from_gguf(GgufFile(metadata, {"token_embd.weight": (8, 64)}))


def from_gguf(rope_factors: list[float] | None = None, **changes: Any) -> ModelConfig:
    metadata = GGUF | {key.replace("__", "."): value for key, value in changes.items()}
    divisors = {} if rope_factors is None else {"rope_freqs.weight": rope_factors}
    return config_from_gguf(
        GgufFile(metadata, {"token_embd.weight": (8, 64), "output.weight": (8, 64)}, divisors)
    )


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}


def test_both_generations_of_rope_keys_mean_the_same() -> None:
    old = tiny_config(rope_theta=5e5, rope_scaling={"type": "llama3", **LLAMA3})
    del old["rope_parameters"]
    new = tiny_config(rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3})
    config = config_from_hf(old)
    assert config == config_from_hf(new)
    assert config.ropes[0].theta == 5e5
    assert config.ropes[0].scaling == RopeScaling(
        kind="llama3", factor=8.0, original_context_length=128
    )


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "llama3", **LLAMA3},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0.8, "beta_fast": 9},
    ],
)
def test_what_transformers_saves_is_read_back(rope: dict[str, Any]) -> None:
    theirs = LlamaConfig(**tiny_config(rope_parameters={"rope_theta": 2e4, **rope}))
    saved = theirs.to_diff_dict()
    ours = config_from_hf(saved)
    assert (ours.hidden_size, ours.layers, ours.heads, ours.kv_heads) == (64, 2, 4, 2)
    assert ours.ropes[0].theta == 2e4
    if rope["rope_type"] == "default":
        assert ours.ropes[0].scaling is None
    else:
        assert ours.ropes[0].scaling is not None
        assert ours.ropes[0].scaling.kind == rope["rope_type"]
        assert ours.ropes[0].scaling.factor == rope["factor"]
        expected = rope.get("original_max_position_embeddings", 512)
        assert ours.ropes[0].scaling.original_context_length == expected
        assert ours.ropes[0].scaling.mscale == rope.get("mscale")
        assert ours.ropes[0].scaling.beta_fast == rope.get("beta_fast", 32.0)


def test_left_out_keys_have_transformers_defaults() -> None:
    theirs = LlamaConfig()
    ours = config_from_hf({"model_type": "llama"})
    assert ours.vocab_size == theirs.vocab_size
    assert ours.hidden_size == theirs.hidden_size
    assert ours.intermediate_size == theirs.intermediate_size
    assert ours.layers == theirs.num_hidden_layers
    assert ours.kv_heads == theirs.num_key_value_heads
    assert ours.head_dim == theirs.head_dim
    assert ours.norm_eps == theirs.rms_norm_eps
    assert ours.context_length == theirs.max_position_embeddings
    assert ours.tied_head == theirs.tie_word_embeddings
    assert (ours.bos_token_id, ours.eos_token_ids) == (theirs.bos_token_id, (theirs.eos_token_id,))


def test_every_end_token_counts_once() -> None:
    config = config_from_hf(
        tiny_config(eos_token_id=[7, 5]), {"eos_token_id": [5, 6]}, extra_eos=[2]
    )
    assert config.eos_token_ids == (5, 6, 7, 2)
    assert config_from_hf(tiny_config(eos_token_id=None)).eos_token_ids == ()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model_type": "mamba"}, "unknown architecture 'mamba'; known: llama"),
        ({"rope_parameters": {"rope_type": "spiral"}}, "known: default, linear, dynamic, llama3"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "0 rotary factors"),
        ({"rope_parameters": {"partial_rotary_factor": 0.07}}, "turns whole heads"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"num_attention_heads": 3}, "cannot share"),
        ({"num_attention_heads": 0}, "must be positive"),
        ({"head_dim": 15}, "even number of dimensions"),
        ({"hidden_size": "64"}, "must be an integer"),
        ({"rms_norm_eps": True}, "must be a number"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor is missing"),
    ],
)
def test_unknown_or_broken_is_refused_by_name(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelUnavailable, match=says) as caught:
        config_from_hf(tiny_config(**changes))
    assert "\n" not in str(caught.value)


def test_gguf_rope_scaling() -> None:
    assert from_gguf().ropes[0].scaling is None
    assert from_gguf(llama__rope__scaling__type="none").ropes[0].scaling is None
    old = from_gguf(llama__rope__scale_linear=4.0).ropes[0].scaling
    assert old == RopeScaling(kind="linear", factor=4.0, original_context_length=512)
    yarn = (
        from_gguf(
            llama__rope__scaling__type="yarn",
            llama__rope__scaling__factor=4.0,
            llama__rope__scaling__original_context_length=128,
        )
        .ropes[0]
        .scaling
    )
    assert yarn == RopeScaling(kind="yarn", factor=4.0, original_context_length=128)
    stretched = (
        from_gguf(
            llama__rope__scaling__type="yarn",
            llama__rope__scaling__factor=4.0,
            llama__rope__scaling__attn_factor=2.0,
        )
        .ropes[0]
        .scaling
    )
    assert stretched is not None
    assert stretched.attention_factor == pytest.approx(2.0 * 1.138629436)


def test_gguf_rope_factors_replace_scaling() -> None:
    config = from_gguf([1.0] * 7 + [8.0])
    assert config.ropes[0].factors == (1.0,) * 7 + (8.0,)
    assert config.ropes[0].scaling is None
    with pytest.raises(ModelUnavailable, match="3 rotary factors"):
        from_gguf([1.0, 2.0, 3.0])


def test_gguf_end_tokens_include_control_tokens_by_name() -> None:
    config = of(
        GGUF
        | {
            "tokenizer.ggml.tokens": ["<|endoftext|>", "a", "<|im_end|>", "</s>", "<|eot_id|>"],
            "tokenizer.ggml.token_type": [3, 1, 3, 1, 3],
            "tokenizer.ggml.eom_token_id": 7,
        },
    )
    assert config.eos_token_ids == (2, 7, 0, 4)  # "</s>" is ordinary text in this file
    assert config.tied_head


def test_a_part_of_an_answer_ends_with_a_marker_that_ends_no_answer() -> None:
    tokens = ["<|end|>", "<|return|>", "<|call|>", "<|endoftext|>"]
    phi = GGUF | {"tokenizer.ggml.tokens": tokens[:1], "tokenizer.ggml.token_type": [3]}
    assert of(phi).eos_token_ids == (2, 0)
    channels = GGUF | {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [3] * 4}
    assert of(channels).eos_token_ids == (2, 1, 3)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("general.architecture", "mamba", "known: llama"),
        ("llama.expert_count", 8, "expert_used_count is missing"),
        ("llama.rope.dimension_count", 7, "even number"),
        ("llama.rope.dimension_count", 32, "cannot be turned"),
        ("llama.attention.value_length", 8, "different head sizes"),
        ("llama.rope.scaling.type", "longrope", "known: none, linear, yarn"),
        ("llama.block_count", None, "llama.block_count is missing"),
        ("llama.block_count", [1, 2], "must be an integer"),
    ],
)
def test_unknown_gguf_is_refused_by_name(key: str, value: object, says: str) -> None:
    with pytest.raises(ModelUnavailable, match=says):
        of(GGUF | {key: value})


def test_a_config_survives_the_cache() -> None:
    config = from_gguf([1.0] * 8)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=ModelConfig) == config
