"""How much memory keys and values get, and how long a conversation may be, when nobody says.

No tensors here: it is arithmetic over what the machine has and what the model needs.
"""

from __future__ import annotations

from dataclasses import dataclass

from ds4trio.errors import ModelUnavailable
from ds4trio.settings import LEAST_CONTEXT

__all__ = ["MemoryPlan", "plan_memory"]

LEAST_CHOSEN = 512
"""Positions without which serving makes no sense, where nobody says how many; less only where the
model has less."""

USUAL_CONTEXT = 8192
"""Positions that one conversation gets even where that is more than the usual share of memory."""

SESSIONS = 64
"""Conversations of full length, beyond which more memory would be of no use."""

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What was chosen.

    Attributes:
        kv_memory: bytes for keys and values.
        context: most positions of one conversation; they fit into ``kv_memory``.
    """

    kv_memory: int
    context: int


def plan_memory(
    *,
    total: int,
    available: int,
    weights: int,
    position_bytes: int,
    model_context: int,
    page_size: int = 16,
    shared: bool = True,
    kv_memory: int | None = None,
    context: int | None = None,
) -> MemoryPlan:
    """Choose KV memory and context.

    Main memory is shared with other programs, so keys and values get an eighth of it, or as much
    as one conversation of ``USUAL_CONTEXT`` (or of the context asked for) takes; a device's own
    memory they get whole. Never more than is free beside the weights and a reserve for the system
    and for what a step needs, and never more than ``SESSIONS`` full conversations could fill.

    Args:
        total: bytes of the memory in question.
        available: bytes of it that are free, before the weights are read.
        weights: bytes that the weights will take; 0 once they are in.
        position_bytes: bytes of keys and values of one position, in all layers.
        model_context: positions that the model was made for.
        page_size: positions in a page; memory is used in whole pages.
        shared: it is main memory, not a device's own.
        kv_memory, context: chosen by the user; None for what is chosen here. A context beyond the
            model's is the model's.

    Raises:
        ModelUnavailable: the weights alone do not fit, or too few positions do beside them. Where
            the user chose ``kv_memory`` only the weights are held against what is free, and that
            against all there is.
    """
    reserve = min(max(total // 20, GIB // 4), 4 * GIB) if shared else total // 16
    if weights > available:
        raise ModelUnavailable(
            f"The weights need {_gib(weights)} and {_gib(available)} of {_gib(total)} are free; "
            "a smaller model or quantisation would fit."
        )
    page = position_bytes * page_size
    most = min(context or model_context, model_context)
    if kv_memory is not None:
        held = kv_memory // page * page_size
        needed = min(most, LEAST_CONTEXT)
        if held < needed:
            raise ModelUnavailable(
                f"--kv-memory: {kv_memory} bytes hold {held} tokens of this model, too few for any "
                f"conversation; give at least {_pages(needed, page_size) * page}."
            )
        if kv_memory > total:
            raise ModelUnavailable(
                f"--kv-memory: {_gib(kv_memory)} are asked for, and there are {_gib(total)} in all."
            )
        return MemoryPlan(kv_memory, min(most, held))
    free = max(available - weights - reserve, 0)
    one = _pages(most if context else min(most, USUAL_CONTEXT), page_size) * page
    share = max(total // 8, one) if shared else free
    useful = _pages(most, page_size) * page * SESSIONS
    chosen = min(free, share, useful) // page * page
    fits = min(most, chosen // page * page_size)
    needed = most if context else min(most, LEAST_CHOSEN)
    if fits < needed:
        raise ModelUnavailable(
            f"Beside the weights ({_gib(weights)}) {_gib(free)} of {_gib(total)} are free for keys "
            f"and values, and {needed} tokens of context need {_gib(needed * position_bytes)}; "
            + ("a smaller --ctx" if context else "a smaller model or quantisation")
            + " would fit."
        )
    return MemoryPlan(chosen, fits)


def _pages(positions: int, page_size: int) -> int:
    return -(-positions // page_size)


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB" if size < 100 * GIB else f"{size / GIB:.0f} GiB"
