"""Decode steps recorded once and replayed, for a few sizes of batch.

A decode step is hundreds of small kernels, and starting them one by one takes a processor longer
than a GPU needs to run them. A CUDA graph starts all at once, but has fixed shapes and addresses:
so a step is filled up to the next size with rows that are thrown away, and its inputs lie in
buffers that stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from ds4trio.engine.attention import ROW_BY_ROW, PagedAttention, Span
from ds4trio.engine.decoder import Decoder
from ds4trio.engine.kv_cache import KVCache
from ds4trio.engine.paged import SPLIT
from ds4trio.engine.paged_parts import PagedRows

__all__ = ["SIZES", "CudaRecorder", "RecordedSteps", "Recorder", "run_eagerly"]

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Rows that a recorded step has; larger steps run as they are, they keep a GPU busy anyway."""

ALIGNMENT = 32
"""Sections of the input buffer begin at multiples of so many numbers: a kernel is compiled once
more for an address that is less round."""

Step = Callable[[], None]


class Recorder(Protocol):
    """Turns a step into something that repeats it.

    It may run the step, whose inputs are in place and which does the same when it is repeated.
    """

    def __call__(self, step: Step, /) -> Step: ...


def run_eagerly(step: Step) -> Step:
    """The recorder of devices that cannot record: to repeat a step is to run it."""
    return step


class CudaRecorder:
    """Records CUDA graphs, which share one pool of memory since only one runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, step: Step, /) -> Step:
        # Run it once beforehand: kernels are compiled and libraries take their memory, which must
        # not happen while recording.
        now = torch.cuda.current_stream()
        self._stream.wait_stream(now)
        with torch.cuda.stream(self._stream):
            step()
        now.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        ):
            step()
        replay: Step = graph.replay
        return replay


class RecordedSteps:
    """Steps of single rows and short chunks, recorded when a size is first met.

    Args:
        decoder: evaluates.
        attention: with kernels; the padding page of its cache takes what rows of padding write.
        vocabulary: columns of the logits.
        record: how.
        sizes: rows that recorded steps may have, rising.
    """

    def __init__(
        self,
        decoder: Decoder,
        attention: PagedAttention,
        *,
        vocabulary: int,
        record: Recorder,
        sizes: Sequence[int] = SIZES,
    ) -> None:
        self._decoder = decoder
        self._attention = attention
        self._record = record
        self._sizes = tuple(sizes)
        self._recorded: dict[tuple[int, int], tuple[_Inputs, Step]] = {}
        self._logits = torch.empty((sizes[-1], vocabulary), device=attention.cache.keys.device)

    def __len__(self) -> int:
        """How many steps are recorded."""
        return len(self._recorded)

    def suits(self, spans: Sequence[Span]) -> bool:
        """Whether a step of these spans is one that is recorded."""
        counts = [span.count for span in spans]
        return max(counts) <= ROW_BY_ROW and sum(counts) <= self._sizes[-1]

    def __call__(self, tokens: Sequence[int], spans: Sequence[Span]) -> torch.Tensor:
        """Evaluate a step that suits.

        Args:
            tokens: of all spans, in turn.
            spans: as ``PagedAttention.order`` has them.

        Returns:
            Logits, float32 [tokens, vocabulary], valid until the next call.
        """
        size = next(size for size in self._sizes if size >= len(tokens))
        splits = _power_of_two(-(-max(span.end for span in spans) // SPLIT))
        key = (size, splits)
        if key in self._recorded:
            inputs, repeat = self._recorded[key]
            inputs.fill(tokens, spans)
        else:
            merged = self._attention.batch_invariant
            inputs = _Inputs(self._attention.cache, size, splits, merged=merged)
            inputs.fill(tokens, spans)
            repeat = self._record(lambda: self._evaluate(inputs))
            self._recorded[key] = inputs, repeat
        repeat()
        return self._logits[: len(tokens)]

    def _evaluate(self, inputs: _Inputs) -> None:
        where = inputs.positions, inputs.pages, inputs.offsets
        plan = self._attention.plan_over(*where, (inputs.part,))
        logits = self._decoder(inputs.tokens, plan, self._attention, None)
        self._logits[: len(logits)].copy_(logits)


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


class _Inputs:
    """What a recorded step reads, in one buffer that one copy fills.

    A row that is padding is token 0 at position 0 of the padding page, and sees itself.

    Attributes:
        tokens, positions, pages, offsets: int32 [size], sections of the buffer.
        part: how the rows attend, over further sections.
    """

    def __init__(self, cache: KVCache, size: int, splits: int, *, merged: bool) -> None:
        self._cache = cache
        self._size = size
        pages = -(-splits * SPLIT // cache.page_size)
        places: list[slice] = []
        end = 0
        for length in (size, size, size, size, size, size * pages):
            places.append(slice(end, end + length))
            end += -(-length // ALIGNMENT) * ALIGNMENT
        self._host = torch.zeros(end, dtype=torch.int32)
        self._device = torch.zeros(end, dtype=torch.int32, device=cache.keys.device)
        numbers = self._host.numpy()
        self._rows = [numbers[place] for place in places[:5]]
        self._tables = numbers[places[5]].reshape(size, pages)
        self._held: list[list[int]] = [[] for _ in range(size)]
        self.tokens, self.positions, self.pages, self.offsets, lengths, tables = (
            self._device[place] for place in places
        )
        self.part = PagedRows(
            slice(0, size), tables.view(size, pages), lengths, splits, merged=merged
        )

    def fill(self, tokens: Sequence[int], spans: Sequence[Span]) -> None:
        """Bring a step's rows to the device."""
        page_size, padding = self._cache.page_size, self._cache.padding_page
        lone = [(span.pages, place) for span in spans for place in range(span.start, span.end)]
        more = self._size - len(lone)
        positions = [place for _, place in lone]
        columns = (
            [*tokens, *[0] * more],
            [*positions, *[0] * more],
            [*[pages[place // page_size] for pages, place in lone], *[padding] * more],
            [*[place % page_size for place in positions], *[0] * more],
            [*[place + 1 for place in positions], *[1] * more],
        )
        for row, column in zip(self._rows, columns, strict=True):
            row[:] = column
        for number, (pages, place) in enumerate(lone):
            self._hold(number, pages[: place // page_size + 1])
        for number in range(len(lone), self._size):
            self._hold(number, (padding,))
        # From memory that is not pinned: it has been read when the call returns, so that the next
        # step may write there whether or not this one has run.
        self._device.copy_(self._host)

    def _hold(self, row: int, pages: Sequence[int]) -> None:
        """Write a row's table, or only its new pages; most rows are those of the step before."""
        held = self._held[row]
        known = len(held)
        if held != list(pages[:known]):
            known = 0
        if known < len(pages):
            self._tables[row, known : len(pages)] = pages[known:]
        if known != len(pages):
            self._held[row] = list(pages)
