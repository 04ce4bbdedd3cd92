"""Qwen3-32B on its full pool with agent trace shapes (paper B §3 Fig. 2, §6 Figs. 7 and 8).

Arms: `traces/<arm>` at 0.025/s for 40 minutes, `32b03/<arm>` at 0.03/s for 90 and `32b025/<arm>` at 0.025/s for 100,
the latter two with control from minute 25 in the arms that have any.
"""

import numpy as np

from artifact.metrics import degraded_from, in_system, turn_hit_ratio
from artifact.records.schema import Records
from artifact.reproduce.colocated import (
    MINUTE,
    cohort_done,
    collapsed,
    degraded,
    end_hit,
    end_sessions,
    extent,
    last,
    of,
    per,
    recovery_min,
    share,
)
from artifact.reproduce.registry import Noted, evaluates
from artifact.reproduce.scenarios_colocated import (
    COHORT_S,
    CONTROL_32B_S,
    RECOVERY_BURST_S,
    TRACE_ARMS,
    TRACE_BURST_S,
)

END_OF_40_S = 5 * MINUTE
PARTIAL_HIT = 0.9
"""Ours: between the 0.81 that the paper calls partially degraded and the 0.95-0.97 of its healthy runs."""
AT_79_S = (74 * MINUTE, 79 * MINUTE)
BURST_END_S = TRACE_BURST_S[1]
TREND_S = 30 * MINUTE


@evaluates("B-32b-025", pooled=True, arms=("traces/burst", "traces/none"))
def at_025(burst: list[Records], none: list[Records]) -> Noted:
    """Of four runs. Degraded: persistently; partial: not that, but a hit ratio below 0.9 in the last five minutes."""
    fell = [degraded(run, RECOVERY_BURST_S[1]) for run in burst]
    hits = [turn_hit_ratio(run, last(run, END_OF_40_S)) for run in burst]
    partial = [hit < PARTIAL_HIT and not down for hit, down in zip(hits, fell, strict=True)]
    counts = {
        "degraded": per(4, fell),
        "partial": per(4, partial),
        "no_burst_degraded": per(4, (degraded(run, RECOVERY_BURST_S[1]) for run in none)),
    }
    return Noted(counts, "end hit ratios after a burst: " + ", ".join(f"{hit:.2f}" for hit in sorted(hits)))


@evaluates("B-32b-03", pooled=True, arms=("32b03/quiet", "32b03/none"))
def at_03(quiet: list[Records], burst: list[Records]) -> dict[str, object]:
    """All runs, with and without a burst; hit ratio of the five minutes up to minute 79."""
    runs = quiet + burst
    return {
        "degraded": share(degraded(run, BURST_END_S) for run in runs),
        "end_hit": of(runs, lambda run: turn_hit_ratio(run, AT_79_S), "run"),
    }


@evaluates("B-32b-03-onset", pooled=True, arms=("32b03/quiet",))
def onset_at_03(quiet: list[Records]) -> list[float]:
    """Start of the first degraded window, minutes, of the no-burst runs that degrade; windows from minute 5 on."""
    starts = [degraded_from(run, 5 * MINUTE) / MINUTE for run in quiet]
    return extent([start for start in starts if start < np.inf], "degraded run")


@evaluates("B-32b-recover", pooled=True, arms=tuple(f"32b03/{arm}" for arm in reversed(TRACE_ARMS[1:])))
def recover(*arms: list[Records]) -> Noted:
    """Of three collapsed runs."""
    names = tuple(reversed(TRACE_ARMS[1:]))
    found = {
        name: [recovery_min(run, CONTROL_32B_S) for run in collapsed(runs, CONTROL_32B_S)]
        for name, runs in zip(names, arms, strict=True)
    }
    slowest = {name: max((m for m in times if m < np.inf), default=np.nan) for name, times in found.items()}
    seen = f"slowest recovery: budgeter {slowest['budgeter']:.0f} min, adaptive {slowest['adaptive']:.0f} min"
    return Noted({name: per(3, (m < np.inf for m in times)) for name, times in found.items()}, seen)


LONG = ("32b025/budgeter", "32b025/adaptive", "32b025/none")
LONG_NAMES = ("budgeter", "adaptive", "none")


@evaluates("B-32b-long-hit", pooled=True, arms=LONG)
def long_hit(*arms: list[Records]) -> dict[str, list[float]]:
    """Over the last ten minutes of the runs collapsed when control began."""
    return {
        name: of(collapsed(runs, CONTROL_32B_S), end_hit, "collapsed run")
        for name, runs in zip(LONG_NAMES, arms, strict=True)
    }


@evaluates("B-32b-long-cohort", pooled=True, arms=LONG)
def long_cohort(*arms: list[Records]) -> dict[str, list[float]]:
    return {name: _cohorts(runs) for name, runs in zip(LONG_NAMES, arms, strict=True)}


@evaluates("B-32b-long-queue", pooled=True, arms=LONG)
def long_queue(budgeter: list[Records], adaptive: list[Records], none: list[Records]) -> dict[str, list[float]]:
    """Slope of the sessions in the system over the last 30 minutes, and their mean over the last five."""
    controlled = collapsed(budgeter, CONTROL_32B_S) + collapsed(adaptive, CONTROL_32B_S)
    return {
        "growth_per_10min": of(controlled, growth_per_10min, "collapsed run"),
        "controlled": of(controlled, end_sessions, "collapsed run"),
        "none": of(collapsed(none, CONTROL_32B_S), end_sessions, "collapsed run"),
    }


@evaluates("B-users-32b", pooled=True, arms=tuple(f"32b03/{arm}" for arm in reversed(TRACE_ARMS)))
def users(budgeter: list[Records], adaptive: list[Records], *others: list[Records]) -> dict[str, list[float]]:
    """Share of the sessions arriving in the 20 minutes after control began that complete by the run's end, of every
    collapsed run; others: cap, admission-only, no control."""
    rest = [_cohorts(runs) for runs in others]
    return {
        "budgeter": _cohorts(budgeter),
        "adaptive": _cohorts(adaptive),
        "others": [min(low for low, _ in rest), max(high for _, high in rest)],
    }


def growth_per_10min(run: Records) -> float:
    """Least-squares slope of the sessions in the system, minute by minute."""
    start, end = last(run, TREND_S)
    times = np.arange(start, end, MINUTE)
    sessions = [in_system(run, (time, time + MINUTE)) for time in times]
    return float(np.polyfit(times / (10 * MINUTE), sessions, 1)[0])


def _cohorts(runs: list[Records]) -> list[float]:
    found = collapsed(runs, CONTROL_32B_S)
    return of(found, lambda run: cohort_done(run, CONTROL_32B_S, COHORT_S), "collapsed run")
