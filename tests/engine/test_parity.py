"""The network's logits against transformers' own implementation of the same weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from ds4trio.engine.attention import ROW_BY_ROW, Span
from ds4trio.errors import ModelUnavailable
from ds4trio.models.load import LoadedModel
from tests.engine.builders import Bench, Pair, make_pair, prompts

TOLERANCE = 2e-3

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "untied": {"tie_word_embeddings": False},
    "one group": {"num_key_value_heads": 4},
    "one key head": {"num_key_value_heads": 1, "head_dim": 24},
    "odd sizes": {"hidden_size": 60, "intermediate_size": 77, "head_dim": 10, "vocab_size": 331},
    "wide": {"num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128},
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    "llama3": {"rope_parameters": LLAMA3},
    "yarn": {"rope_parameters": YARN},
    "yarn, weighted": {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3}},
    "all at once": {
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": False,
        "rope_parameters": LLAMA3,
    },
}


def largest(difference: torch.Tensor) -> float:
    return float(difference.abs().max())


@pytest.mark.parametrize("plain", [False, True], ids=["native", "torch"])
@pytest.mark.parametrize("overrides", SHAPES.values(), ids=SHAPES)
def test_mixed_steps_agree_with_the_reference(overrides: dict[str, Any], plain: bool) -> None:
    """Whole prefills, chunks, short chunks and decode rows of unequal sequences, in one step."""
    pair = make_pair(**overrides)
    bench = Bench(pair, plain=plain)
    texts = prompts(5, pair.config.vocab_size, longest=150)
    texts.append(prompts(1, pair.config.vocab_size, seed=9, longest=1)[0] * 190)
    # Pages in no order, and none shared.
    free = torch.randperm(64, generator=torch.Generator().manual_seed(3)).tolist()
    tables = [[free.pop() for _ in range(-(-len(text) // 16))] for text in texts]
    cuts = [1, ROW_BY_ROW, ROW_BY_ROW + 1, 40, 7, 64]
    done = [0] * len(texts)
    found: list[list[torch.Tensor]] = [[] for _ in texts]
    while any(done[i] < len(text) for i, text in enumerate(texts)):
        active = [i for i, text in enumerate(texts) if done[i] < len(text)]
        step = []
        for i in active:
            count = min(cuts[(i + sum(done)) % len(cuts)], len(texts[i]) - done[i])
            step.append((Span(tables[i], done[i], count), texts[i][done[i] : done[i] + count]))
        for i, logits in zip(active, bench.logits(step), strict=True):
            found[i].append(logits)
            done[i] += len(logits)
    for text, pieces in zip(texts, found, strict=True):
        assert largest(torch.cat(pieces) - pair.expected(text)) < TOLERANCE


@pytest.mark.parametrize("plain", [False, True], ids=["native", "torch"])
def test_what_a_former_owner_left_in_a_page_never_reaches_a_result(plain: bool) -> None:
    pair = make_pair()
    bench = Bench(pair, plain=plain)
    bench.spoil()
    text = prompts(1, pair.config.vocab_size, seed=5)[0] * 20
    text = text[:60]
    pieces = [(0, 3), (3, 37), (37, 38), (38, 60)]
    found = [bench.logits([(Span([9, 2, 30, 4], a, b - a), text[a:b])])[0] for a, b in pieces]
    assert largest(torch.cat(found) - pair.expected(text)) < TOLERANCE


def test_half_precision_stays_near_float32() -> None:
    pair = make_pair()
    text = prompts(1, pair.config.vocab_size, seed=5)[0][:30]
    spans = [
        (Span([0, 1], 0, len(text) - 1), text[:-1]),
        (Span([0, 1], len(text) - 1, 1), text[-1:]),
    ]
    exact = torch.cat([Bench(pair).logits([span])[0] for span in spans[:1]])
    for dtype in ("bfloat16", "float16"):
        bench = Bench(pair, dtype=dtype)
        found = [bench.logits([span])[0] for span in spans]
        assert all(logits.dtype == torch.float32 for logits in found)
        near = torch.nn.functional.cosine_similarity(found[0], exact, dim=-1)
        assert float(near.min()) > 0.99
        last = torch.nn.functional.cosine_similarity(found[1], pair.expected(text)[-1:], dim=-1)
        assert float(last) > 0.99


def test_int8_logits_point_where_float32_points() -> None:
    pair = make_pair()
    text = prompts(1, pair.config.vocab_size, seed=5)[0][:30]
    found = Bench(pair, dtype="int8").logits([(Span([0, 1], 0, len(text)), text)])[0]
    near = torch.nn.functional.cosine_similarity(found, pair.expected(text), dim=-1)
    assert float(near.min()) > 0.998


def test_a_missing_or_misshapen_weight_is_named() -> None:
    pair = make_pair()
    name = "model.layers.1.mlp.up_proj.weight"
    for weights in (
        {k: v for k, v in pair.weights.items() if k != name},
        {**pair.weights, name: torch.zeros(3, 3)},
    ):
        with pytest.raises(ModelUnavailable, match=name):
            Bench(Pair(pair.reference, pair.config, weights))


@pytest.mark.model
def test_the_default_model_agrees_over_three_hundred_tokens(default_model: LoadedModel) -> None:
    config = default_model.config
    weights = dict(default_model.weights)
    reference = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            max_position_embeddings=config.context_length,
            rms_norm_eps=config.norm_eps,
            tie_word_embeddings=config.tied_head,
            rope_parameters={"rope_type": "default", "rope_theta": config.ropes[0].theta},
        )
    )
    state = {**weights, "lm_head.weight": weights["model.embed_tokens.weight"]}
    reference.load_state_dict(state)
    pair = Pair(reference, config, weights)
    tokenizer = Tokenizer.from_file(str(default_model.tokenizer_path))
    tokens = tokenizer.encode(TEXT).ids[:300]
    assert len(tokens) == 300
    bench = Bench(pair)
    table = list(range(40, 60))
    pieces = [(0, 180), (180, 290), *((at, at + 1) for at in range(290, 300))]
    found = torch.cat([bench.logits([(Span(table, a, b - a), tokens[a:b])])[0] for a, b in pieces])
    assert largest(found - pair.expected(tokens)) < TOLERANCE


TEXT = """
The ferry left the harbour a little after six, while the lamps along the quay were still lit and the
gulls had only begun to quarrel over what the night boats had thrown away. Marta stood at the rail
with a paper cup of coffee and counted the windows of the hotel where she had slept, third floor,
second from the left, until the headland slid in front of it and there was nothing more to count.
She had told nobody that she was going. Her sister would find the letter on Thursday, when she came
to water the plants, and by then the matter would be settled one way or the other: either the man
on the island had the photographs, as he claimed, or he had made a very expensive joke.

At the bar below deck two engineers were arguing about pumps. "A pump does not care what you think
of it," said the older one. "It has a curve. You give it a head and it gives you a flow, and if you
ask for both it gives you cavitation, noise, and a bill." The younger man laughed, wrote the numbers
7, 12 and 19.5 on a napkin, and drew a line through them that was almost straight. Marta listened
because it was easier than thinking. When the engines changed their tone and the first houses came
out of the mist, white and square and closed, she found that she had remembered every word, and not
one reason for having come.
"""
