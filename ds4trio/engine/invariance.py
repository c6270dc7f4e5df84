"""Whether a row has the same bits in any company: what keeping that costs, and a look at the start.

The parts are made so that it holds (``make_linear``, ``make_attention``, ``sample``). Some of it
rests on what a device or a library does, however, and a promise is only worth making where it has
been seen to hold.
"""

from __future__ import annotations

import torch

from ds4trio.engine.attention import Cache, Span, cache_dtype
from ds4trio.engine.blocks import BLOCK
from ds4trio.engine.decoder import Decoder
from ds4trio.engine.linear import is_native
from ds4trio.engine.paged import has_kernels
from ds4trio.engine.step import EngineInfo
from ds4trio.errors import ModelUnavailable

__all__ = ["cost_of_invariance", "require_invariance"]

LENGTH = 2 * BLOCK + 5
"""Positions of the sequence that is looked at: more than two blocks of rows."""

PIECES = (1, 2, BLOCK + 1)
"""How it is cut the second time; the rest follows."""


def cost_of_invariance(dtype: str, device: torch.device) -> str:
    """What batch invariance costs on a device and in a dtype, for people."""
    if is_native(dtype, device):
        return f"costs nothing: in {dtype} on a CPU a row has the same bits in any company anyway"
    if device.type == "cpu":
        kept = cache_dtype(dtype, device, batch_invariant=True)
        return (
            "products go in blocks of fixed size, so that prompts take up to about twice as long"
            + (", and keys and values take twice the memory" if kept == torch.float32 else "")
        )
    if has_kernels(device):
        return (
            "products use one size of tile instead of the library's choice, and attention goes row "
            "by row, so that steps take longer, those with long prompts most"
        )
    return (
        "products go in blocks of fixed size and attention goes one row after the other, so that "
        "steps of many rows take several times as long"
    )


@torch.inference_mode()
def require_invariance(
    decoder: Decoder, attention: Cache, info: EngineInfo, device: torch.device
) -> None:
    """Evaluate a short sequence in one piece by itself, then in pieces beside another, and compare.

    Writes to the first pages, which must be nobody's yet.

    Raises:
        ModelUnavailable: the bits of the logits differ.
    """
    length = min(LENGTH, info.longest_sequence)
    used = info.pages_for(length)
    pages = list(range(used))
    company = Span([used], 0, 1) if info.total_pages > used else None

    def logits(span: Span, beside: Span | None) -> torch.Tensor:
        spans = [span] if beside is None else [span, beside]
        order = attention.order(spans)
        tokens: list[int] = []
        first = 0
        for i in order:
            if i == 0:
                first = len(tokens)
            places = range(spans[i].start, spans[i].end)
            tokens.extend((7 + 31 * place) % info.vocab_size for place in places)
        rows = torch.tensor(tokens, dtype=torch.int64).to(device)
        plan = attention.plan([spans[i] for i in order])
        return decoder(rows, plan, attention, None)[first : first + span.count].clone()

    whole = logits(Span(pages, 0, length), None)
    done = 0
    for count in (*PIECES, length):
        count = min(count, length - done)
        if not count:
            break
        found = logits(Span(pages, done, count), company)
        if not torch.equal(found, whole[done : done + count]):
            raise ModelUnavailable(
                f"--batch-invariant cannot be kept in {info.dtype} on {info.device}: the same row "
                "had other bits in other company; leave it out, or use another --dtype or --device"
            )
        done += count
