from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    PreTrainedModel,
)

from ds4trio.engine import attention as attention_module
from ds4trio.engine.attention import PagedAttention, Span
from ds4trio.errors import ModelUnavailable
from ds4trio.models.config import (
    GgufFile,
    config_from_gguf,
    config_from_hf,
    find_hf_tensors,
)
from ds4trio.models.families import hf_family
from ds4trio.models.tensors import tensor_shapes
from tests.engine.builders import Bench, Pair, prompts
from tests.families.harness import agree, as_folder, as_gguf, randomise

YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 8,
    "beta_slow": 1,
    "mscale": 0.9,
    "mscale_all_dim": 0.6,
    "rope_theta": 10000.0,
}
SHAPE: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
    "n_group": 4,
    "topk_group": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_parameters": YARN,
}


def v2(**overrides: Any) -> PreTrainedModel:
    shape = SHAPE | {"topk_method": "group_limited_greedy"} | overrides
    return randomise(DeepseekV2ForCausalLM(DeepseekV2Config(**shape)))


def v3(**overrides: Any) -> PreTrainedModel:
    model = randomise(DeepseekV3ForCausalLM(DeepseekV3Config(**(SHAPE | overrides))))
    generator = torch.Generator().manual_seed(9)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.normal_(0.0, 0.3, generator=generator)
    return model


@pytest.mark.parametrize("plain", [False, True], ids=["native", "torch"])
def test_v2_safetensors(tmp_path: Path, plain: bool) -> None:
    model = v2()
    agree(model, as_folder(model, tmp_path), plain=plain)


def test_v2_lite_has_no_query_rank_and_no_groups(tmp_path: Path) -> None:
    model = v2(q_lora_rank=None, topk_method="greedy", n_group=None, topk_group=None)
    agree(model, as_folder(model, tmp_path))


@pytest.mark.parametrize("plain", [False, True], ids=["native", "torch"])
def test_v3_safetensors(tmp_path: Path, plain: bool) -> None:
    model = v3(attention_bias=True)
    agree(model, as_folder(model, tmp_path), plain=plain)


def test_v3_with_rotation_in_halves(tmp_path: Path) -> None:
    model = v3(rope_interleave=False, norm_topk_prob=False)
    agree(model, as_folder(model, tmp_path))


def as_converted(model: PreTrainedModel, *, split: bool) -> dict[str, torch.Tensor]:
    """Tensors as llama.cpp's converter has them: experts stacked, and what is made of the latent
    apart by heads, with keys' part the other way round, or together as older files have it."""
    heads, plain, value = 4, SHAPE["qk_nope_head_dim"], SHAPE["v_head_dim"]
    tensors = {}
    for name, tensor in model.state_dict().items():
        base = name.rpartition(".kv_b_proj")[0]
        if base and split:
            keys, values = tensor.unflatten(0, (heads, plain + value)).split([plain, value], 1)
            tensors[f"{base}.k_b_proj.weight"] = keys.transpose(1, 2)
            tensors[f"{base}.v_b_proj.weight"] = values
        elif name.endswith("experts.gate_up_proj"):
            gate, up = tensor.chunk(2, 1)
            tensors[name.replace("gate_up_proj", "gate_proj.weight")] = gate
            tensors[name.replace("gate_up_proj", "up_proj.weight")] = up
        elif name.endswith("experts.down_proj"):
            tensors[f"{name}.weight"] = tensor
        else:
            tensors[name.replace("correction_bias", "correction.bias")] = tensor
    return tensors


def metadata(*, split: bool, **further: Any) -> dict[str, Any]:
    rank, turned = SHAPE["kv_lora_rank"], SHAPE["qk_rope_head_dim"]
    key, value = SHAPE["qk_nope_head_dim"] + turned, SHAPE["v_head_dim"]
    lengths = {
        "attention.head_count_kv": 1 if split else 4,
        "attention.key_length": rank + turned if split else key,
        "attention.value_length": rank if split else value,
    }
    if split:
        lengths |= {"attention.key_length_mla": key, "attention.value_length_mla": value}
    return {
        "block_count": 3,
        "context_length": 512,
        "embedding_length": 64,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.kv_lora_rank": rank,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": turned,
        "rope.freq_base": 10000.0,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 64,
        "rope.scaling.yarn_log_multiplier": 0.06,
        "rope.scaling.yarn_beta_fast": 8.0,
        "expert_count": 8,
        "expert_used_count": 3,
        "expert_shared_count": 2,
        "expert_feed_forward_length": 32,
        "expert_weights_scale": 1.7,
        "leading_dense_block_count": 1,
        **lengths,
        **further,
    }


