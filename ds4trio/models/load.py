"""A resolved model file or folder -> its config, weights and tokenizer."""

from __future__ import annotations

from ds4trio.models.folder import open_folder
from ds4trio.models.gguf.prepared import open_gguf
from ds4trio.models.loaded import LoadedModel
from ds4trio.models.resolve import ModelSource, Progress

__all__ = ["LoadedModel", "load_model"]


def load_model(source: ModelSource, *, progress: Progress | None = None) -> LoadedModel:
    """Open a model. Reads headers only; weights are read when they are asked for.

    Args:
        source: what ``resolve`` returned.
        progress: told of the conversion that a GGUF file needs the first time it is opened.

    Raises:
        ModelUnavailable: the files are damaged, incomplete, or of a kind that is not known.
    """
    if source.kind == "gguf":
        return open_gguf(source.name, source.path, progress=progress)
    return open_folder(source.name, source.path)
