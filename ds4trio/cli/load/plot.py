"""The figures of a run as a picture: throughput, first tokens and gaps, level by level."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ds4trio.cli.load.document import Document, LevelFigures
from ds4trio.cli.load.figures import Figures, Spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["FORMATS", "can_plot", "plot"]

FORMATS: Final = (".svg", ".png")
COLOURS: Final = {"A": "#1f5fa8", "B": "#c1591b", "raw": "#6b6b6b"}
PERCENTILES: Final = {"p50": "-", "p95": "--", "p99": ":"}
"""Each with the style of its line."""


def can_plot() -> bool:
    """Whether matplotlib is installed. It is not part of the plain installation."""
    return importlib.util.find_spec("matplotlib") is not None


def plot(of: Document, path: Path) -> None:
    """Draw a run with at least one level into a file, SVG or PNG by its name.

    Raises:
        OSError: the file cannot be written.
    """
    # Only here: it takes most of a second to import. Without pyplot there is no window.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.2), layout="constrained")
    throughput, first, gaps = figure.subplots(1, 3)
    _throughput(throughput, of)
    _times(first, of, "time to the first token, ms", lambda found: found.first_token_seconds)
    _times(gaps, of, "time between events of an answer, ms", lambda found: found.gap_seconds)
    _caption(figure, of)
    # No date in the file: the same figures give the same picture.
    figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def _throughput(axes: Axes, of: Document) -> None:
    for name in of.servers:
        values = [level.servers[name].overall.tokens_per_second for level in of.levels]
        _line(axes, of, values, name, "-", name)
    if any(level.raw for level in of.levels):
        alone = [level.raw.tokens_per_second if level.raw else None for level in of.levels]
        _line(axes, of, alone, "raw", "--", "A's engine alone")
    _finish(axes, of, "tokens a second, all users together")


def _times(axes: Axes, of: Document, title: str, pick: Callable[[Figures], Spread | None]) -> None:
    for name in of.servers:
        spreads = [pick(level.servers[name].overall) for level in of.levels]
        for percentile, style in PERCENTILES.items():
            values = [
                None if spread is None else 1000 * getattr(spread, percentile) for spread in spreads
            ]
            _line(axes, of, values, name, style, f"{name} {percentile}")
    _finish(axes, of, title)


def _line(
    axes: Axes, of: Document, values: Sequence[float | None], colour: str, style: str, label: str
) -> None:
    """One point a level; where there is no figure the line has a hole."""
    heights = [float("nan") if value is None else value for value in values]
    places = range(len(of.levels))
    axes.plot(places, heights, style, color=COLOURS[colour], marker="o", markersize=4, label=label)


def _finish(axes: Axes, of: Document, title: str) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xticks(range(len(of.levels)), [_short(level) for level in of.levels])
    axes.set_xlabel("conversations a second" if of.levels[0].users is None else "users")
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=8)


def _short(level: LevelFigures) -> str:
    return f"{level.rate:g}" if level.users is None else str(level.users)


def _caption(figure: Figure, of: Document) -> None:
    servers = "; ".join(
        f"{name}: {server['url']}, {server['api']}" for name, server in of.servers.items()
    )
    figure.suptitle(
        f"{servers}. About {of.settings['prompt_tokens']} tokens in, "
        f"{of.settings['output_tokens']} out; {of.settings['prompts']}",
        fontsize=9,
        parse_math=False,
    )
