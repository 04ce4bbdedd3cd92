"""Degraded windows and the four end states of a run (paper A §7.1)."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from artifact.metrics.run import Interval, NotObserved, column, duration_s, nan_median, trigger
from artifact.metrics.sessions import evaluated, first_call_wait
from artifact.metrics.windows import hit_rate, ttft
from artifact.records.schema import Records

WINDOW_S = 1200.0
MAX_TTFT_S = 5.0
MAX_FIRST_WAIT_S = 300.0
NEVER_STARTED_SHARE = 0.25
IMPROVEMENT = 0.25
SETTLE_S = 35 * 60.0
"""The final windows end at least this long after the trigger."""
HIT_DROP = 0.10
BEFORE_TRIGGER_S = 600.0
"""The pre-trigger hit rate is that of the last ten minutes before it: a warm start has settled by then."""
ROUNDING = 1e-9
"""A difference of two rates that is exactly the threshold on paper still reaches it."""


class EndState(StrEnum):
    HEALTHY = "healthy"
    RECOVERING = "recovering"
    OVERLOADED = "overloaded"
    TRAPPED = "trapped"


@dataclass(frozen=True, slots=True)
class Degradation:
    """What §7.1 looks at in one window; NaN where nothing was released or arrived."""

    ttft_p50_s: float
    first_wait_p50_s: float
    never_started: float
    """Share of the sessions arriving in the window that have no first token by the run's end."""
    hit_rate: float

    @property
    def excess(self) -> tuple[float, float, float]:
        """Each measure over its bound."""
        return (
            self.ttft_p50_s / MAX_TTFT_S,
            self.first_wait_p50_s / MAX_FIRST_WAIT_S,
            self.never_started / NEVER_STARTED_SHARE,
        )

    @property
    def broken(self) -> tuple[bool, bool, bool]:
        """Which bounds the window breaks; TTFT and wait must exceed theirs, the share only reach it."""
        ttft_excess, wait_excess, share_excess = self.excess
        return ttft_excess > 1, wait_excess > 1, share_excess >= 1

    @property
    def degraded(self) -> bool:
        return any(self.broken)


def degradation(records: Records, interval: Interval) -> Degradation:
    """The window's median TTFT (all calls released in it), median first-call wait and never-started share (sessions
    arriving in it, warm ones excluded) and hit rate (calls scheduled in it)."""
    released = column(records.calls, "released_s")
    inside = (released >= interval[0]) & (released < interval[1])
    sessions = evaluated(records, interval)
    wait = first_call_wait(sessions, duration_s(records))
    return Degradation(
        ttft_p50_s=nan_median(ttft(records)[inside]),
        first_wait_p50_s=float(wait.median()),
        never_started=float(sessions["started_s"].isna().mean()),
        hit_rate=hit_rate(records, interval),
    )


def end_state(records: Records, hit_drop: float = HIT_DROP, hit_before: float | None = None) -> EndState:
    """The run's label. `hit_drop` is the fall of the hit rate that tells a trap (the labels of paper A hold for 0.10
    to 0.20); `hit_before` replaces the run's own pre-trigger hit rate, for runs compared against a control (§5.2).

    Where the text is open, this reads it so:
    - the final two windows are the last 40 minutes of the run, and both end 35 minutes or more after the trigger;
    - a run improves if every bound that its last window breaks is broken by at least 25% less than in the window
      before (so a run whose TTFT falls while its new sessions wait ever longer does not improve);
    - a run whose last window is within all bounds but not the one before is recovering, too;
    - any run whose last two windows are not both degraded and that is not recovering is healthy.

    Raises `NotObserved` for a run too short to have such windows, `ValueError` for a `hit_drop` outside 0 to 1.
    """
    if not 0 < hit_drop < 1:
        raise ValueError(f"hit_drop: {hit_drop} is not between 0 and 1")
    before, last = (degradation(records, window) for window in final_windows(records))
    if not last.degraded:
        return EndState.RECOVERING if before.degraded else EndState.HEALTHY
    if not before.degraded:
        return EndState.HEALTHY
    if _improves(before, last):
        return EndState.RECOVERING
    reference = hit_before_trigger(records) if hit_before is None else hit_before
    lost = all(reference - window.hit_rate >= hit_drop - ROUNDING for window in (before, last))
    return EndState.TRAPPED if lost else EndState.OVERLOADED


def hit_before_trigger(records: Records) -> float:
    """Hit rate of the ten minutes before the trigger, of minutes 5-15 in a run without one."""
    start, _ = trigger(records)
    return hit_rate(records, (start - BEFORE_TRIGGER_S, start))


def final_windows(records: Records) -> tuple[Interval, Interval]:
    """The last two 20-minute windows. Raises `NotObserved` if the first ends within 35 minutes of the trigger."""
    end = duration_s(records)
    earliest = trigger(records)[1] + SETTLE_S + WINDOW_S
    if end < earliest:
        raise NotObserved(f"end state: the run lasts {end / 60:g} min; its trigger asks for {earliest / 60:g} or more")
    return (end - 2 * WINDOW_S, end - WINDOW_S), (end - WINDOW_S, end)


def _improves(before: Degradation, last: Degradation) -> bool:
    broken = np.array(last.broken)
    return bool(np.all(np.array(last.excess)[broken] <= (1 - IMPROVEMENT) * np.array(before.excess)[broken]))
