"""How much the weights take, against what they do take."""

from __future__ import annotations

import pytest
import torch

from ds4trio.engine import room
from ds4trio.engine.engine import Engine
from ds4trio.engine.machine import MachineMemory
from ds4trio.engine.memory import MemoryPlan
from ds4trio.engine.room import plan_room, weights_size
from ds4trio.errors import ModelUnavailable
from ds4trio.models.config import config_from_hf
from tests.engine.builders import CPU, make_engine, make_pair


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4.0), ("bfloat16", 2.0), ("w8a16", 1.125)])
@pytest.mark.parametrize("tied", [True, False])
def test_the_size_of_weights(dtype: str, size: float, tied: bool) -> None:
    """A table that is only looked up in is not rounded: of a small model it is a good part."""
    pair = make_pair(tie_word_embeddings=tied)
    numbers = sum(tensor.numel() for tensor in pair.weights.values())
    table = 0 if tied else pair.config.vocab_size * pair.config.hidden_size
    exact = 4.0 if dtype == "w8a16" else size
    expected = size * (numbers - table) + exact * table
    assert weights_size(pair.config, dtype) == pytest.approx(expected, rel=0.01)


def test_routers_are_exact_in_every_dtype() -> None:
    shape = {"model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 2}
    few, many = (
        config_from_hf({**shape, "num_experts": count, "moe_intermediate_size": 1})
        for count in (8, 16)
    )
    more = weights_size(many, "bfloat16") - weights_size(few, "bfloat16")
    assert more == 2 * 8 * (3 * 64 * 2 + 64 * 4)


@pytest.mark.parametrize("kv_memory", [1 << 50, 1 << 62, 1 << 70])
def test_more_memory_than_there_is(kv_memory: int) -> None:
    pair = make_pair()
    with pytest.raises(ModelUnavailable, match=r"--kv-memory: .* are asked for"):
        Engine(pair.config, pair.weights, device="cpu", dtype="float32", kv_memory=kv_memory)


def test_memory_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = MachineMemory(1 << 60, 1 << 60)
    monkeypatch.setattr(room, "machine_memory", lambda: memory)
    pair = make_pair()
    with pytest.raises(ModelUnavailable, match="cannot be had"):
        Engine(pair.config, pair.weights, device="cpu", dtype="float32", kv_memory=1 << 58)


def test_a_device_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is free there goes to keys and values, less a sixteenth, whatever the machine has."""
    free, total = 3 << 30, 4 << 30
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, total))
    monkeypatch.setattr(room, "machine_memory", lambda: MachineMemory(1, 1))
    config = make_pair(max_position_embeddings=1 << 24).config

    def plan(**chosen: int | None) -> MemoryPlan:
        asked = {"kv_memory": None, "context_length": None, **chosen}
        return plan_room(
            config,
            torch.device("cuda"),
            dtype="bfloat16",
            numbers=torch.bfloat16,
            page_size=16,
            **asked,
        )

    page = 16 * 2 * config.position_size
    left = free - weights_size(config, "bfloat16") - total // 16
    assert plan().kv_memory == left // page * page
    assert plan(context_length=1000).context == 1000
    with pytest.raises(ModelUnavailable, match="smaller --ctx"):
        plan(context_length=1 << 24)
    with pytest.raises(ModelUnavailable, match=r"--kv-memory: .* are asked for"):
        plan(kv_memory=total + 1)


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
