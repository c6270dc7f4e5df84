"""How many threads share the work of a kernel."""

from __future__ import annotations

import numba
import torch

__all__ = ["workers"]


def workers() -> int:
    """As many as torch has been told to use (``torch.set_num_threads``)."""
    most: int = numba.config.NUMBA_NUM_THREADS
    return min(torch.get_num_threads(), most)
