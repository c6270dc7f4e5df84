"""Times of the whole engine over random weights of well-known shapes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ds4trio.engine.engine import Engine
from ds4trio.engine.step import Evaluated, SamplingParams, StepItem
from ds4trio.models.config import ModelConfig, config_from_hf
from ds4trio.models.tensors import tensor_shapes
from tests.gpu.machine import Machine

__all__ = ["SHAPES", "time_engine"]

COMMON = {"model_type": "llama", "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16"}
SHAPES: dict[str, dict[str, Any]] = {
    "135M (SmolLM2)": {
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
    "1.7B (SmolLM2)": {
        "vocab_size": 49152,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
    "8B (Llama 3.1)": {
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
    },
}
REHEARSED = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
GREEDY = SamplingParams(temperature=0.0)
DRAWN = SamplingParams(temperature=0.8, top_p=0.95, seed=3)


class RandomWeights(Mapping[str, torch.Tensor]):
    """Tensors of a config's shapes, made on the device when they are asked for."""

    def __init__(self, config: ModelConfig, machine: Machine) -> None:
        self._machine = machine
        self.shapes = tensor_shapes(config)

    def __getitem__(self, name: str) -> torch.Tensor:
        shape = self.shapes[name]
        device, dtype = self._machine.device, self._machine.dtype
        if len(shape) == 1:
            return torch.ones(shape, device=device, dtype=dtype)
        return torch.randn(shape, device=device, dtype=dtype) * 0.02

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    @property
    def read_each_step(self) -> int:
        """Elements that a decode step reads: all but an embedding that is not the head, too."""
        count = sum(torch.Size(shape).numel() for shape in self.shapes.values())
        if "lm_head.weight" in self.shapes:
            count -= torch.Size(self.shapes["model.embed_tokens.weight"]).numel()
        return count


def time_engine(
    machine: Machine,
    shape: Mapping[str, Any],
    *,
    levels: Sequence[int],
    prompt: int,
    ceiling: float,
    batch_invariant: bool = False,
) -> dict[str, Any]:
    """Prefill, then decode at each number of rows, with recorded steps and without.

    Args:
        machine: where.
        shape: of the model, as ``config.json`` has it.
        levels: numbers of rows, rising.
        prompt: tokens of each sequence before it decodes.
        ceiling: bytes per second of a copy.
        batch_invariant: as for ``Engine``.
    """
    config = config_from_hf({**COMMON, **(REHEARSED if machine.rehearsal else shape)})
    weights = RandomWeights(config, machine)
    steps = 2 if machine.rehearsal else 20
    longest = prompt + 2 * len(levels) * (steps + 3) + 64
    position = config.position_size * machine.dtype.itemsize
    began = time.perf_counter()
    engine = Engine(
        config,
        weights,
        device=str(machine.device),
        dtype=str(machine.dtype).removeprefix("torch."),
        batch_invariant=batch_invariant,
        kv_memory=levels[-1] * (longest + 16) * position,
        prefix_cache=False,
    )
    machine.synchronize()
    result: dict[str, Any] = {"load_seconds": time.perf_counter() - began}
    result["prefill"] = _prefill(machine, engine, config, levels[-1], prompt)
    recorded = engine.runner._recorded
    result["decode"] = []
    for rows in levels:
        for graphs in (True, False):
            engine.runner._recorded = recorded if graphs else None
            found = _decode(engine, list(range(rows)), steps)
            mean = sum(engine.length(i) for i in range(rows)) / rows
            read = weights.read_each_step * machine.dtype.itemsize + rows * mean * position
            level: dict[str, Any] = {
                "rows": rows,
                "graphs": graphs,
                "positions": mean,
                "step_ms": found["median"],
                "step_ms_least": found["least"],
                "first_step_ms": found["first"],
                "tokens_per_second": rows / found["median"] * 1000,
                "bytes": read,
                "share_of_bandwidth": read / found["median"] * 1000 / ceiling,
            }
            if graphs and recorded is not None:
                # The device's own time of the step that was repeated last.
                repeat = list(recorded._recorded.values())[-1][1]
                with torch.inference_mode():
                    level["device_ms"] = machine.milliseconds(repeat, repeats=10)
                level["device_share_of_bandwidth"] = read / level["device_ms"] * 1000 / ceiling
            result["decode"].append(level)
    engine.runner._recorded = recorded
    result["company"] = _company(engine, config, levels[-1])
    if not machine.rehearsal:
        result["peak_memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
        torch.cuda.reset_peak_memory_stats()
    return result


def _prefill(
    machine: Machine, engine: Engine, config: ModelConfig, sequences: int, prompt: int
) -> dict[str, Any]:
    """Fill all sequences, some 2048 tokens a step; the times of the steps after the first."""
    generator = torch.Generator().manual_seed(0)
    together = max(1, 2048 // prompt)
    times = []
    for first in range(0, sequences, together):
        items = []
        for i in range(first, min(first + together, sequences)):
            engine.open(i, DRAWN if i % 4 == 3 else GREEDY)
            tokens = torch.randint(0, config.vocab_size, (prompt,), generator=generator).tolist()
            items.append(StepItem(i, tuple(tokens)))
        times.append((_step(engine, items), len(items) * prompt))
    later = times[1:] or times
    return {
        "prompt": prompt,
        "tokens_a_step": times[0][1],
        "first_step_ms": times[0][0],
        "tokens_per_second": sum(n for _, n in later) / sum(ms for ms, _ in later) * 1000,
    }


def _decode(engine: Engine, sequences: Sequence[int], steps: int) -> dict[str, float]:
    items = [StepItem(i) for i in sequences]
    first = _step(engine, items)
    for _ in range(2):
        _step(engine, items)
    times = [_step(engine, items) for _ in range(steps)]
    return {"first": first, "median": statistics.median(times), "least": min(times)}


def _step(engine: Engine, items: Sequence[StepItem]) -> float:
    """Milliseconds until the sampled tokens are here."""
    began = time.perf_counter()
    outcomes = engine.eval_batch(items).outcomes
    seconds = time.perf_counter() - began
    if not all(isinstance(outcome, Evaluated) for outcome in outcomes):
        raise RuntimeError(f"a step was refused: {outcomes}")
    return seconds * 1000


def _company(engine: Engine, config: ModelConfig, rows: int) -> dict[str, Any]:
    """The same continuation alone and among others: how far logprobs are apart."""
    prompt = tuple(range(5, 45))
    wish = SamplingParams(temperature=0.0, logprobs=True)
    said: list[list[tuple[int, float | None]]] = []
    for company in (0, min(rows - 1, 31)):
        engine.open(10**6, wish)
        found: list[tuple[int, float | None]] = []
        items = [StepItem(10**6, prompt)]
        for _ in range(8):
            outcome = engine.eval_batch([*items, *[StepItem(i) for i in range(company)]])
            first = outcome.outcomes[0]
            if not isinstance(first, Evaluated) or not first.sampled:
                raise RuntimeError(f"a step was refused: {first}")
            found.extend((drawn.token, drawn.logprob) for drawn in first.sampled)
            items = [StepItem(10**6)]
        engine.close(10**6)
        said.append(found)
    apart = [abs((a[1] or 0.0) - (b[1] or 0.0)) for a, b in zip(*said, strict=True)]
    same = [a[0] == b[0] for a, b in zip(*said, strict=True)]
    return {"same_tokens": same, "logprobs_apart": apart}
