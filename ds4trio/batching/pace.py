"""How many prompt tokens a step may carry beside sessions that decode, so that these go on evenly.

Everyone who reads along feels the time of a step as the gap between two tokens. The promise: a step
takes at most ``LIMIT`` times what one without prompt tokens takes, so that a long prompt never
doubles the gaps. How many tokens that allows depends on the machine, the model, the number of rows
and the place in the prompt (attention reads what came before), so it is learnt from the steps
themselves: the seconds of a decode-only step by rows, and the seconds that a prompt token adds by
its position.

Both are medians of recent steps, since on a machine that is shared one step in ten may take ten
times as long. Where decode-only steps have become rare, as they do while prompts keep coming, a
step without prompt tokens is put in now and then: nothing else says what the promise is measured
against. It costs about one part in a hundred of a prompt's time.

A limit like that has a price when many wait: steps carry few rows because the prompts that would
fill them crawl. So there are two exceptions, both by users and not by prompts, so that one user
with many prompts changes nothing:

- A *short* prompt brings a share of its own, as much again as the limit allows. It is over in a
  step or two, and then its user's row makes every later step worth more.
- From three users on who wait, the limit is stretched by half their number.

Chosen by simulation (``tests/batching/timed_engine.py``: 20 ms a step, 2 ms a row, 1.5 ms a prompt
token; 32 users who each ask again as soon as they are answered, 64 tokens each way), against a
fixed chunk of 128 tokens:

====================  ==============  ===========  =========  ===================
rule                  total tokens/s  first token  gap (p99)  prompts of 300
====================  ==============  ===========  =========  ===================
fixed chunk           236             0.36 s       0.28 s     96 tokens/s, 4.0 s
limit alone           229             0.69 s       0.15 s     67 tokens/s, 25.2 s
with both exceptions  236             0.35 s       0.27 s     95 tokens/s, 5.8 s
====================  ==============  ===========  =========  ===================

With 8 users the p99 gap falls from 0.134 to 0.098 s at the same throughput. Beside one prompt of
6,000 tokens the p99 gap of 16 streams is 1.85 times what it was, where the fixed chunk made it 9.9
times; the prompt takes twice as long for it, 36 s.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

__all__ = ["FLOOR", "LIMIT", "SHORT", "Allowance", "Load", "Pace", "Waiting"]

LIMIT = 1.8
"""Seconds of a step with prompt tokens by those of one without; the rest up to 2 is for noise."""

FLOOR = 8
"""Prompt tokens that every step may carry, whatever they cost, so that prompts always go on. A step
with fewer says more about noise than about the cost of a token."""

SHORT = 256
"""Tokens of a prompt, less what was cached of it, up to which it is a short one."""

RECENT_STEPS, RECENT_TOKENS = 9, 15
"""Measurements that a median is taken of. Steps without prompts are fewer, where it matters."""

FIRM = 3
"""Measurements of which one may be far off and the median still holds."""

LOOK_AGAIN = 64
"""Steps with prompt tokens after which one without is due."""

LOOK_SOON = 8
"""The same, while there were too few measurements."""

FORGET = 2048
"""Steps after which a measurement says nothing about the machine any more."""

KNOWN_WITHIN = 1.5
"""Steps with this many times more or fewer rows than any that was measured count as unknown."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a step carried.

    Attributes:
        decoding: decode rows.
        prompt_tokens: tokens of prompts.
        position: where in their sequences those were, in mean.
    """

    decoding: int
    prompt_tokens: int = 0
    position: float = 0.0


PLANNED_AHEAD = 2
"""Steps that are planned before what one shows is known."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Who waits for a first token while others decode.

    Attributes:
        users: with a prompt that waits.
        short_users: those of them whose next prompt is a short one.
        decoding_users: with sessions that decode, at least 1.
    """

    users: int
    short_users: int
    decoding_users: int


class Pace:
    """Learns from ``measured()`` what steps cost; ``allowance()`` says what the next may carry."""

    def __init__(self) -> None:
        self._decode_seconds = _Curve(RECENT_STEPS, ratio=1.2)
        self._token_seconds = _Curve(RECENT_TOKENS, ratio=2.0, start=256.0)
        self._since_decode_only = LOOK_AGAIN
        self._steps_to_come = 0

    def measured(self, load: Load, seconds: float) -> None:
        """A step with this load took so many seconds inside the engine."""
        self._steps_to_come = max(0, self._steps_to_come - 1)
        told = 0.0 < seconds < math.inf
        if not load.prompt_tokens:
            if told and load.decoding:
                self._decode_seconds.add(load.decoding, seconds)
            self._since_decode_only = 0
            return
        self._since_decode_only += 1
        if told and load.prompt_tokens >= FLOOR:
            # A step without decode rows has the costs of one that it does not share with anybody.
            alone = self._decode_seconds.at(max(1, load.decoding)) or 0.0
            extra = max(0.0, seconds - alone)
            self._token_seconds.add(load.position, extra / load.prompt_tokens)

    def allowance(self, decoding: int, waiting: Waiting, *, most: int) -> Allowance:
        """What the next step may carry beside ``decoding`` rows, at least 1.

        Args:
            waiting: who waits.
            most: prompt tokens that must not be exceeded.
        """
        if self._must_look(decoding):
            self._steps_to_come = PLANNED_AHEAD
            return Allowance(0)
        alone = self._decode_seconds.at(decoding)
        if alone is None:
            return Allowance(most)
        share = (LIMIT - 1.0) * alone
        return Allowance(
            most,
            share * max(1.0, waiting.users / min(2, waiting.decoding_users)),
            share * waiting.short_users,
            self._token_seconds.at,
        )

    def _must_look(self, decoding: int) -> bool:
        """The step should show what one costs that only decodes; never two in a row."""
        if not self._since_decode_only or self._steps_to_come:
            return False
        seen = self._decode_seconds.seen_near(decoding, KNOWN_WITHIN)
        if not seen:
            return True
        return self._since_decode_only >= (LOOK_AGAIN if seen >= FIRM else LOOK_SOON)


@dataclass(slots=True)
class Allowance:
    """Prompt tokens that one step may still carry.

    Attributes:
        tokens: at most so many, whatever they cost.
        seconds: they may take so long...
        short_seconds: ...and those of short prompts so much longer...
        token_seconds: ...each of them so many seconds, by position; None where it is not known.
    """

    tokens: int
    seconds: float = math.inf
    short_seconds: float = 0.0
    token_seconds: Callable[[float], float | None] = field(default=lambda _: None)
    _floor: int = FLOOR

    def fits(self, wanted: int, position: int, *, short: bool) -> int:
        """How many of ``wanted`` tokens of a sequence fit, the first of them at ``position``."""
        count = min(wanted, self.tokens)
        each = self.token_seconds(position)
        seconds = max(0.0, self.seconds) + self.short_seconds * short
        if each and count * each > seconds:
            count = min(count, max(self._floor, int(seconds / each)))
        return count

    def spend(self, count: int, position: int, *, short: bool) -> None:
        """So many are part of the step."""
        self.tokens -= count
        seconds = count * (self.token_seconds(position) or 0.0)
        if short:
            own = min(seconds, self.short_seconds)
            self.short_seconds -= own
            seconds -= own
        self.seconds -= seconds
        self._floor = max(0, self._floor - count)


class _Place:
    """What was measured near one place of a curve.

    Attributes:
        centre: median place and median value.
        measured_at: number of the latest measurement among all of the curve.
    """

    def __init__(self, recent: int) -> None:
        self.values: deque[tuple[float, float]] = deque(maxlen=recent)
        self.centre = (0.0, 0.0)
        self.measured_at = 0

    def add(self, where: float, value: float, number: int) -> None:
        self.values.append((where, value))
        self.centre = (median(x for x, _ in self.values), median(y for _, y in self.values))
        self.measured_at = number


class _Curve:
    """A function known by medians of what was measured near some places.

    Args:
        recent: measurements that are kept of each place.
        ratio: neighbouring places are this many times apart.
        start: up to here everything counts as one place.
    """

    def __init__(self, recent: int, *, ratio: float, start: float = 1.0) -> None:
        self._recent = recent
        self._log_ratio = math.log(ratio)
        self._start = start
        self._places: dict[int, _Place] = {}
        self._clock = 0

    def add(self, where: float, value: float) -> None:
        self._clock += 1
        place = self._places.setdefault(self._index(where), _Place(self._recent))
        if not self._is_recent(place):
            place.values.clear()
        place.add(where, value, self._clock)

    def at(self, where: float) -> float | None:
        """The value there: between two places on a straight line, outside as at the nearest."""
        known = self._known()
        if not known:
            return None
        below = max((point for point in known if point[0] <= where), default=None)
        above = min((point for point in known if point[0] >= where), default=None)
        if below is None or above is None:
            return (below or above or known[0])[1]
        (left, low), (right, high) = below, above
        return low if left == right else low + (high - low) * (where - left) / (right - left)

    def seen_near(self, where: float, factor: float) -> int:
        """Most measurements at any place that is at most ``factor`` times away."""
        return max(
            (
                len(place.values)
                for place in self._places.values()
                if self._is_recent(place) and 1 / factor <= place.centre[0] / where <= factor
            ),
            default=0,
        )

    def _known(self) -> list[tuple[float, float]]:
        """The recent places; of those, the ones that no single slow step can have made."""
        recent = [place for place in self._places.values() if self._is_recent(place)]
        firm = [place for place in recent if len(place.values) >= FIRM]
        return [place.centre for place in firm or recent]

    def _is_recent(self, place: _Place) -> bool:
        return place.measured_at >= self._clock - FORGET

    def _index(self, where: float) -> int:
        return round(math.log(max(where, self._start) / self._start) / self._log_ratio)
