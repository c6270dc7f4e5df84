"""What only a GPU can show: compiled kernels in the network, recorded steps, memory.

The kernels alone are tested in ``tests/engine/test_paged.py``, on a GPU too where there is one.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
import torch

from ds4trio.engine.attention import Span
from ds4trio.engine.engine import Engine
from ds4trio.engine.step import SampledToken, SamplingParams, StepItem
from tests.engine.builders import Bench, Pair, generate, make_engine, make_pair, prompts, sampled

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]

GREEDY = SamplingParams(temperature=0.0)
WIDE = {
    "hidden_size": 96,
    "head_dim": 64,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
}


def gpu_engine(pair: Pair, *, graphs: bool, dtype: str = "float32", pages: int = 400) -> Engine:
    return make_engine(pair, pages=pages, device="cuda", dtype=dtype, graphs=graphs)


def talk(engine: Engine, texts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """All texts in one batch; sequence i joins at step i // 2, and draws as ``i`` says."""
    for i, text in enumerate(texts):
        greedy = i % 2 == 0
        engine.open(
            i,
            SamplingParams(
                temperature=0.0 if greedy else 0.9,
                top_p=1.0 if i % 4 == 1 else 0.9,
                seed=i,
                prompt_length=len(text),
            ),
        )
    found: list[list[int]] = [[] for _ in texts]
    step = 0
    while any(len(tokens) < count for tokens in found):
        items = [
            StepItem(i, () if found[i] else tuple(texts[i]))
            for i in range(len(texts))
            if i // 2 <= step and len(found[i]) < count
        ]
        for item, token in zip(items, sampled(engine, *items), strict=True):
            found[item.sequence].append(token.token)
        step += 1
    for i in range(len(texts)):
        engine.close(i)
    return found


