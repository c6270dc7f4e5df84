from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM, PreTrainedModel

from ds4trio.engine.attention import Span
from ds4trio.engine.streams import PagedStreams
from ds4trio.errors import ModelUnavailable
from ds4trio.models.config import config_from_hf
from tests.engine.builders import Bench, Pair, prompts
from tests.families.harness import agree, as_folder, randomise


def reference(**overrides: Any) -> PreTrainedModel:
    shape: dict[str, Any] = {
        "vocab_size": 320,
        "hidden_size": 64,
        "moe_intermediate_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "head_dim": 32,
        "q_lora_rank": 32,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "index_n_heads": 16,  # with few, scores are zero for all heads, and equal
        "index_head_dim": 16,
        "index_topk": 6,
        "o_groups": 2,
        "o_lora_rank": 16,
        "hc_mult": 4,
        "sliding_window": 20,
        "max_position_embeddings": 512,
        "partial_rotary_factor": 0.5,
        "layer_types": [
            "sliding_attention",
            "compressed_sparse_attention",
            "heavily_compressed_attention",
            "compressed_sparse_attention",
        ],
        "mlp_layer_types": ["hash_moe", "moe", "moe", "moe"],
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 32},
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 128,
        },
        "bos_token_id": 1,
        "eos_token_id": 2,
        **overrides,
    }
    model = randomise(DeepseekV4ForCausalLM(DeepseekV4Config(**shape)))
    generator = torch.Generator().manual_seed(7)
    for name, buffer in model.named_buffers():
        if name.endswith("tid2eid"):
            for row in buffer:
                row.copy_(torch.randperm(8, generator=generator)[:2])
        elif name.endswith("e_score_correction_bias"):
            buffer.normal_(0.0, 0.3, generator=generator)
    return model


def test_safetensors(tmp_path: Path) -> None:
    model = reference()
    agree(model, as_folder(model, tmp_path))


@pytest.mark.parametrize("dtype", ["float32", "int8", "bfloat16"])
def test_a_row_has_the_same_bits_in_any_company_and_however_its_sequence_is_cut(
    tmp_path: Path, dtype: str
) -> None:
    model = as_folder(reference(), tmp_path)
    invariant = dtype == "bfloat16"
    bench = Bench(
        Pair(reference(), model.config, model.weights), dtype=dtype, batch_invariant=invariant
    )
    texts = [(prompts(1, 320, seed=i)[0] * 90)[:length] for i, length in enumerate((70, 37, 21))]
    tables = [[5, 1, 9, 12, 3], [2, 4, 8], [6, 10]]
    spans = [Span(table, 0, len(text)) for text, table in zip(texts, tables, strict=True)]
    together = bench.logits(list(zip(spans, texts, strict=True)))
    for text, table, expected in zip(texts, tables, together, strict=True):
        found, start = [], 0
        for count in (1, 30, 5, 1, 1, 40, 50):
            part = text[start : start + count]
            if part:
                found += bench.logits([(Span(table, start, len(part)), part)])
                start += count
        assert torch.equal(torch.cat(found), expected)


def test_what_a_page_held_before_never_reaches_a_result(tmp_path: Path) -> None:
    model = as_folder(reference(), tmp_path)
    bench = Bench(Pair(reference(), model.config, model.weights))
    assert isinstance(bench.attention, PagedStreams)
    text = (prompts(1, 320, seed=5)[0] * 72)[:72]
    table = [5, 1, 9, 12, 3]
    (expected,) = bench.logits([(Span(table, 0, 72), text)])
    with torch.inference_mode():
        for tensor in bench.attention.tensors():
            tensor.fill_(torch.nan)
    found = [bench.logits([(Span(table, at, 9), text[at : at + 9])])[0] for at in range(0, 72, 9)]
    assert torch.equal(torch.cat(found), expected)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"swiglu_limit": 7.0}, "swiglu_limit"),
        ({"scoring_func": "softmax"}, "scoring_func"),
        ({"layer_types": ["full_attention"] * 4}, "layer type 'full_attention'"),
        ({"mlp_layer_types": ["moe"]}, "are not all given"),
        ({"o_groups": 3}, "in 3 groups"),
        ({"num_key_value_heads": 2}, "one key/value head"),
    ],
)
def test_what_is_not_known_is_refused(changes: dict[str, Any], says: str) -> None:
    values = reference().config.to_dict()
    with pytest.raises(ModelUnavailable, match=says):
        config_from_hf({**values, **changes})


def test_older_keys_mean_the_same() -> None:
    new = reference().config.to_dict()
    old = {
        key: value
        for key, value in new.items()
        if key not in ("layer_types", "mlp_layer_types", "rope_parameters", "partial_rotary_factor")
    }
    old |= {
        "compress_ratios": [0, 4, 128, 4],
        "num_hash_layers": 1,
        "qk_rope_head_dim": 16,
        "rope_scaling": {
            "type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    }
    assert config_from_hf(old) == config_from_hf(new)
