"""Families through the whole of batching: what a request gets alone, it gets in any company, from
pages that others have filled, after it lost its own, and after a step failed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import trio
from transformers import PreTrainedModel

from ds4trio.batching.coalescer import Coalescer
from ds4trio.batching.schedule import Budget
from ds4trio.engine.engine import Engine
from ds4trio.engine.step import SamplingParams, StepItem
from ds4trio.models.lora import Adapter, open_adapter
from tests.engine.builders import GREEDY, Pair, make_engine, sampled
from tests.families import test_deepseek_v4
from tests.families.harness import as_folder, randomise
from tests.lora_files import make_adapter

WINDOW = 20
"""Positions that layers with a window see: fewer than the beginning that requests share."""

SHAPE = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "sliding_window": WINDOW,
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
}
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "Mistral": {},
    "Gemma3": {"layer_types": ["sliding_attention", "full_attention"] * 2},
    "GptOss": EXPERTS,
    "DeepseekV3": LATENT,
    "DeepseekV4": {},
}

FEW = dict.fromkeys(range(5, 9), 50.0)
"""A bias to so few tokens that guesses hold."""

Answer = list[tuple[int, float | None]]


@dataclass(frozen=True)
class Request:
    prompt: list[int]
    sampling: SamplingParams
    count: int
    adapter: str = ""


def reference(family: str) -> PreTrainedModel:
    if family == "DeepseekV4":
        # 24 does not go into pages of 16, nor pages into it: groups begin and end inside of pages.
        rates = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 24}
        return test_deepseek_v4.reference(compress_rates=rates)
    kind = "Gemma3Text" if family == "Gemma3" else family
    config = getattr(transformers, f"{kind}Config")(**{**SHAPE, **FAMILIES[family]})
    model: PreTrainedModel = randomise(getattr(transformers, f"{family}ForCausalLM")(config))
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(torch.linspace(-0.3, 0.3, len(buffer)))
    return model


def requests(adapters: Sequence[str] = ("",)) -> list[Request]:
    """Some begin alike, to be cut at a page's end and elsewhere."""
    numbers = random.Random(3)
    common = [numbers.randrange(3, 320) for _ in range(75)]
    asked = []
    for i, shared in enumerate((75, 33, 50, 64, 0, 75)):
        own = [numbers.randrange(3, 320) for _ in range(numbers.randrange(1, 20))]
        wishes = (
            SamplingParams(temperature=0.0, logprobs=True),
            SamplingParams(temperature=0.8, seed=i, logprobs=True),
            SamplingParams(temperature=0.3, seed=i, logit_bias=FEW, logprobs=True),
        )
        count = numbers.randrange(8, 20)
        asked.append(
            Request(common[:shared] + own, wishes[i % 3], count, adapters[i % len(adapters)])
        )
    return asked


def answers(
    engine: Engine,
    asked: Sequence[Request],
    *,
    rounds: Sequence[bool] = (True,),
    speculate: bool = False,
    budget: tuple[int, int] = (64, 16),
) -> tuple[list[list[Answer]], Coalescer]:
    """What each gets, in rounds: all at once (True), or one after the other."""
    coalescer = Coalescer(
        engine,
        max_sessions=64,
        max_waiting=64,
        window=0,
        budget=Budget(*budget, 64 if any(rounds) else 1),
        speculate=speculate,
    )
    got: list[list[Answer]] = []

    async def ask(number: int, found: list[Answer]) -> None:
        one = asked[number]
        wish = replace(one.sampling, prompt_length=len(one.prompt))
        async with coalescer.session(wish, adapter=one.adapter) as session:
            session.start(one.prompt, max_new_tokens=one.count, stop_tokens=frozenset())
            end = None
            while end is None:
                delivery = await session.receive()
                found[number] += [(token.token, token.logprob) for token in delivery.tokens]
                end = delivery.end

    async def main() -> None:
        async with trio.open_nursery() as running:
            await running.start(coalescer.run)
            for at_once in rounds:
                got.append([[] for _ in asked])
                async with trio.open_nursery() as asking:
                    for number in range(len(asked)):
                        if at_once:
                            asking.start_soon(ask, number, got[-1])
                        else:
                            await ask(number, got[-1])
            running.cancel_scope.cancel()

    trio.run(main)
    assert engine.free_pages == engine.info.total_pages
    return got, coalescer


