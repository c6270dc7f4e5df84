"""Models in which some layers see a window of the last positions only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ds4trio.models.architecture import LayerKind
from ds4trio.models.families.gguf_file import GgufFile
from ds4trio.models.families.hf_file import HfFile
from ds4trio.models.fields import refuse

__all__ = ["every", "gguf_windows", "hf_window", "hf_windows", "kinds_of"]

LAYER_TYPES = {"full_attention": False, "sliding_attention": True}
"""What transformers calls a layer that sees everything, and one that sees a window."""


def every(count: int) -> Callable[[int], bool]:
    """Windows in all layers but the last of each ``count``; 0 and 1: in none."""
    return lambda layer: count > 1 and (layer + 1) % count != 0


def hf_window(file: HfFile, default: int | None = None) -> int | None:
    """``sliding_window``, where null says that there is none. Raises ModelUnavailable for what is
    not a number of positions."""
    if "sliding_window" not in file.values:
        return default
    window = file.values["sliding_window"]
    return None if window is None else file.read.integer("sliding_window")


def hf_windows(file: HfFile, layers: int, otherwise: Callable[[int], bool]) -> list[bool]:
    """Which layers see a window, by ``layer_types``.

    Args:
        file: the config.
        layers: how many there are.
        otherwise: says it of a layer where the config does not.

    Raises:
        ModelUnavailable: a type that is not known, or not one for each layer.
    """
    types = file.values.get("layer_types")
    if types is None:
        return [otherwise(layer) for layer in range(layers)]
    if not isinstance(types, list) or len(types) != layers:
        refuse(f"layer_types is not a list of {layers} layers")
    for kind in types:
        if not isinstance(kind, str) or kind not in LAYER_TYPES:
            refuse(f"layers of type {kind!r} are not known; known: {', '.join(LAYER_TYPES)}")
    return [LAYER_TYPES[kind] for kind in types]


def gguf_windows(file: GgufFile, layers: int, otherwise: Callable[[int], bool]) -> list[bool]:
    """The same by ``attention.sliding_window_pattern``: one value for each layer, or the number of
    layers of which the last sees everything.

    Raises:
        ModelUnavailable: it is something else.
    """
    key = f"{file.read.prefix}attention.sliding_window_pattern"
    pattern = file.metadata.get(key)
    if isinstance(pattern, int) and not isinstance(pattern, bool):
        otherwise = every(pattern)
    elif pattern is not None:
        if not isinstance(pattern, list) or len(pattern) != layers:
            refuse(f"{key} is not a list of {layers} layers")
        return [bool(windowed) for windowed in pattern]
    return [otherwise(layer) for layer in range(layers)]


def kinds_of(
    windowed: Sequence[bool], window: int | None, context_length: int, *, local: int = 0
) -> tuple[LayerKind, ...]:
    """The kinds of layers; none where all are plain.

    Args:
        windowed: of each layer, whether it sees a window.
        window: how many positions that are.
        context_length: a window that holds all of it is none.
        local: which rotary embedding layers with a window have.

    Raises:
        ModelUnavailable: layers have windows, and nothing says how wide.
    """
    if any(windowed) and (window is None or window < 1):
        refuse(f"layers see a window of the last positions, and its width is {window}")
    width = 0 if window is None or window >= context_length else window
    plain, near = LayerKind(), LayerKind(window=width, rope=local)
    kinds = tuple(near if mark else plain for mark in windowed)
    return kinds if any(kind != plain for kind in kinds) else ()
