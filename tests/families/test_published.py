"""Configs of published models mean what transformers takes them for, as they were published and as
transformers 5 saves them again."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ds4trio.engine.rope import inverse_frequencies
from ds4trio.models.config import ModelConfig, config_from_hf
from tests.families.published import PUBLISHED

SERVED_UP_TO = {"Ministral-3-8B-Base-2512": 16384}
"""Contexts that are not the model's own; ``mistral.py`` says why."""


def transformers_config(name: str) -> Any:
    values = copy.deepcopy(PUBLISHED[name])
    return AutoConfig.for_model(values.pop("model_type"), **values)


@pytest.fixture(params=["as published", "saved again"])
def both(request: pytest.FixtureRequest, name: str) -> tuple[ModelConfig, Any, Any]:
    """Ours, transformers' of the text part, and transformers' of the whole."""
    whole = transformers_config(name)
    values = PUBLISHED[name] if request.param == "as published" else whole.to_dict()
    return config_from_hf(values), whole.get_text_config(), whole


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_and_tokens(both: tuple[ModelConfig, Any, Any], name: str) -> None:
    ours, theirs, whole = both
    head_dim = getattr(theirs, "head_dim", None)
    assert ours.vocab_size == theirs.vocab_size
    assert ours.hidden_size == theirs.hidden_size
    assert ours.intermediate_size == theirs.intermediate_size
    assert ours.layers == theirs.num_hidden_layers
    assert ours.heads == theirs.num_attention_heads
    assert ours.kv_heads == theirs.num_key_value_heads
    assert ours.head_dim == (head_dim or theirs.hidden_size // theirs.num_attention_heads)
    assert ours.norm_eps == theirs.rms_norm_eps
    assert ours.context_length == SERVED_UP_TO.get(name, theirs.max_position_embeddings)
    assert ours.tied_head == whole.tie_word_embeddings
    assert ours.bos_token_id == theirs.bos_token_id
    ends = getattr(whole, "eos_token_id", None) or theirs.eos_token_id
    assert set(ends if isinstance(ends, list) else [ends]) <= set(ours.eos_token_ids)


@pytest.mark.parametrize("name", PUBLISHED)
def test_windows(both: tuple[ModelConfig, Any, Any], name: str) -> None:
    ours, theirs, _ = both
    width = getattr(theirs, "sliding_window", None)
    types = getattr(theirs, "layer_types", None) or ["sliding_attention"] * theirs.num_hidden_layers
    for layer, kind in enumerate(types):
        window = width if kind == "sliding_attention" else None
        # A window that holds all of the context is none.
        seen = ours.kind(layer).window or ours.context_length
        assert seen == min(window or ours.context_length, ours.context_length)


@pytest.mark.parametrize("name", PUBLISHED)
def test_rotations(both: tuple[ModelConfig, Any, Any], name: str) -> None:
    ours, theirs, _ = both
    marks = getattr(theirs, "no_rope_layers", None) or [1] * theirs.num_hidden_layers
    types = getattr(theirs, "layer_types", None) or ["full_attention"] * theirs.num_hidden_layers
    for layer, (mark, kind) in enumerate(zip(marks, types, strict=True)):
        rope = ours.kind(layer).rope
        assert (rope is not None) == bool(mark)
        if rope is None:
            continue
        found, scale = inverse_frequencies(ours.ropes[rope], ours.context_length)
        expected, expected_scale = their_frequencies(theirs, kind, ours)
        torch.testing.assert_close(found, expected)
        assert scale == pytest.approx(expected_scale)


def their_frequencies(theirs: Any, kind: str, ours: ModelConfig) -> tuple[torch.Tensor, float]:
    nested = kind in theirs.rope_parameters
    parameters = theirs.rope_parameters[kind] if nested else theirs.rope_parameters
    if parameters["rope_type"] != "default":
        compute = ROPE_INIT_FUNCTIONS[parameters["rope_type"]]
        frequencies, scale = compute(
            theirs, None, ours.context_length, layer_type=kind if nested else None
        )
        return frequencies, scale
    dims = int(ours.head_dim * parameters.get("partial_rotary_factor", 1.0))
    steps = torch.arange(0, dims, 2, dtype=torch.float32)
    return 1.0 / parameters["rope_theta"] ** (steps / dims), 1.0


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Qwen2.5-7B-Instruct", {"attention_bias": True, "output_bias": False}),
        ("Qwen3-8B", {"attention_bias": False, "head_norm": "head"}),
        (
            "granite-3.3-2b-instruct",
            {
                "embedding_scale": 12.0,
                "attention_scale": 0.015625,
                "residual_scale": 0.22,
                "logit_scale": 0.125,
            },
        ),
        (
            "gemma-2-2b-it",
            {
                "norms": "around",
                "norm_offset": 1.0,
                "activation": "gelu_tanh",
                "embedding_scale": 48.0,
                "attention_scale": 0.0625,
                "attention_soft_cap": 50.0,
                "logit_soft_cap": 30.0,
            },
        ),
        (
            "gemma-3-4b-it",
            {
                "norms": "around",
                "norm_offset": 1.0,
                "activation": "gelu_tanh",
                "head_norm": "head",
                "attention_scale": 0.0625,
                "attention_soft_cap": 0.0,
                "logit_soft_cap": 0.0,
            },
        ),
        ("OLMo-2-0425-1B-Instruct", {"norms": "after", "head_norm": "whole"}),
    ],
)
def test_what_families_have_of_their_own(name: str, says: dict[str, Any]) -> None:
    ours = config_from_hf(PUBLISHED[name])
    assert {field: getattr(ours, field) for field in says} == says
