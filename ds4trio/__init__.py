"""ds4trio serves one language model to many people at once, on Trio."""

from __future__ import annotations

import os

__all__ = ["__version__"]

__version__ = "0.1.0"

# Before anything imports torch: OpenMP's threads wait for one another by spinning, for as long as
# 300,000 turns. Where another process, or this one's event loop, wants the core, a step then takes
# ten times as long. This many turns lose nothing on a quiet machine (docs/performance.md).
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
