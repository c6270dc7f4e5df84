"""ds4trio serves one language model to many people at once, on Trio."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
