"""When the degraded regime can drain (paper B §4): the cold cost of a turn, and what becomes of a collapsed engine's
backlog once arrivals are lowered.

Arms: `nocache/none` and `nocache/small`, the degraded `pairs/burst`, and `drain/<rate>` for each arrival rate after the
change, sessions/s.
"""

from collections.abc import Mapping
from functools import cache

import numpy as np

from artifact.metrics import (
    ColdCost,
    NotObserved,
    collapsed_at,
    duration_s,
    fit_cold_cost,
    remaining_cold_work,
    turn_windows,
)
from artifact.metrics.turns import DEGRADED_HIT
from artifact.records.schema import Records
from artifact.reproduce.colocated import MINUTE, degraded
from artifact.reproduce.registry import Noted, evaluates
from artifact.reproduce.scenarios_colocated import DRAIN_CHANGE_S, DRAIN_RATES, PAIRED_BURST_S
from artifact.workload.catalog import workload

COLD_ARMS = ("nocache/none", "nocache/small")
"""Which of the runs with prefix caching off c(L) is from is not stated. These eight have about as many busy windows as
the 48 published; the four after 16 extra sessions alone have twice that many."""
DRAIN_ARMS = tuple(f"drain/{rate}" for rate in DRAIN_RATES)
SAMPLE_S = 10 * MINUTE
"""Spacing of the readings that the drift is fitted to."""
SIGNED = ("0.006", "0.010", "0.014")
"""Rates whose drift is published; at 0.018 only that it grows."""


@evaluates("B-cost", pooled=True, arms=COLD_ARMS)
def cost(*arms: list[Records]) -> Noted:
    """c(L) from the cache-off runs, and S, the cost of a synthetic session's turns, all cold."""
    found = fit_cold_cost([run for arm in arms for run in arm])
    seen = f"intercept {found.intercept_s:.2f} s over {found.windows} windows; 1/S = {1 / session_s(found):.4f}/s"
    return Noted({"per_token_ms": 1000 * found.per_token_s, "S_engine_s": session_s(found)}, seen)


@evaluates("B-cost-alt", pooled=True, arms=("pairs/burst",))
def cost_of_misses(burst: list[Records]) -> Noted:
    """The same fit on the windows of the degraded runs in which every turn missed."""
    runs = [run for run in burst if degraded(run, PAIRED_BURST_S[1])]
    found = fit_cold_cost(runs, PAIRED_BURST_S[1], only_misses=True)
    seen = f"intercept {found.intercept_s:.2f} s over {found.windows} windows"
    return Noted({"per_token_ms": 1000 * found.per_token_s, "inverse_S": 1 / session_s(found)}, seen)


@evaluates("B-drain", pooled=True, arms=(*COLD_ARMS, *DRAIN_ARMS))
def break_even(*arms: list[Records]) -> Noted:
    """Where the line through the drifts of remaining cold work over the arrival rate crosses zero."""
    cold, drains = _cold_and_drains(arms)
    rates, slopes = zip(*[(float(r), d) for r, found in drifts(cold, drains).items() for d in found], strict=True)
    if len(set(rates)) < 2:
        raise NotObserved("drain: runs at two or more arrival rates are needed")
    slope, intercept = np.polyfit(rates, slopes, 1)
    return Noted(float(-intercept / slope), f"1/S = {1 / session_s(cold):.4f}/s")


@evaluates("B-drain-sign", pooled=True, arms=(*COLD_ARMS, *DRAIN_ARMS))
def drift_signs(*arms: list[Records]) -> Noted:
    """Engine-seconds of cold work an hour, by arrival rate, every seed's."""
    found = drifts(*_cold_and_drains(arms))
    highest = max(found)
    return Noted({rate: found[rate] for rate in SIGNED}, f"at {highest}: {np.mean(found[highest]):+.0f}/h")


@evaluates("B-drain-cold", pooled=True, arms=DRAIN_ARMS)
def stays_cold(*drains: list[Records]) -> Noted:
    """Every 5-minute window of every run that was collapsed when arrivals were lowered has a hit ratio below 0.5."""
    runs = [run for arm in drains for run in arm if collapsed_at(run, DRAIN_CHANGE_S)]
    if not runs:
        raise NotObserved("no run was collapsed when arrivals were lowered")
    cold = [bool((turn_windows(run, start_s=DRAIN_CHANGE_S)["hit_ratio"] < DEGRADED_HIT).all()) for run in runs]
    return Noted(all(cold), f"{sum(cold)} of {len(runs)} runs stay collapsed")


def session_s(cost: ColdCost) -> float:
    """S: engine-seconds of a synthetic session when every turn misses."""
    return cost(workload("paper-b")[0].prompt_tokens)


def drifts(cost: ColdCost, drains: Mapping[str, list[Records]]) -> dict[str, list[float]]:
    """The `drift_per_h` of each run that was collapsed when arrivals were lowered, by arrival rate; rates without such
    a run are left out. Raises `NotObserved` if none is left."""
    found = {
        rate: [drift_per_h(run, cost) for run in runs if collapsed_at(run, DRAIN_CHANGE_S)]
        for rate, runs in drains.items()
    }
    found = {rate: slopes for rate, slopes in found.items() if slopes}
    if not found:
        raise NotObserved("no run was collapsed when arrivals were lowered")
    return found


def drift_per_h(run: Records, cost: ColdCost) -> float:
    """Slope of the remaining cold work from the change to the end, at ten-minute readings, engine-s/h."""
    times = np.arange(DRAIN_CHANGE_S, duration_s(run) + 1, SAMPLE_S)
    work = remaining_cold_work(run, prompts(run.meta["scenario"]["load"]["workload"]), cost, times)
    return float(np.polyfit(times / 3600, work, 1)[0])


@cache
def prompts(name: str) -> Mapping[str, tuple[int, ...]]:
    """Prompts of every turn of a workload's sessions, by trajectory."""
    return {trajectory.id: trajectory.prompt_tokens for trajectory in workload(name)}


def _cold_and_drains(arms: tuple[list[Records], ...]) -> tuple[ColdCost, dict[str, list[Records]]]:
    cold, drains = arms[: len(COLD_ARMS)], arms[len(COLD_ARMS) :]
    return fit_cold_cost([run for arm in cold for run in arm]), dict(zip(DRAIN_RATES, drains, strict=True))
