"""Checkpoints whose tensors were exchanged for others: refused or read, and nothing else."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from ds4trio.errors import ModelUnavailable
from tests.models.checkpoints import test_awq, test_compressed, test_gptq, test_mxfp4
from tests.models.checkpoints.make_data import DATA
from tests.models.checkpoints.packing import opened

FLOAT8 = {
    "x.weight": torch.ones(8, 8).to(torch.float8_e4m3fn),
    "x.weight_scale_inv": torch.ones(2, 2),
    "y.weight": torch.ones(3, 4, 4).to(torch.float8_e4m3fn),
    "y.weight_scale": torch.ones(3, 4, 1),
}
WHOLE: dict[str, tuple[dict[str, torch.Tensor], dict[str, Any]]] = {
    "awq": (test_awq.checkpoint()[0], {}),
    "bitsandbytes": (load_file(DATA / "bitsandbytes.safetensors"), {}),
    "compressed-tensors": (
        {
            **load_file(DATA / "compressed.safetensors"),
            **test_compressed.packed(4, zeros=True)[0],
        },
        {"config_groups": {"a": {"weights": {"num_bits": 4, "block_structure": [2, 2]}}}},
    ),
    "fp8": (FLOAT8, {"weight_block_size": [4, 4]}),
    "gptq": (test_gptq.checkpoint(4)[0], {"bits": 4, "group_size": 32}),
    "mxfp4": (test_mxfp4.checkpoint(), {}),
}
DTYPES = [
    *(torch.int32, torch.int64, torch.int8, torch.uint8, torch.float16, torch.bfloat16),
    *(torch.float32, torch.float8_e4m3fn, torch.bool),
]
NUMBERS: st.SearchStrategy[Any] = st.sampled_from(
    [None, -1, 0, 1, 3, 4, 8, 1 << 40, "x", 2.5, [], [4, 4], [0, -1], {}]
)


@pytest.mark.parametrize("method", WHOLE)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_exchanged_tensors_and_settings(
    tmp_path_factory: pytest.TempPathFactory, method: str, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp() / "exchanged"
    folder.mkdir(exist_ok=True)
    tensors, says = (dict(part) for part in WHOLE[method])
    for name in data.draw(st.sets(st.sampled_from(sorted(tensors)), max_size=2)):
        old = tensors.pop(name)
        shape = data.draw(
            st.one_of(
                st.just(list(old.shape)),
                st.permutations(list(old.shape)),
                st.lists(st.integers(0, 9), max_size=4),
            )
        )
        dtype = data.draw(st.sampled_from([*DTYPES, old.dtype]))
        if data.draw(st.booleans()):
            values = torch.randint(-200, 200, shape, generator=torch.Generator().manual_seed(1))
            tensors[name] = values.to(dtype)
    for key in data.draw(st.sets(st.sampled_from(["bits", "group_size", *says]), max_size=2)):
        says[key] = data.draw(NUMBERS)
    try:
        weights = opened(folder, method, tensors, **says)
        for name, index in itertools.product(weights, range(2)):
            assert weights[name].shape == weights.shapes[name]
            if weights.shapes[name] and index < weights.shapes[name][0]:
                assert weights.part(name, index).shape == weights.shapes[name][1:]
    except ModelUnavailable as error:
        assert len(str(error)) < 400  # noqa: PT017  (it may as well be read)