# A GGUF file has one weight for both multipliers of yarn.
SAME = {"rope_parameters": YARN | {"mscale": 0.6}}


@pytest.mark.parametrize("plain", [False, True], ids=["native", "torch"])
def test_v3_gguf(tmp_path: Path, plain: bool) -> None:
    model = v3(**SAME)
    numbers = metadata(
        split=True,
        **{
            "attention.q_lora_rank": 32,
            "expert_gating_func": 2,
            "expert_weights_norm": True,
            "expert_group_count": 4,
            "expert_group_used_count": 2,
        },
    )
    tensors = as_converted(model, split=True)
    agree(
        model,
        as_gguf(tensors, tmp_path / "x.gguf", "deepseek2", numbers, layers=3),
        plain=plain,
    )


def test_v2_lite_gguf_of_the_older_kind(tmp_path: Path) -> None:
    model = v2(q_lora_rank=None, topk_method="greedy", **SAME)
    tensors = as_converted(model, split=False)
    numbers = metadata(split=False)
    agree(model, as_gguf(tensors, tmp_path / "x.gguf", "deepseek2", numbers, layers=3))


def test_the_cache_holds_one_vector_for_all_heads(tmp_path: Path) -> None:
    """And the turned dimensions once. Keys and values of four heads would be 3 * 4 * (24 + 24)."""
    model = as_folder(v3(), tmp_path)
    rank, turned = SHAPE["kv_lora_rank"], SHAPE["qk_rope_head_dim"]
    assert model.config.position_size == 3 * ((turned + rank) + rank)
    attention = Bench(Pair(v3(), model.config, model.weights), pages=2, plain=True).attention
    assert isinstance(attention, PagedAttention)
    cache = attention.cache
    places = 3 * (2 + 1) * 16
    assert cache.keys.numel() + cache.values.numel() == places * (turned + rank + rank)


def test_kernels_for_keys_as_wide_as_values_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_module, "has_kernels", lambda device: True)
    model = v3()
    opened = as_folder(model, tmp_path)
    bench = Bench(Pair(model, opened.config, opened.weights), plain=True)
    assert isinstance(bench.attention, PagedAttention)
    assert not bench.attention.paged


@pytest.mark.parametrize("dtype", ["float32", "w8a16", "int8", "bfloat16"])
def test_a_row_has_the_same_bits_in_any_company(tmp_path: Path, dtype: str) -> None:
    """Alone, beside others, and however its text was cut."""
    sizes = {"qk_nope_head_dim": 32, "v_head_dim": 32}  # whole groups
    model = v3(**sizes)
    opened = as_folder(model, tmp_path)
    pair = Pair(model, opened.config, opened.weights)
    bench = Bench(pair, dtype=dtype, pages=16, batch_invariant=dtype == "bfloat16")
    texts = [(text * 40)[:40] for text in prompts(3, 320)]
    tables = [[5, 1, 9], [2, 4, 8], [6, 10, 11]]
    whole = [
        bench.logits([(Span(table, 0, 40), text)])[0]
        for text, table in zip(texts, tables, strict=True)
    ]
    cuts = [[0, 7, 8, 9, 40], [0, 20, 40], [0, 1, 17, 33, 40]]
    found: list[list[torch.Tensor]] = [[], [], []]
    for step in range(4):
        members = [i for i in range(3) if step + 1 < len(cuts[i])]
        pieces = [(cuts[i][step], cuts[i][step + 1]) for i in members]
        together = [
            (Span(tables[i], start, end - start), texts[i][start:end])
            for i, (start, end) in zip(members, pieces, strict=True)
        ]
        for i, logits in zip(members, bench.logits(together), strict=True):
            found[i].append(logits)
    for alone, parts in zip(whole, found, strict=True):
        assert torch.equal(torch.cat(parts), alone)