@pytest.mark.parametrize("overrides", [{}, WIDE], ids=["narrow", "wide"])
def test_mixed_steps_agree_with_the_reference_in_float32(overrides: dict[str, int]) -> None:
    """Chunks, short chunks and decode rows, over pages that hold NaN elsewhere."""
    pair = make_pair(**overrides)
    bench = Bench(pair, device=torch.device("cuda"))
    bench.spoil()
    texts = [(prompts(1, 320, seed=i)[0] * 400)[:length] for i, length in enumerate((1, 90, 300))]
    free = list(range(64))
    tables = [[free.pop() for _ in range(-(-len(text) // 16))] for text in texts]
    done, found = [0, 0, 0], [torch.empty(0, 320)] * 3
    for counts in ((1, 50, 9), (0, 3, 100), (0, 36, 190), (0, 1, 1)):
        step = [
            (Span(tables[i], done[i], count), texts[i][done[i] : done[i] + count])
            for i, count in enumerate(counts)
            if count
        ]
        active = [i for i, count in enumerate(counts) if count]
        for i, logits in zip(active, bench.logits(step), strict=True):
            found[i] = torch.cat((found[i], logits))
            done[i] += len(logits)
    assert done == [1, 90, 300]
    for text, logits in zip(texts, found, strict=True):
        assert float((logits - pair.expected(text)).abs().max()) < 2e-3


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_stays_near_float32(dtype: str) -> None:
    pair = make_pair(**WIDE)
    bench = Bench(pair, dtype=dtype, device=torch.device("cuda"))
    text = (prompts(1, 320, seed=3)[0] * 100)[:80]
    pages = list(range(5))
    found = torch.cat(
        [
            bench.logits([(Span(pages, 0, 79), text[:79])])[0],
            bench.logits([(Span(pages, 79, 1), text[79:])])[0],
        ]
    )
    near = torch.nn.functional.cosine_similarity(found, pair.expected(text), dim=-1)
    assert float(near.min()) > 0.99


def test_recorded_steps_say_what_eager_ones_and_the_cpu_say() -> None:
    pair = make_pair()
    texts = prompts(14, 320, longest=60)
    recorded = talk(gpu_engine(pair, graphs=True), texts, 12)
    assert recorded == talk(gpu_engine(pair, graphs=False), texts, 12)
    assert recorded == talk(make_engine(pair, pages=400), texts, 12)


def test_recorded_steps_go_on_over_long_sequences() -> None:
    """Through the sizes of the page table; the recording of one does not disturb another."""
    pair = make_pair()
    engine, plain = gpu_engine(pair, graphs=True), gpu_engine(pair, graphs=False)
    long = (prompts(1, 320, seed=2)[0] * 500)[:250]
    for each in (engine, plain):
        each.open(0, GREEDY)
        each.open(1, GREEDY)
    tokens: dict[Engine, list[list[SampledToken]]] = {engine: [], plain: []}
    for each, said in tokens.items():
        said.append(sampled(each, StepItem(0, tuple(long)), StepItem(1, (5, 6, 7))))
        for step in range(20):
            # Alone and together by turns, so that recordings of both sizes are repeated.
            items = (StepItem(0), StepItem(1)) if step % 3 else (StepItem(0),)
            said.append(sampled(each, *items))
    assert tokens[engine] == tokens[plain]


def test_steps_may_come_from_any_thread() -> None:
    """A recording that one thread made is repeated by others."""
    pair = make_pair()
    engine, plain = gpu_engine(pair, graphs=True), gpu_engine(pair, graphs=False)
    said: dict[Engine, list[int]] = {engine: [], plain: []}
    for each, tokens in said.items():
        each.open(0, GREEDY)
        items = [StepItem(0, (3, 4, 5)), *[StepItem(0)] * 5]
        for item in items:
            thread = threading.Thread(
                target=lambda e, i, t: t.append(sampled(e, i)[0].token), args=(each, item, tokens)
            )
            thread.start()
            thread.join()
    assert len(said[engine]) == 6
    assert said[engine] == said[plain]


def test_a_gpu_that_is_found_by_itself_is_used() -> None:
    engine = make_engine(make_pair(), device="auto")
    assert engine.info.device.startswith("cuda:")
    assert generate(engine, (3, 4, 5), 3) == generate(make_engine(make_pair()), (3, 4, 5), 3)


def test_memory_stays_where_it_is() -> None:
    engine = gpu_engine(make_pair(), graphs=True)
    texts = prompts(6, 320, longest=30)
    talk(engine, texts, 8)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(10):
        talk(engine, texts, 8)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before


def test_a_step_that_is_not_finite_fails_and_the_next_one_is_right() -> None:
    pair = make_pair()
    engine = gpu_engine(pair, graphs=True)
    expected = talk(engine, prompts(2, 320), 4)
    engine.open(50, GREEDY)
    sampled(engine, StepItem(50, (1, 2)))
    weight = engine.runner.decoder._norm.weight
    with torch.inference_mode():
        kept = weight.clone()
        weight.fill_(torch.nan)
    with pytest.raises(FloatingPointError):
        engine.eval_batch([StepItem(50)])
    with torch.inference_mode():
        weight.copy_(kept)
    engine.close(50)
    assert talk(engine, prompts(2, 320), 4) == expected


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_batch_invariance_holds_to_the_last_bit(dtype: str, graphs: bool) -> None:
    """Alone, among 32, in pieces, and evaluated anew, over several splits of positions."""
    pair = make_pair(**WIDE)
    engine = make_engine(
        pair,
        pages=2000,
        device="cuda",
        dtype=dtype,
        graphs=graphs,
        batch_invariant=True,
        prefix_cache=False,
    )
    wish = SamplingParams(temperature=0.8, top_p=0.95, seed=5, logprobs=True, prompt_length=270)
    prompt = (prompts(1, 320, seed=2)[0] * 300)[:270]

    def say(pieces: Sequence[int], text: Sequence[int], others: int = 0) -> list[SampledToken]:
        engine.open(99, wish)
        for i in range(others):
            engine.open(i, SamplingParams(temperature=0.9 * (i % 2), seed=i, logprobs=True))
        beside = [StepItem(i, tuple(prompt[: 3 + 9 * i])) for i in range(others)]
        done = 0
        for piece in pieces:
            engine.eval_batch([StepItem(99, tuple(text[done : done + piece]), sample=False)])
            done += piece
        said = sampled(engine, StepItem(99, tuple(text[done:])), *beside)[:1]
        while len(text) + len(said) < 282:
            said += sampled(engine, *[StepItem(i) for i in range(others)], StepItem(99))[-1:]
        for i in (99, *range(others)):
            engine.close(i)
        return said

    alone = say((), prompt)
    assert say((), prompt, others=31) == alone
    for pieces in ((1, 8, 9), (128, 128), (255, 1)):
        assert say(pieces, prompt) == alone
    told = [token.token for token in alone[:7]]
    assert say((), [*prompt, *told], others=3) == alone[7:]
