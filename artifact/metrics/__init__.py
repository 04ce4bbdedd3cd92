"""Metrics: small pure functions from Records to the quantities of paper A (§3, §4, §7.1).

An interval is `(t0_s, t1_s)`, half open, in seconds since the run's start. A quantity that nothing was observed of is
NaN, never zero; one that did not happen within the run is infinite where its docstring says so.
"""

from artifact.metrics.cliff import HitCurve, Knee, hit_curve, knee
from artifact.metrics.paired import Band, duration_ratio, normal_band, time_to_normal
from artifact.metrics.run import (
    Interval,
    NotObserved,
    cache_tokens,
    capacity,
    column,
    duration_s,
    rate,
    sampled,
    trigger,
)
from artifact.metrics.sessions import (
    completion_fraction,
    evaluated,
    first_call_wait,
    goodput,
    over_itl_allowance,
    shed_fraction,
    slowdown,
)
from artifact.metrics.states import Degradation, EndState, degradation, end_state
from artifact.metrics.windows import hit_rate, late_latency, reserve_wait, ttft, windows

__all__ = [
    "Band",
    "Degradation",
    "EndState",
    "HitCurve",
    "Interval",
    "Knee",
    "NotObserved",
    "cache_tokens",
    "capacity",
    "column",
    "completion_fraction",
    "degradation",
    "duration_ratio",
    "duration_s",
    "end_state",
    "evaluated",
    "first_call_wait",
    "goodput",
    "hit_curve",
    "hit_rate",
    "knee",
    "late_latency",
    "normal_band",
    "over_itl_allowance",
    "rate",
    "reserve_wait",
    "sampled",
    "shed_fraction",
    "slowdown",
    "time_to_normal",
    "trigger",
    "ttft",
    "windows",
]
