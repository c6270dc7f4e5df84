"""Mixtures of experts: what they compute by plain formulas, and that company changes no bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.nn import functional

from ds4trio.engine import attention as attention_module
from ds4trio.engine import runner as runner_module
from ds4trio.engine.attention import Span
from ds4trio.engine.block import Block
from ds4trio.engine.experts import Mixture, Router
from ds4trio.engine.graphs import run_eagerly
from ds4trio.engine.norm import RMSNorm
from ds4trio.engine.source import WeightSource
from ds4trio.models.config import Experts, LayerKind, ModelConfig, Rope
from ds4trio.models.tensors import tensor_shapes
from tests.engine.builders import CPU, Bench, Pair, make_engine, make_pair, prompts

DTYPES = {"float32": False, "w8a16": False, "int8": False, "bfloat16": True, "float16": True}
"""And whether batch invariance has to be asked for."""

LAYER = "model.layers.0.mlp"


def config_of(experts: Experts, **overrides: Any) -> ModelConfig:
    values: dict[str, Any] = {
        "architecture": "any",
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 96,
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
        "norm_eps": 1e-5,
        "ropes": (Rope(theta=10000.0, dims=16),),
        "context_length": 512,
        "kinds": (LayerKind(experts=True), LayerKind(experts=True)),
        "experts": experts,
    }
    return ModelConfig(**values | overrides)


def weights_of(config: ModelConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator) * 0.15 + (name.endswith("norm.weight"))
        for name, shape in tensor_shapes(config).items()
    }


@dataclass
class Case:
    config: ModelConfig
    weights: dict[str, torch.Tensor]

    @property
    def experts(self) -> Experts:
        assert self.config.experts is not None
        return self.config.experts

    @property
    def norm(self) -> RMSNorm:
        return RMSNorm(self.weights["model.layers.0.post_attention_layernorm.weight"], 1e-5)

    def source(self, dtype: str = "float32", *, batch_invariant: bool = False) -> WeightSource:
        return WeightSource(
            self.config,
            self.weights,
            dtype=dtype,
            device=CPU,
            batch_invariant=batch_invariant,
            kept=None,
        )

    def expected(self, hidden: torch.Tensor, scale: float) -> torch.Tensor:
        """Row by row, by the formulas."""
        return torch.stack([self._row(row, scale) for row in self.norm(hidden)])

    def _row(self, row: torch.Tensor, scale: float) -> torch.Tensor:
        e, total = self.experts, torch.zeros_like(row)
        if e.shared_width:
            total = self._mlp("shared", row) * scale
            if e.shared_gate:
                total = total * torch.sigmoid(self.weights[f"{LAYER}.shared_gate.weight"].dot(row))
        for number, share in self.routes(row).items():
            total = total + self._mlp(f"experts.{number}", row) * (share * scale)
        return total

    def routes(self, row: torch.Tensor) -> dict[int, float]:
        e = self.experts
        logits = self._product("router", row)
        scores = {"softmax": logits.softmax(-1), "sigmoid": logits.sigmoid(), "chosen": logits}
        keys = known = scores[e.scoring]
        if e.correction:
            keys = known + self.weights[f"{LAYER}.router.correction"]
        if e.groups > 1:
            grouped = keys.view(e.groups, -1)
            best = grouped.topk(1 if e.group_score == "best" else 2).values.sum(-1)
            outside = torch.ones(e.groups, dtype=torch.bool)
            outside[best.topk(e.groups_used).indices] = False
            keys = grouped.masked_fill(outside.unsqueeze(1), -torch.inf).flatten()
        chosen = keys.topk(e.used).indices
        shares = known[chosen]
        if e.scoring == "chosen":
            shares = shares.softmax(-1)
        elif e.normalise:
            shares = shares / shares.sum()
        return dict(zip(chosen.tolist(), (shares * e.scale).tolist(), strict=True))

    def _product(self, name: str, row: torch.Tensor) -> torch.Tensor:
        bias = self.weights.get(f"{LAYER}.{name}.bias")
        return functional.linear(row, self.weights[f"{LAYER}.{name}.weight"], bias)

    def _mlp(self, name: str, row: torch.Tensor) -> torch.Tensor:
        gate = functional.silu(self._product(f"{name}.gate_proj", row))
        return self._product(f"{name}.down_proj", gate * self._product(f"{name}.up_proj", row))


def case(**experts: Any) -> Case:
    config = config_of(Experts(**{"count": 12, "used": 3, "width": 48} | experts))
    return Case(config, weights_of(config))


def rows_of(count: int, seed: int = 3) -> torch.Tensor:
    return torch.randn(count, 64, generator=torch.Generator().manual_seed(seed))


KINDS: dict[str, dict[str, Any]] = {
    "mixtral": {},
    "qwen": {"normalise": False, "shared_width": 80, "shared_gate": True},
    "chosen": {"scoring": "chosen", "router_bias": True, "bias": True},
    "deepseek 2": {
        "normalise": False,
        "scale": 2.5,
        "groups": 4,
        "groups_used": 2,
        "shared_width": 64,
    },
    "deepseek 3": {
        "scoring": "sigmoid",
        "scale": 1.7,
        "correction": True,
        "groups": 3,
        "groups_used": 2,
        "group_score": "best two",
        "shared_width": 64,
    },
    "biased gate": {"shared_width": 80, "shared_gate": True, "router_bias": True},
    "one": {"count": 1, "used": 1},
    "all": {"count": 5, "used": 5},
    "many": {"count": 160, "used": 8, "width": 24},
}


@pytest.mark.parametrize("kind", KINDS)
def test_results_follow_the_formulas(kind: str) -> None:
    it = case(**KINDS[kind])
    mixture = Mixture(it.source(), LAYER, it.experts, scale=0.5)
    hidden = rows_of(40)
    expected = it.expected(hidden, 0.5)
    before = hidden.clone()
    torch.testing.assert_close(mixture(hidden, it.norm), expected, atol=2e-4, rtol=1e-4)
    assert torch.equal(hidden, before)
    torch.testing.assert_close(
        mixture.add_to(hidden, it.norm), before + expected, atol=2e-4, rtol=1e-4
    )


def test_without_a_norm_rows_are_taken_as_they_are() -> None:
    it = case(shared_width=32)
    mixture = Mixture(it.source(), LAYER, it.experts, scale=1.0)
    hidden = it.norm(rows_of(7))
    torch.testing.assert_close(mixture(hidden, None), it.expected(rows_of(7), 1.0))


@pytest.mark.parametrize("dtype", ["w8a16", "int8", "bfloat16", "float16"])
def test_rounding_of_experts_sends_no_row_elsewhere(dtype: str) -> None:
    """Close experts' logits decide; and results stay near those of float32."""
    it = case(count=32, used=4)
    hidden = rows_of(64).bfloat16().float()
    source = it.source(dtype)
    mixture = Mixture(source, LAYER, it.experts, scale=1.0)
    found = mixture(source.placed(hidden), RMSNorm(source.placed(it.norm.weight), 1e-5))
    expected = it.expected(hidden, 1.0)
    assert (found.float() - expected).norm() < 0.05 * expected.norm()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_in_any_company(dtype: str, kind: str) -> None:
    it = case(**KINDS[kind])
    source = it.source(dtype, batch_invariant=DTYPES[dtype])
    mixture = Mixture(source, LAYER, it.experts, scale=1.0)
    norm = RMSNorm(source.placed(it.norm.weight), 1e-5)
    hidden = source.placed(rows_of(33))
    together = mixture(hidden, norm)
    for count in (1, 2, 5, 17):
        assert torch.equal(mixture(hidden[:count], norm), together[:count])
    for i in range(33):
        assert torch.equal(mixture(hidden[i : i + 1], norm), together[i : i + 1])
    added = mixture.add_to(hidden.clone(), norm)
    assert torch.equal(mixture.add_to(hidden[4:5].clone(), norm), added[4:5])


