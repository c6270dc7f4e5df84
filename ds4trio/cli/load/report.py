"""The report of a run, for people: tables in plain text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ds4trio.cli.load.display import one_line
from ds4trio.cli.load.document import Document, LevelFigures
from ds4trio.cli.load.figures import Figures, Ratio, Spread

__all__ = ["report"]

HEADINGS: Final = (
    *("load", "server", "requests", "tokens out", "tokens/s", "per user"),
    *("first ms p50", "p95", "p99", "max", "gap ms p50", "p95", "p99", "max"),
)
RATIOS: Final = {
    "tokens_per_second": "tokens/s",
    "user_tokens_per_second": "per user",
    "first_token_p50": "first p50",
    "first_token_p99": "first p99",
    "gap_p50": "gap p50",
    "gap_p99": "gap p99",
}
"""Every ratio, with its heading."""
UNEQUAL: Final = 1.1
"""Mean sizes further apart than this are worth a remark."""


def report(of: Document) -> str:
    """As text that ends in a line break."""
    parts = ["\n".join([*_servers(of), f"seed {of.settings['seed']}"])]
    if of.levels:
        parts.append(_table([HEADINGS, *_rows(of.levels)]))
    later = [*_later_turns(of.levels)]
    if later:
        parts.append("First token by turn, ms, p50:\n" + _table(later))
    compared = [level for level in of.levels if level.ratios]
    if compared:
        parts.append(
            "A by B, median of the rounds (least to most); for tokens more is better, for times "
            "less:\n" + _table([("load", *RATIOS.values()), *map(_ratio_row, compared)])
        )
    replayed = [level for level in of.levels if level.raw]
    if replayed:
        parts.append(
            "A by its engine alone, tokens/s, median of the rounds (least to most):\n"
            + _table([("load", "served/raw"), *map(_raw_ratio_row, replayed)])
        )
    remarks = [*_remarks(of)]
    if remarks:
        parts.append("\n".join(remarks))
    return "\n\n".join(parts) + "\n"


def _servers(of: Document) -> Iterator[str]:
    for name, server in of.servers.items():
        model = f", model {one_line(server['model'])}" if server["model"] else ""
        yield f"{name}: {server['url']}, {server['api']}{model}"
    if of.raw is not None:
        yield (
            f"raw: the engine alone, model {of.raw.model}, {of.raw.dtype} on {of.raw.device}, "
            f"{of.raw.threads} thread{'' if of.raw.threads == 1 else 's'}"
        )


def _rows(levels: Sequence[LevelFigures]) -> Iterator[tuple[str, ...]]:
    for level in levels:
        for name, server in level.servers.items():
            found = server.overall
            yield (
                level.level,
                name,
                str(found.requests),
                str(found.output_tokens),
                f"{found.tokens_per_second:.1f}",
                _number(found.user_tokens_per_second),
                *_times(found.first_token_seconds),
                *_times(found.gap_seconds),
            )
        if level.raw is not None:
            raw = level.raw
            yield (
                *(level.level, "raw", str(raw.requests), str(raw.output_tokens)),
                f"{raw.tokens_per_second:.1f}",
                *("-" for _ in HEADINGS[5:]),
            )


def _later_turns(levels: Sequence[LevelFigures]) -> Iterator[tuple[str, ...]]:
    """Nothing, where conversations have one turn."""
    found = [
        (level.level, name, server.overall.first_token_by_turn)
        for level in levels
        for name, server in level.servers.items()
    ]
    turns = max((len(by_turn) for _, _, by_turn in found), default=0)
    if turns < 2:
        return
    yield ("load", "server", *(f"turn {turn + 1}" for turn in range(turns)))
    for level_name, name, by_turn in found:
        missing = ["-"] * (turns - len(by_turn))
        yield (level_name, name, *(_times(times)[0] for times in by_turn), *missing)


def _ratio_row(level: LevelFigures) -> tuple[str, ...]:
    return (level.level, *(_ratio(level.ratios.get(name)) for name in RATIOS))


def _raw_ratio_row(level: LevelFigures) -> tuple[str, ...]:
    return (level.level, _ratio(level.raw.served_by_raw if level.raw else None))


def _ratio(ratio: Ratio | None) -> str:
    if ratio is None:
        return "-"
    return f"{ratio.median:.2f} ({ratio.min:.2f} to {ratio.max:.2f})"


def _remarks(of: Document) -> Iterator[str]:
    for level in of.levels:
        for name, server in level.servers.items():
            found = server.overall
            where = f"{level.level}, {name}"
            if found.errors:
                codes = ", ".join(f"{one_line(code)} {n}" for code, n in found.errors.items())
                said = f" (the latest: {one_line(found.message)})" if found.message else ""
                yield f"{where}: failed requests: {codes}{said}"
            if found.short_answers:
                mean = found.output_tokens / found.requests
                yield (
                    f"{where}: {found.short_answers} of {found.requests} answers ended before "
                    f"{of.settings['output_tokens']} tokens; the mean is {mean:.1f}"
                )
            if found.estimated:
                yield f"{where}: no usage from the server; every event of text counts as a token"
            if not found.complete:
                yield f"{where}: cut short; requests that were running are not counted"
        yield from _unequal(level)


def _unequal(level: LevelFigures) -> Iterator[str]:
    """A comparison where one server had less to read or to write is not quite one."""
    if len(level.servers) != 2:
        return
    first, second = (server.overall for server in level.servers.values())
    for what, ours, theirs in (
        ("prompts", _mean(first.input_tokens, first), _mean(second.input_tokens, second)),
        ("answers", _mean(first.output_tokens, first), _mean(second.output_tokens, second)),
    ):
        if ours and theirs and max(ours, theirs) > UNEQUAL * min(ours, theirs):
            yield (
                f"{level.level}: the {what} differ in size, {ours:.1f} and {theirs:.1f} tokens "
                "on average"
            )


def _mean(tokens: int, of: Figures) -> float:
    return tokens / of.requests if of.requests else 0.0


def _times(times: Spread | None) -> tuple[str, ...]:
    """Seconds to milliseconds."""
    if times is None:
        return ("-",) * 4
    seconds = (times.p50, times.p95, times.p99, times.max)
    return tuple(f"{1000 * value:.{0 if value >= 0.1 else 1}f}" for value in seconds)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need to be, the first to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)
