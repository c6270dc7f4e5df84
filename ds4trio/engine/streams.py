"""The cache of DeepSeek V4's attention, and attention over it, in the framework's operations.

Everything that is kept lies in pages, like other models' keys and values: the key of each position,
what is to be compressed of it, and in the page of a compressed group's last position the entry that
came of it. So sequences share pages, lose them and get them back in the same way.

Rows attend one after the other, and entries are made one after the other. Every operation then has
a shape that depends on the position alone, so that a row has the same bits in any company. It is
slow; products, where the weights are, are not done here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from ds4trio.engine.attention_parts import Span
from ds4trio.engine.norm import RMSNorm
from ds4trio.engine.rope import Rotary
from ds4trio.models.config import LayerKind, ModelConfig

__all__ = ["Compressor", "PagedStreams", "StreamPlan"]


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """What is the same for all layers of a step.

    Attributes:
        spans: of the step.
        positions: int64 [rows], where each row stands in its sequence.
        places: int64 [rows], ``page * page_size + offset`` of each.
        turns: of the rows, for each of the model's rotary embeddings.
    """

    spans: tuple[Span, ...]
    positions: torch.Tensor
    places: torch.Tensor
    turns: tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class Compressor:
    """How positions become an entry: a weighted sum in each dimension, whose weights are a softmax
    over the positions.

    Attributes:
        bias: [ratio, width], added to what the softmax is of, by a position's place in its group.
        norm: of an entry.
        normalise: applies it.
        overlapping: the first half of what a position says is for the entry of the next group, the
            second half for its own.
    """

    bias: torch.Tensor
    norm: RMSNorm
    normalise: Callable[[torch.Tensor, RMSNorm], torch.Tensor]
    overlapping: bool


@dataclass(frozen=True, slots=True)
class _Compressed:
    """What is kept for one compressor.

    Attributes:
        values, weights: [places, width], of positions.
        entries: [pages, entries of a page, entry width].
    """

    values: torch.Tensor
    weights: torch.Tensor
    entries: torch.Tensor


class PagedStreams:
    """The cache of models with compressed attention, in place of an ``Attention``: their layers do
    more between storing and attending (``compressed.py``).

    Args:
        config: of the model.
        context_length: positions that a sequence can have.
        pages: of the cache.
        page_size: positions in each.
        dtype, device: of what is kept.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        context_length: int,
        pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        assert config.compressed is not None
        self._config = config
        self._compressed = config.compressed
        self._page_size = page_size
        self._device = device
        self._rotaries = [
            Rotary(rope, context_length, device, complex_numbers=False) for rope in config.ropes
        ]
        places = pages * page_size

        def empty(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        self._keys = [empty(places, config.head_dim) for _ in range(config.layers)]
        self._kept: list[list[_Compressed]] = []
        for layer in range(config.layers):
            kind = config.kind(layer)
            widths = _entry_widths(config, kind)
            double = 2 if kind.compressed == "sparse" else 1
            ratio = self._compressed.ratio(kind)
            slots = -(-page_size // ratio)
            self._kept.append(
                [
                    _Compressed(
                        empty(places, double * width),
                        empty(places, double * width),
                        empty(pages, slots, width),
                    )
                    for width in widths
                ]
            )

    def tensors(self) -> Iterator[torch.Tensor]:
        """Everything that is kept."""
        yield from self._keys
        for layer in self._kept:
            for kept in layer:
                yield from (kept.values, kept.weights, kept.entries)

    def order(self, spans: Sequence[Span]) -> list[int]:
        """As they come."""
        return list(range(len(spans)))

    def plan(self, spans: Sequence[Span]) -> StreamPlan:
        """See ``Attention``."""
        size = self._page_size
        where = [(s.pages[p // size], p) for s in spans for p in range(s.start, s.end)]
        positions = torch.tensor([p for _, p in where], dtype=torch.int64)
        pages = torch.tensor([page for page, _ in where], dtype=torch.int64)
        places = (pages * size + positions % size).to(self._device)
        positions = positions.to(self._device)
        turns = tuple(rotary.at(positions) for rotary in self._rotaries)
        return StreamPlan(tuple(spans), positions, places, turns)

    def turn(
        self, layer: int, plan: StreamPlan, heads: torch.Tensor, *, back: bool = False
    ) -> torch.Tensor:
        """Turn the last dimensions of [rows, heads, width] by the rows' positions, or back."""
        number = self._config.kind(layer).rope
        assert number is not None
        turns = plan.turns[number]
        if back:
            turns = turns * turns.new_tensor([1.0, -1.0])
        return self._turned(number, heads, turns)

    def _turned(self, number: int, heads: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        dims = self._compressed.turned_dim
        last = self._rotaries[number].turn(heads[..., -dims:], turns)
        return torch.cat((heads[..., :-dims], last), -1)

    def keep(self, layer: int, plan: StreamPlan, keys: torch.Tensor) -> None:
        """Store the rows' keys, [rows, head_dim], turned."""
        self._keys[layer][plan.places] = keys.to(self._keys[layer].dtype)

    def compress(
        self,
        layer: int,
        plan: StreamPlan,
        number: int,
        compressor: Compressor,
        values: torch.Tensor,
        weights: torch.Tensor,
    ) -> None:
        """Store what is to be compressed of the rows, and make the entries that are complete now.

        Args:
            layer: of the decoder.
            plan: of this step.
            number: of the layer's compressor.
            compressor: what is done.
            values, weights: [rows, width], what is summed and what the softmax is of.
        """
        kept, ratio = self._kept[layer][number], len(compressor.bias)
        biased = weights + compressor.bias.index_select(0, plan.positions % ratio)
        kept.values[plan.places] = values.to(kept.values.dtype)
        kept.weights[plan.places] = biased.to(kept.weights.dtype)
        rope = self._config.kind(layer).rope
        assert rope is not None
        for span in plan.spans:
            for group in range(span.start // ratio, span.end // ratio):
                entry = self._entry(kept, compressor, span, group, ratio)
                at = torch.tensor([group * ratio], device=self._device)
                turns = self._rotaries[rope].at(at)
                turned = self._turned(rope, entry.unsqueeze(1), turns)
                page, slot = self._entry_place(span, group, ratio)
                kept.entries[page, slot] = turned.flatten().to(kept.entries.dtype)

    def _entry(
        self, kept: _Compressed, compressor: Compressor, span: Span, group: int, ratio: int
    ) -> torch.Tensor:
        """[1, width]"""
        own = self._places(span, group * ratio, (group + 1) * ratio)
        values, weights = kept.values[own].float(), kept.weights[own].float()
        if compressor.overlapping:
            half = values.shape[1] // 2
            values, weights = values[:, half:], weights[:, half:]
            if group:
                before = self._places(span, (group - 1) * ratio, group * ratio)
                values = torch.cat((kept.values[before, :half].float(), values))
                weights = torch.cat((kept.weights[before, :half].float(), weights))
        summed = (values * weights.softmax(0)).sum(0, keepdim=True)
        return compressor.normalise(summed.to(kept.entries.dtype), compressor.norm)

    def mix(
        self,
        layer: int,
        plan: StreamPlan,
        queries: torch.Tensor,
        sinks: torch.Tensor,
        index: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> torch.Tensor:
        """Attend.

        Args:
            layer: of the decoder.
            plan: of this step.
            queries: [rows, heads, head_dim], turned and scaled.
            sinks: float32 [heads].
            index: of a sparse layer, queries of its index ([rows, index heads, index width],
                turned) and the weights of its heads ([rows, index heads]).

        Returns:
            [rows, heads, head_dim].
        """
        kind = self._config.kind(layer)
        mixed = torch.empty_like(queries)
        row = 0
        for span in plan.spans:
            for position in range(span.start, span.end):
                seen = self._seen(layer, kind, span, position)
                if kind.compressed != "no":
                    chosen = None if index is None else (index[0][row], index[1][row])
                    seen = torch.cat((seen, self._entries(layer, kind, span, position, chosen)))
                mixed[row] = _attend(queries[row].clone(), seen, sinks)
                row += 1
        return mixed

    def _seen(self, layer: int, kind: LayerKind, span: Span, position: int) -> torch.Tensor:
        first = max(0, position - kind.window + 1) if kind.window else 0
        return self._keys[layer].index_select(0, self._places(span, first, position + 1))

    def _entries(
        self,
        layer: int,
        kind: LayerKind,
        span: Span,
        position: int,
        index: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> torch.Tensor:
        """The entries that a position sees, [entries, head_dim], in their order."""
        ratio = self._compressed.ratio(kind)
        groups = list(range((position + 1) // ratio))
        used = self._compressed.index_used
        if index is not None and len(groups) > used:
            queries, weights = index
            keys = self._gathered(self._kept[layer][1].entries, span, groups, ratio).float()
            scores = torch.relu(queries.float().clone() @ keys.T)
            total = (scores * weights.float().clone().unsqueeze(1)).sum(0)
            # Of equal ones, as those are that no head is for, the earliest.
            order = total.argsort(descending=True, stable=True)
            groups = sorted(order[:used].tolist())
        return self._gathered(self._kept[layer][0].entries, span, groups, ratio)

    def _gathered(
        self, entries: torch.Tensor, span: Span, groups: Sequence[int], ratio: int
    ) -> torch.Tensor:
        where = [self._entry_place(span, group, ratio) for group in groups]
        flat = [page * entries.shape[1] + slot for page, slot in where]
        places = torch.tensor(flat, dtype=torch.int64, device=self._device)
        return entries.flatten(0, 1).index_select(0, places)

    def _entry_place(self, span: Span, group: int, ratio: int) -> tuple[int, int]:
        """Page and place in it of the entry of a group: where its last position is."""
        last = group * ratio + ratio - 1
        return span.pages[last // self._page_size], last % self._page_size // ratio

    def _places(self, span: Span, first: int, end: int) -> torch.Tensor:
        size = self._page_size
        places = [span.pages[p // size] * size + p % size for p in range(first, end)]
        return torch.tensor(places, dtype=torch.int64, device=self._device)


def _entry_widths(config: ModelConfig, kind: LayerKind) -> list[int]:
    """Of what a layer compresses: its keys, and those of its index."""
    assert config.compressed is not None
    match kind.compressed:
        case "sparse":
            return [config.head_dim, config.compressed.index_dim]
        case "heavy":
            return [config.head_dim]
    return []


def _attend(queries: torch.Tensor, seen: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    """Softmax attention of one row, with a score more for each head whose value is zero."""
    scores = (queries @ seen.T).float()
    top = torch.maximum(scores.amax(-1), sinks).unsqueeze(-1)
    powers = (scores - top).exp()
    total = powers.sum(-1, keepdim=True) + (sinks.unsqueeze(-1) - top).exp()
    return (powers / total).to(queries.dtype) @ seen
