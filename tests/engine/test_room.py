"""How much the weights take, against what they do take."""

from __future__ import annotations

import pytest
import torch

from ds4trio.engine import room
from ds4trio.engine.machine import MachineMemory
from ds4trio.engine.room import plan_room, weights_size
from ds4trio.errors import ModelUnavailable
from tests.engine.builders import CPU, make_engine, make_pair


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4.0), ("bfloat16", 2.0), ("w8a16", 1.125)])
def test_the_size_of_weights(dtype: str, size: float) -> None:
    pair = make_pair(tie_word_embeddings=False)
    numbers = sum(tensor.numel() for tensor in pair.weights.values())
    assert weights_size(pair.config, dtype) == pytest.approx(size * numbers, rel=0.01)


def test_a_model_that_does_not_fit_is_refused_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room, "machine_memory", lambda: MachineMemory(300_000, 200_000))
    pair = make_pair()

    class Unread(dict[str, torch.Tensor]):
        def __getitem__(self, name: str) -> torch.Tensor:
            raise AssertionError(f"{name} was read")

    with pytest.raises(ModelUnavailable, match="weights need"):
        make_engine(type(pair)(pair.reference, pair.config, Unread()))


def test_a_small_machine_gets_a_short_context(monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_pair(max_position_embeddings=1 << 20).config
    memory = MachineMemory(2 << 30, 1 << 30)
    monkeypatch.setattr(room, "machine_memory", lambda: memory)
    plan = plan_room(
        config,
        CPU,
        dtype="float32",
        numbers=torch.float32,
        page_size=16,
        kv_memory=None,
        context_length=None,
    )
    assert plan.kv_memory == memory.total // 8
    assert plan.context == plan.kv_memory // (4 * config.position_size)
