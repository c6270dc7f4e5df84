"""Makes the files in ``data/`` with the libraries whose formats they have.

Those are no dependencies of this project, not even of its tests: install ``bitsandbytes`` (0.50)
and ``compressed-tensors`` (0.20), run ``python -m tests.models.checkpoints.make_data``. Each file
has stored tensors under ``name.*``, and in its metadata a digest of what the library makes of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file

__all__ = ["DATA", "digest"]

DATA = Path(__file__).parent / "data"


def digest(tensor: torch.Tensor) -> str:
    """Of a tensor's shape and bits, as float32."""
    content = tensor.float().contiguous().numpy().tobytes()
    return hashlib.sha256(f"{list(tensor.shape)}".encode() + content).hexdigest()


def bitsandbytes() -> None:
    """Eight bits; both kinds of four; factors that are quantised too, with several outer ones."""
    import bitsandbytes.functional as bnb  # type: ignore[import-not-found]

    torch.manual_seed(0)
    stored: dict[str, torch.Tensor] = {}
    digests: dict[str, str] = {}
    for name, kind, rows, nested in (
        ("nf4", "nf4", 6, False),
        ("fp4", "fp4", 6, False),
        ("double", "nf4", 320, True),
        ("odd", "nf4", 5, False),
    ):
        weight = torch.randn(rows, 63 if name == "odd" else 64)
        packed, state = bnb.quantize_4bit(
            weight, blocksize=64, quant_type=kind, compress_statistics=nested
        )
        stored[f"{name}.weight"] = packed
        for key, value in state.as_dict(packed=True).items():
            stored[f"{name}.weight.{key}"] = value
        digests[name] = digest(bnb.dequantize_4bit(packed, state))
    levels, greatest, _ = bnb.int8_vectorwise_quant(torch.randn(7, 48).half())
    stored |= {"int8.weight": levels, "int8.SCB": greatest, "int8.weight_format": torch.tensor(0)}
    digests["int8"] = digest(bnb.int8_vectorwise_dequant(levels, greatest))
    save_file(stored, DATA / "bitsandbytes.safetensors", digests)


def compressed_tensors() -> None:
    """Packed levels with and without zeros, and eight bits of both kinds."""
    from compressed_tensors.compressors import BaseCompressor  # type: ignore[import-not-found]
    from compressed_tensors.quantization import (  # type: ignore[import-not-found]
        QuantizationArgs,
        QuantizationScheme,
    )

    torch.manual_seed(1)
    stored: dict[str, torch.Tensor] = {}
    digests: dict[str, str] = {}
    integers: Callable[..., torch.Tensor] = lambda low, high, *shape: torch.randint(  # noqa: E731
        low, high, shape, dtype=torch.int8
    )
    for name, form, groups, zero, args in (
        ("group", "pack-quantized", 3, None, {"num_bits": 4, "strategy": "group"}),
        ("zeros", "pack-quantized", 3, 4, {"num_bits": 4, "strategy": "group"}),
        ("channel", "pack-quantized", 1, None, {"num_bits": 4, "strategy": "channel"}),
        ("int8", "int-quantized", 1, None, {"num_bits": 8, "strategy": "channel"}),
        ("float8", "float-quantized", 1, None, {"num_bits": 8, "strategy": "channel"}),
    ):
        kind = "float" if name == "float8" else "int"
        group = {"group_size": 32} if args["strategy"] == "group" else {}
        scheme = QuantizationScheme(
            targets=["Linear"],
            weights=QuantizationArgs(type=kind, symmetric=zero is None, **args, **group),
        )
        state = {
            "weight": torch.randn(10, 96),
            "weight_scale": torch.rand(10, groups) / 4 + 0.01,
            "weight_zero_point": torch.zeros(10, groups, dtype=torch.int8),
        }
        if zero is not None:
            state["weight_zero_point"] = integers(-zero, zero, 10, groups)
        compressor = BaseCompressor.get_value_from_registry(form)
        packed = compressor.compress(state, scheme)
        packed = {key: value for key, value in packed.items() if value is not None}
        stored |= {f"{name}.{key}": value for key, value in packed.items()}
        digests[name] = digest(compressor.decompress(packed, scheme)["weight"])
    save_file(stored, DATA / "compressed.safetensors", digests)


if __name__ == "__main__":
    bitsandbytes()
    compressed_tensors()