@pytest.mark.parametrize("dtype", ["float32", "w8a16", "int8"])
def test_logits_have_the_same_bits_alone_and_beside_32_others(dtype: str) -> None:
    config = case(**KINDS["qwen"]).config
    pair = Pair(make_pair().reference, config, weights_of(config))
    bench = Bench(pair, dtype=dtype, pages=140)
    texts = prompts(33, 320, longest=60)
    free = iter(range(140))
    tables = [[next(free) for _ in range(-(-len(text) // 16))] for text in texts]
    whole = [(Span(table, 0, len(text)), text) for table, text in zip(tables, texts, strict=True)]
    alone = [bench.logits([step])[0] for step in whole]
    for found, expected in zip(bench.logits(whole), alone, strict=True):
        assert torch.equal(found, expected)
    last = [
        (Span(table, len(text) - 1, 1), text[-1:])
        for table, text in zip(tables, texts, strict=True)
    ]
    for found, expected in zip(bench.logits(last), alone, strict=True):
        assert torch.equal(found[0], expected[-1])


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid", "chosen"])
def test_of_equal_experts_the_first_are_chosen(scoring: str) -> None:
    it = case(scoring=scoring, count=9, used=4)
    it.weights[f"{LAYER}.router.weight"][:] = it.weights[f"{LAYER}.router.weight"][:1].clone()
    routes = Router(it.source(), LAYER, it.experts, scale=1.0)(rows_of(3))
    assert routes.starts.tolist() == [0, 3, 6, 9, 12, 12, 12, 12, 12, 12]
    torch.testing.assert_close(routes.shares, torch.full((12,), 0.25))


def test_groups_are_chosen_by_all_that_counts() -> None:
    """The best expert is in a group whose best two are worse together than those of another."""
    it = case(
        count=6,
        used=2,
        scoring="sigmoid",
        correction=True,
        groups=3,
        groups_used=1,
        group_score="best two",
        normalise=False,
    )
    it.weights[f"{LAYER}.router.weight"].zero_()
    it.weights[f"{LAYER}.router.correction"][:] = torch.tensor([0.9, -0.9, 0.3, 0.2, 0.0, 0.0])
    routes = Router(it.source(), LAYER, it.experts, scale=1.0)(rows_of(1))
    assert routes.starts.tolist() == [0, 0, 0, 1, 2, 2, 2]
    assert routes.shares.tolist() == [0.5, 0.5]  # without the correction


def test_numbers_that_are_none_stay_so() -> None:
    for kind in KINDS.values():
        it = case(**kind)
        mixture = Mixture(it.source(), LAYER, it.experts, scale=1.0)
        hidden = rows_of(3)
        hidden[1, 5] = torch.nan
        found = mixture(hidden, it.norm)
        assert found[1].isnan().all()
        assert found[[0, 2]].isfinite().all()


def test_layers_without_experts_have_an_mlp() -> None:
    plain = Experts(count=4, used=2, width=48)
    config = config_of(plain, kinds=(LayerKind(), LayerKind(experts=True)))
    source = WeightSource(
        config,
        weights_of(config),
        dtype="float32",
        device=CPU,
        batch_invariant=False,
        kept=None,
    )
    first, second = (Block(source, layer)._mlp for layer in range(2))
    assert not isinstance(first, Mixture)
    assert isinstance(second, Mixture)


@pytest.mark.parametrize("large", [False, True])
def test_experts_that_few_bits_suit_lie_beside_some_that_they_do_not(large: bool) -> None:
    """Some lose nothing in four bits and others would, or have numbers that float16 does not."""
    it = case(used=12)
    for number in range(0, 12, 2):
        weight = it.weights[f"{LAYER}.experts.{number}.down_proj.weight"]
        weight.copy_((weight * 20).round().clamp(-8, 7) / 64)
        if large:
            weight[0, 0] = 1e9
    hidden = rows_of(9)
    mixture = Mixture(it.source("w8a16"), LAYER, it.experts, scale=1.0)
    found, expected = mixture(hidden, it.norm), it.expected(hidden, 1.0)
    assert ((found - expected).norm(dim=0) < 0.05 * expected.norm(dim=0)).all()


def test_steps_with_experts_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where those of other models are: which products there are is decided in the middle of one."""
    monkeypatch.setattr(attention_module, "is_native", lambda dtype, device: False)
    monkeypatch.setattr(attention_module, "has_kernels", lambda device: True)
    monkeypatch.setattr(runner_module, "CudaRecorder", lambda device: run_eagerly)
    made: list[object] = []
    monkeypatch.setattr(runner_module, "RecordedSteps", lambda decoder, *_, **__: made.append(1))
    pair = make_pair()
    make_engine(pair)
    assert made
    made.clear()
    it = case()
    make_engine(Pair(pair.reference, it.config, it.weights))
    assert not made