@pytest.mark.parametrize("dtype", ["w8a16", "int8"])
def test_rounded_weights_give_nearly_the_same(tmp_path: Path, dtype: str) -> None:
    model = v3(qk_nope_head_dim=32, v_head_dim=32)
    opened = as_folder(model, tmp_path)
    pair = Pair(model, opened.config, opened.weights)
    text = (prompts(1, 320)[0] * 40)[:40]
    found = Bench(pair, dtype=dtype).logits([(Span([0, 1, 2], 0, 40), text)])[0]
    expected = pair.expected(text)
    assert float((found - expected).norm() / expected.norm()) < 0.1


def hf_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Of a file that has just what its config says."""
    own = config_from_hf(config)
    shapes = tensor_shapes(own)
    source = hf_family(config["model_type"]).hf_source
    return {source(own, name).name: shape for name, shape in shapes.items()}


V3 = {"model_type": "deepseek_v3", **SHAPE}


def test_layers_that_guess_further_tokens_are_left_out() -> None:
    shapes = hf_shapes(V3)
    further = {
        name.replace("layers.2.", "layers.3."): shape
        for name, shape in shapes.items()
        if ".layers.2." in name
    } | {"model.layers.3.enorm.weight": (64,), "model.layers.3.shared_head.head.weight": (320, 64)}
    with pytest.raises(ModelUnavailable, match=r"unknown tensor 'model\.layers\.3\."):
        find_hf_tensors(config_from_hf(V3), shapes | further)
    further["model.layers.3.eh_proj.weight"] = (64, 128)
    sources = find_hf_tensors(config_from_hf(V3), shapes | further)
    assert {source.name for source in sources.values()} == set(shapes)


def test_a_layer_of_the_decoder_has_no_such_product() -> None:
    shapes = hf_shapes(V3) | {"model.layers.2.eh_proj.weight": (64, 128)}
    with pytest.raises(ModelUnavailable, match="unknown tensor"):
        find_hf_tensors(config_from_hf(V3), shapes)


@pytest.mark.parametrize(
    "wrong",
    [
        {"kv_lora_rank": 0},
        {"qk_nope_head_dim": 0},
        {"qk_rope_head_dim": 7},
        {"v_head_dim": -1},
        {"q_lora_rank": -1},
        {"topk_method": "best_of_all"},
        {"scoring_func": "softmax"},
        {"n_group": 3},
        {"moe_layer_freq": [1, 0]},
        {"num_hidden_layers": 1 << 60},
        {"num_experts_per_tok": None},
        {"routed_scaling_factor": 10**400},
        {"qk_nope_head_dim": 10**400},
        {"rope_parameters": YARN | {"mscale_all_dim": 1e300}},
        {"rope_parameters": YARN | {"factor": float("nan")}},
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ModelUnavailable):
        config_from_hf(V3 | wrong)


def test_more_experts_than_memory_holds_are_only_missing() -> None:
    config = config_from_hf(V3 | {"n_routed_experts": 1 << 40})
    with pytest.raises(ModelUnavailable, match=r"config says|has no tensor"):
        find_hf_tensors(config, hf_shapes(V3))


@pytest.mark.parametrize(
    "wrong",
    [
        {"rope.dimension_count": 999},
        {"attention.kv_lora_rank": 0},
        {"attention.key_length_mla": "24"},
        {"nextn_predict_layers": 3},
        {"expert_gating_func": 3},
        {"expert_used_count": 9},
        {"rope.scaling.yarn_log_multiplier": 1e300},
        {"block_count": 1 << 60},
    ],
    ids=str,
)
def test_what_cannot_be_in_a_gguf_file_is_refused(wrong: dict[str, Any]) -> None:
    values = metadata(split=True, **wrong)
    values = {f"deepseek2.{key}": value for key, value in values.items()}
    values["general.architecture"] = "deepseek2"
    shapes = {"token_embd.weight": (320, 64), "blk.0.attn_k_b.weight": (4, 32, 16)}
    with pytest.raises(ModelUnavailable):
        config_from_gguf(GgufFile(values, shapes))
