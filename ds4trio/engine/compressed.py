"""DeepSeek V4's attention: to a window, and to entries that earlier positions were compressed to.

One head of keys serves all queries, and its keys are its values. ``streams.py`` keeps them, and
attends; here are the products around it.
"""

from __future__ import annotations

import torch

from ds4trio.engine.attention import Cache, Plan
from ds4trio.engine.linear import Linear
from ds4trio.engine.norm import RMSNorm
from ds4trio.engine.source import WeightSource
from ds4trio.engine.streams import Compressor, PagedStreams, StreamPlan
from ds4trio.models.config import Compressed

__all__ = ["CompressedAttention"]


class CompressedAttention:
    """All of one layer's attention, the products after it too.

    Args:
        source: of the weights.
        layer: of the decoder.
        name: of the layer's attention.
    """

    def __init__(self, source: WeightSource, layer: int, name: str) -> None:
        config = source.config
        assert config.compressed is not None
        c = config.compressed
        self._source = source
        self._layer = layer
        self._heads, self._width = config.heads, config.head_dim
        self._compressors: list[Compressor] = []
        parts = {f"{name}.q_a_proj": c.query_rank, f"{name}.kv_proj": config.head_dim}
        queries = {f"{name}.q_b_proj": config.heads * config.head_dim}
        kind = config.kind(layer)
        sparse = kind.compressed == "sparse"
        if kind.compressed != "no":
            self._compress(source, f"{name}.compressor", config.head_dim, parts, sparse=sparse)
        if sparse:
            index = f"{name}.index"
            self._compress(source, index, c.index_dim, parts, sparse=True)
            parts[f"{index}.weights_proj"] = c.index_heads
            queries[f"{index}.q_b_proj"] = c.index_heads * c.index_dim
        self._sizes, self._query_sizes = list(parts.values()), list(queries.values())
        hidden = config.hidden_size
        self._inputs = _joined(source, name, parts, hidden)
        self._queries = _joined(source, f"{name}.queries", queries, c.query_rank)
        self._query_norm = source.norm(f"{name}.q_a_layernorm", c.query_rank)
        self._key_norm = source.norm(f"{name}.kv_norm", config.head_dim)
        # Each head of a query is normalised without weights; attention's scale goes along.
        ones = torch.full((config.head_dim,), config.scale)
        self._head_norm = RMSNorm(source.placed(ones), config.norm_eps)
        sinks = source.take(f"{name}.sinks", config.heads)
        self._sinks = sinks.to(source.device, torch.float32)
        self._index_scale = (c.index_dim * c.index_heads) ** -0.5
        self._output = _Output(source, name, c)

    def _compress(
        self,
        source: WeightSource,
        name: str,
        width: int,
        parts: dict[str, int],
        *,
        sparse: bool,
    ) -> None:
        """Make a compressor of this name, whose products join the others of the layer."""
        c = source.config.compressed
        assert c is not None
        doubled = 2 * width if sparse else width
        ratio = c.sparse_ratio if sparse else c.heavy_ratio
        parts[f"{name}.kv_proj"] = doubled
        parts[f"{name}.gate_proj"] = doubled
        bias = source.take(f"{name}.position_bias", ratio, doubled)
        norm = source.norm(f"{name}.norm", width)
        self._compressors.append(
            Compressor(source.placed(bias), norm, source.normalised, overlapping=sparse)
        )

    def __call__(
        self, hidden: torch.Tensor, norm: RMSNorm, plan: Plan, attention: Cache
    ) -> torch.Tensor:
        """[rows, hidden_size], normalised first by ``norm``; the same shape in new memory."""
        assert isinstance(attention, PagedStreams)
        assert isinstance(plan, StreamPlan)
        source, layer, rows = self._source, self._layer, len(hidden)
        latent, key, *raw = self._inputs(hidden, norm).split_with_sizes(self._sizes, -1)
        queries, *index_queries = self._queries(
            latent.contiguous(), self._query_norm
        ).split_with_sizes(self._query_sizes, -1)
        heads = queries.reshape(rows * self._heads, self._width)
        heads = source.normalised(heads, self._head_norm).view(rows, self._heads, self._width)
        heads = attention.turn(layer, plan, heads)
        key = source.normalised(key, self._key_norm).unsqueeze(1)
        attention.keep(layer, plan, attention.turn(layer, plan, key).squeeze(1))
        for number, compressor in enumerate(self._compressors):
            attention.compress(layer, plan, number, compressor, *raw[2 * number : 2 * number + 2])
        index = None
        if index_queries:
            turned = index_queries[0].reshape(rows, raw[-1].shape[1], -1)
            index = attention.turn(layer, plan, turned), raw[-1] * self._index_scale
        mixed = attention.mix(layer, plan, heads, self._sinks, index)
        return self._output(attention.turn(layer, plan, mixed, back=True))


class _Output:
    """Heads in groups, each of which becomes a short vector; then one product of all of these."""

    def __init__(self, source: WeightSource, name: str, c: Compressed) -> None:
        config = source.config
        inputs = config.heads * config.head_dim // c.output_groups
        whole = (c.output_groups * c.output_rank, inputs)

        def group(number: int) -> Linear:
            def weights() -> tuple[torch.Tensor, torch.Tensor | None]:
                rows = slice(number * c.output_rank, (number + 1) * c.output_rank)
                return source.take(f"{name}.o_a_proj.weight", *whole)[rows], None

            return source.product(f"{name}.o_a_proj.{number}", weights)

        self._groups = [group(number) for number in range(c.output_groups)]
        self._last = source.linear(f"{name}.o_b_proj", config.hidden_size, whole[0])

    def __call__(self, mixed: torch.Tensor) -> torch.Tensor:
        """[rows, heads, head_dim] -> [rows, hidden_size]."""
        parts = mixed.flatten(1).chunk(len(self._groups), -1)
        short = [
            product(part.contiguous()) for product, part in zip(self._groups, parts, strict=True)
        ]
        return self._last(torch.cat(short, -1))


def _joined(source: WeightSource, name: str, parts: dict[str, int], inputs: int) -> Linear:
    """Products of the same rows in one."""

    def weights() -> tuple[torch.Tensor, torch.Tensor | None]:
        tensors = [source.take(f"{part}.weight", size, inputs) for part, size in parts.items()]
        return torch.cat(tensors), None

    return source.product(name, weights)
