"""Compiles the kernels for GPUs that need not be there: ``python -m tests.engine.compile_kernels``.

The interpreter accepts what the compiler does not. Run as a program of its own, since Triton
decides when it is imported whether it interprets.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ds4trio.engine import paged_kernels, tiled_kernels
from ds4trio.engine.paged import SPLIT, chunk_tiling, row_tiling
from ds4trio.engine.tiled import product_tile

SHARED_MEMORY = 99 * 1024
"""Bytes that a program may use on the smallest of today's GPUs (compute capability 8.6)."""

GROUP, WIDTH = 4, 128
POINTERS = {
    "rows": "*bf16",
    "weight": "*bf16",
    "bias": "*bf16",
    "epsilon": "fp32",
    "queries": "*bf16",
    "keys": "*bf16",
    "values": "*bf16",
    "cached_keys": "*bf16",
    "cached_values": "*bf16",
    "result": "*bf16",
    "sinks": "*fp32",
    "mixed": "*fp32",
    "tops": "*fp32",
    "totals": "*fp32",
    "tables": "*i32",
    "lengths": "*i32",
    "blocks": "*i32",
    "pages": "*i32",
    "offsets": "*i32",
}
FEATURES = {"WINDOW": 128, "SOFT_CAP": 30.0, "HAS_SINKS": True}


def compile_for(capability: int, kernel: Any, warps: int, stages: int, **constants: Any) -> None:
    """Compile, and check the memory it takes."""
    names = kernel.arg_names
    signature = {
        name: "constexpr" if name in constants else POINTERS.get(name, "i32") for name in names
    }
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(i,): constants[name] for i, name in enumerate(names) if name in constants},
    )
    compiled = triton.compile(
        source,
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": warps, "num_stages": stages},
    )
    if compiled.metadata.shared > SHARED_MEMORY:
        raise SystemExit(f"{kernel.fn.__name__} takes {compiled.metadata.shared} bytes")


def main() -> None:
    shape = {"WIDTH": WIDTH, "PADDED": WIDTH}
    page = {"PAGE": 16, "GROUP": GROUP, "key_width": 1, "table_step": 1}
    rows = row_tiling(GROUP, WIDTH, torch.bfloat16)
    chunk = chunk_tiling(GROUP, WIDTH, torch.bfloat16)
    plain = {"WINDOW": 0, "SOFT_CAP": 0.0, "HAS_SINKS": False}
    compile_for(80, paged_kernels.store_kernel, 1, 3, to_key_width=1, **shape)
    compile_for(90, paged_kernels.merge_kernel, 1, 3, SPLIT=SPLIT, HAS_SINKS=True, **shape)
    tile = product_tile(torch.bfloat16)
    for capability in (80, 90):
        compile_for(capability, tiled_kernels.norm_kernel, 4, 3, INPUTS=4096, PADDED=4096)
        compile_for(
            capability,
            tiled_kernels.product_kernel,
            tile.warps,
            tile.stages,
            INPUTS=4096,
            OUTPUTS=14336,
            HAS_BIAS=True,
            ROWS=tile.rows,
            COLUMNS=tile.columns,
            DEPTH=tile.depth,
        )
    for capability, features in ((80, plain), (90, FEATURES)):
        compile_for(
            capability,
            paged_kernels.row_kernel,
            rows.warps,
            rows.stages,
            ROWS=rows.rows,
            TILE=rows.tile,
            SPLIT=SPLIT,
            ALONE=False,
            **shape,
            **page,
            **features,
        )
        compile_for(
            capability,
            paged_kernels.chunk_kernel,
            chunk.warps,
            chunk.stages,
            ROWS=chunk.rows,
            TILE=chunk.tile,
            **shape,
            **page,
            **features,
        )


if __name__ == "__main__":
    main()
