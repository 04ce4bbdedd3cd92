"""Metrics: small pure functions from Records to the quantities of paper A (§3, §4, §7.1) and paper B
(§3, §4, §6: turns, cold, exact).

An interval is `(t0_s, t1_s)`, half open, in seconds since the run's start. A quantity that nothing was observed of is
NaN, never zero; one that did not happen within the run is infinite where its docstring says so.
"""

from artifact.metrics.cliff import HitCurve, Knee, hit_curve, knee
from artifact.metrics.cold import ColdCost, fit_cold_cost, mean_running, missed, remaining_cold_work
from artifact.metrics.exact import Discordant, paired_test, share_interval
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
from artifact.metrics.turns import (
    collapsed_at,
    degraded_from,
    gateway_waits,
    in_system,
    in_system_at,
    recovered_after_s,
    turn_hit_ratio,
    turn_rate,
    turn_windows,
    turns,
)
from artifact.metrics.windows import hit_rate, late_latency, reserve_wait, ttft, windows

__all__ = [
    "Band",
    "ColdCost",
    "Degradation",
    "Discordant",
    "EndState",
    "HitCurve",
    "Interval",
    "Knee",
    "NotObserved",
    "cache_tokens",
    "capacity",
    "collapsed_at",
    "column",
    "completion_fraction",
    "degradation",
    "degraded_from",
    "duration_ratio",
    "duration_s",
    "end_state",
    "evaluated",
    "first_call_wait",
    "fit_cold_cost",
    "gateway_waits",
    "goodput",
    "hit_curve",
    "hit_rate",
    "in_system",
    "in_system_at",
    "knee",
    "late_latency",
    "mean_running",
    "missed",
    "normal_band",
    "over_itl_allowance",
    "paired_test",
    "rate",
    "recovered_after_s",
    "remaining_cold_work",
    "reserve_wait",
    "sampled",
    "share_interval",
    "shed_fraction",
    "slowdown",
    "time_to_normal",
    "trigger",
    "ttft",
    "turn_hit_ratio",
    "turn_rate",
    "turn_windows",
    "turns",
    "windows",
]
