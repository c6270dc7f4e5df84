"""How KV memory and context are chosen, and what of a machine's memory counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4trio.engine.machine import MachineMemory, machine_memory
from ds4trio.engine.memory import SESSIONS, USUAL_CONTEXT, MemoryPlan, plan_memory
from ds4trio.errors import ModelUnavailable

GIB = 1 << 30
KIB = 1 << 10


def test_a_small_model_on_a_large_machine_gets_what_it_can_use() -> None:
    plan = plan_memory(
        total=256 * GIB,
        available=250 * GIB,
        weights=GIB // 8,
        position_bytes=22 * KIB,
        model_context=2048,
    )
    assert plan == MemoryPlan(22 * KIB * 2048 * SESSIONS, 2048)


def test_a_model_of_8b_with_a_long_context_on_32_gib() -> None:
    plan = plan_memory(
        total=32 * GIB,
        available=29 * GIB,
        weights=9 * GIB,
        position_bytes=64 * KIB,
        model_context=131_072,
    )
    assert plan == MemoryPlan(4 * GIB, 65_536)  # an eighth


def test_one_usual_conversation_may_take_more_than_an_eighth() -> None:
    plan = plan_memory(
        total=16 * GIB,
        available=14 * GIB,
        weights=8 * GIB,
        position_bytes=512 * KIB,
        model_context=131_072,
    )
    assert plan == MemoryPlan(4 * GIB, USUAL_CONTEXT)


def test_it_shrinks_with_what_is_free() -> None:
    plan = plan_memory(
        total=16 * GIB,
        available=9 * GIB,
        weights=7 * GIB,
        position_bytes=128 * KIB,
        model_context=131_072,
    )
    assert 0.9 * GIB < plan.kv_memory <= 1.25 * GIB
    assert plan.context == plan.kv_memory // (128 * KIB)


def test_a_devices_own_memory_is_used() -> None:
    plan = plan_memory(
        total=80 * GIB,
        available=79 * GIB,
        weights=16 * GIB,
        position_bytes=128 * KIB,
        model_context=131_072,
        shared=False,
    )
    assert plan.kv_memory == 58 * GIB
    assert plan.context == 131_072


def test_what_the_user_says_is_taken() -> None:
    def planned(model_context: int = 8192, **asked: int) -> MemoryPlan:
        return plan_memory(
            total=16 * GIB,
            available=15 * GIB,
            weights=GIB,
            position_bytes=64 * KIB,
            model_context=model_context,
            kv_memory=asked.get("kv_memory"),
            context=asked.get("context"),
        )

    assert planned(kv_memory=GIB, context=4096) == MemoryPlan(GIB, 4096)
    assert planned(kv_memory=64 << 20).context == 1024
    assert planned(context=100_000).context == 8192
    # A context that was asked for gets its memory, or an error.
    assert planned(1 << 20, context=65_536).kv_memory == 4 * GIB
    with pytest.raises(ModelUnavailable, match="a smaller --ctx would fit"):
        planned(1 << 20, context=300_000)
    with pytest.raises(ModelUnavailable, match=r"^--kv-memory: 1000 bytes hold 0 tokens"):
        planned(kv_memory=1000)
    with pytest.raises(ModelUnavailable, match=r"hold 48 tokens .* give at least 4194304\.$"):
        planned(kv_memory=(4 << 20) - 1)
    assert planned(kv_memory=4 << 20).context == 64
    assert planned(32, kv_memory=2 << 20).context == 32


def test_weights_that_do_not_fit_are_told() -> None:
    with pytest.raises(ModelUnavailable, match=r"need 20\.00 GiB and 15\.00 GiB of 16\.00 GiB"):
        plan_memory(
            total=16 * GIB,
            available=15 * GIB,
            weights=20 * GIB,
            position_bytes=64 * KIB,
            model_context=8192,
        )
    with pytest.raises(ModelUnavailable, match="512 tokens of context need"):
        plan_memory(
            total=16 * GIB,
            available=15 * GIB,
            weights=15 * GIB,
            position_bytes=64 * KIB,
            model_context=8192,
        )


SIZES = st.integers(0, 2**42)


@given(
    total=st.integers(2**20, 2**42),
    available=SIZES,
    weights=SIZES,
    position_bytes=st.integers(1, 2**24),
    model_context=st.integers(1, 2**22),
    page_size=st.sampled_from([16, 64, 1024]),
    shared=st.booleans(),
    context=st.none() | st.integers(1, 2**22),
)
def test_a_plan_fits(
    total: int,
    available: int,
    weights: int,
    position_bytes: int,
    model_context: int,
    page_size: int,
    shared: bool,
    context: int | None,
) -> None:
    available = min(available, total)
    try:
        plan = plan_memory(
            total=total,
            available=available,
            weights=weights,
            position_bytes=position_bytes,
            model_context=model_context,
            page_size=page_size,
            shared=shared,
            context=context,
        )
    except ModelUnavailable:
        return  # said for cases of their own above
    assert 0 < plan.kv_memory + weights <= available
    assert plan.kv_memory % (page_size * position_bytes) == 0
    assert 1 <= plan.context <= min(model_context, context or model_context)
    assert plan.context * position_bytes <= plan.kv_memory


def meminfo(root: Path, total: int, available: int) -> None:
    (root / "proc" / "self").mkdir(parents=True)
    text = f"MemTotal: {total // 1024} kB\nMemFree: 1 kB\nMemAvailable: {available // 1024} kB\n"
    (root / "proc" / "meminfo").write_text(text)


def group(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


def test_without_groups(tmp_path: Path) -> None:
    meminfo(tmp_path, 16 * GIB, 10 * GIB)
    assert machine_memory(tmp_path) == MachineMemory(16 * GIB, 10 * GIB)


def test_the_second_version_of_control_groups(tmp_path: Path) -> None:
    meminfo(tmp_path, 16 * GIB, 10 * GIB)
    (tmp_path / "proc/self/cgroup").write_text("0::/outer/inner\n")
    top = tmp_path / "sys/fs/cgroup"
    group(top / "outer/inner", memory__max="max", memory__current=GIB)
    assert machine_memory(tmp_path) == MachineMemory(16 * GIB, 10 * GIB)
    stat = f"anon 5\ninactive_file {GIB}\nactive_file 7"
    group(top / "outer", memory__max=4 * GIB, memory__current=2 * GIB, memory__stat=stat)
    assert machine_memory(tmp_path) == MachineMemory(4 * GIB, 3 * GIB)
    group(top / "outer", memory__max=32 * GIB)
    assert machine_memory(tmp_path) == MachineMemory(16 * GIB, 10 * GIB)


def test_a_container_that_sees_its_group_as_the_top(tmp_path: Path) -> None:
    meminfo(tmp_path, 16 * GIB, 10 * GIB)
    (tmp_path / "proc/self/cgroup").write_text("0::/docker/abc\n")
    group(tmp_path / "sys/fs/cgroup", memory__max=2 * GIB, memory__current=3 * GIB)
    assert machine_memory(tmp_path) == MachineMemory(2 * GIB, 0)


def test_the_first_version_of_control_groups(tmp_path: Path) -> None:
    meminfo(tmp_path, 16 * GIB, 10 * GIB)
    (tmp_path / "proc/self/cgroup").write_text("4:cpu:/x\n3:memory:/a\n0::/\n")
    folder = tmp_path / "sys/fs/cgroup/memory/a"
    group(folder, memory__limit_in_bytes=9223372036854771712, memory__usage_in_bytes=GIB)
    assert machine_memory(tmp_path) == MachineMemory(16 * GIB, 10 * GIB)
    group(folder, memory__limit_in_bytes=4 * GIB, memory__stat=f"total_inactive_file {GIB // 2}")
    assert machine_memory(tmp_path) == MachineMemory(4 * GIB, 4 * GIB - GIB // 2)


def test_this_machine_has_memory() -> None:
    memory = machine_memory()
    assert 1 << 20 < memory.available <= memory.total < 1 << 50