def failing_at(engine: Engine, *steps: int) -> Engine:
    """The same engine, whose steps of these numbers fail when they are done."""
    runner, done = engine.runner, [0]
    evaluate = runner._evaluate

    def fails(batch: Any, faults: Any, prompts: Any) -> Any:
        found = evaluate(batch, faults, prompts)
        done[0] += 1
        if done[0] in steps:
            raise FloatingPointError("as a test wants it")
        return found

    runner._evaluate = fails  # type: ignore[method-assign]
    return engine


def check(pair: Pair, asked: Sequence[Request], **settings: Any) -> None:
    """Every way gives what each gets alone, with nothing cached."""

    def engine(pages: int, **more: Any) -> Engine:
        size = settings.get("dtype") in ("int8", "w8a16") and pair.config.compressed is not None
        return make_engine(pair, pages=pages * (2 if size else 1), **settings, **more)

    # Those that grow begin on a page each, and end on four: too many for nine.
    growing = [replace(one, prompt=one.prompt[-14:], count=40) for one in asked]
    (apart,), _ = answers(engine(64, prefix_cache=False), [*asked, *growing], rounds=(False,))
    alone, grown = apart[: len(asked)], apart[len(asked) :]
    (together, one_by_one), _ = answers(engine(200), asked, rounds=(True, False))
    assert together == alone
    assert one_by_one == alone
    (crowded,), coalescer = answers(engine(9), growing, budget=(200, 100))
    assert crowded == grown
    assert coalescer.stats.preemptions
    (after,), coalescer = answers(failing_at(engine(40), 4), asked, speculate=True)
    assert after == alone
    assert coalescer.stats.failed_steps


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_everyone_gets_what_they_get_alone(tmp_path: Path, family: str, dtype: str) -> None:
    model = reference(family)
    loaded = as_folder(model, tmp_path)
    pair = Pair(model, loaded.config, loaded.weights)
    check(pair, requests(), dtype=dtype, batch_invariant=dtype == "bfloat16")


@pytest.mark.parametrize("family", ["Gemma3", "GptOss"])
def test_with_adapters(tmp_path: Path, family: str) -> None:
    model = reference(family)
    loaded = as_folder(model, tmp_path / "model")
    pair = Pair(model, loaded.config, loaded.weights)
    adapters: list[Adapter] = []
    for seed, modules in enumerate([("q_proj", "o_proj"), ("k_proj", "v_proj")]):
        name = f"adapter{seed}"
        make_adapter(tmp_path / name, dict(model.state_dict()), seed=seed, modules=modules)
        adapters.append(open_adapter(name, tmp_path / name, loaded.config))
    asked = requests(("", "adapter0", "adapter1"))
    check(pair, asked, dtype="int8", adapters=tuple(adapters))


@pytest.mark.parametrize("reused", [16, 32, 48, 64, 80])
def test_a_beginning_that_ends_inside_a_group_of_deepseek_v4(tmp_path: Path, reused: int) -> None:
    """The entry of that group is made of positions in shared pages and of the sequence's own."""
    model = reference("DeepseekV4")
    loaded = as_folder(model, tmp_path)
    pair = Pair(model, loaded.config, loaded.weights)
    numbers = random.Random(1)
    text = [numbers.randrange(3, 320) for _ in range(90)]
    other = [*text[:reused], *(numbers.randrange(3, 320) for _ in range(50))]
    engine = make_engine(pair)
    engine.open(1, GREEDY)
    sampled(engine, StepItem(1, tuple(text)))
    engine.open(2, replace(GREEDY, logprobs=True))
    assert engine.reuse(2, other) == reused
    plain = make_engine(pair)
    plain.open(2, replace(GREEDY, logprobs=True))
    found = sampled(engine, StepItem(2, tuple(other[reused:])))
    assert found == sampled(plain, StepItem(2, tuple(other)))
