"""Staying out: the budgeter from the start, a shift of the session mix, a host tier (paper B §6, Fig. 6).

Arms of `artifact.reproduce.scenarios_colocated`, one run a seed; counts are scaled to the published number of runs.
"""

import numpy as np

from artifact.metrics import degraded_from, duration_s, evaluated, first_call_wait
from artifact.metrics.turns import DEGRADED_HIT
from artifact.records.schema import Records
from artifact.reproduce.colocated import MINUTE, degraded, end_hit, end_sessions, extent, of, per, share
from artifact.reproduce.registry import Noted, evaluates
from artifact.reproduce.scenarios_colocated import (
    FLUSH_S,
    MIX_CAPS,
    MIX_SHIFT_S,
    PAIRED_BURST_S,
    RECOVERY_BURST_S,
    SMALL_BURST_S,
)

BURST_END_S = PAIRED_BURST_S[1]
SERVED_S = 60 * MINUTE
"""Of the mix shift: with a controller that fits, every session arriving before this has completed by the end."""
SHORT_WAIT_MIN = 0.1
TIGHT, LOOSE = MIX_CAPS[:2], MIX_CAPS[2:]
FITTING = ("budgeter", "adaptive")
MIX_ARMS = ("mix/none", *(f"mix/cap{k}" for k in (*LOOSE, *TIGHT)), *(f"mix/{name}" for name in FITTING))


@evaluates("B-prevent", pooled=True, arms=("small/budgeter", "flush/budgeter", "traces/budgeter"))
def prevented(small: list[Records], flush: list[Records], traces: list[Records]) -> Noted:
    """Runs that are persistently degraded after their trigger, of all."""
    fell = [
        degraded(run, end)
        for runs, end in ((small, SMALL_BURST_S[1]), (flush, FLUSH_S), (traces, RECOVERY_BURST_S[1]))
        for run in runs
    ]
    return Noted(sum(fell), f"of {len(fell)} runs")


# When the session mix shifts ---------------------------------------------------------------------------------------


@evaluates("B-mix-collapse", pooled=True, arms=MIX_ARMS)
def mix_collapse(none: list[Records], *controlled: list[Records]) -> Noted:
    """Shares of the runs that are collapsed at their end (hit ratio of the last ten minutes below 0.5)."""
    cap22, cap34, cap10, cap14, budgeter, adaptive = controlled
    shares = {
        "none": share(map(_collapses, none)),
        "caps_22_34": share(map(_collapses, cap22 + cap34)),
        "caps_10_14": share(map(_collapses, cap10 + cap14)),
        "budgeter_adaptive": share(map(_collapses, budgeter + adaptive)),
    }
    return Noted(shares, f"uncontrolled end hit ratio {np.median([end_hit(run) for run in none]):.2f}")


@evaluates("B-mix-wait", pooled=True, arms=MIX_ARMS[3:])
def mix_wait(*controlled: list[Records]) -> dict[str, object]:
    """90th percentile of the time at the gateway before the first turn, sessions arriving before the shift."""
    cap10, cap14, budgeter, adaptive = controlled
    return {
        "caps_10_14": of(cap10 + cap14, first_turn_wait_min, "run"),
        "budgeter_adaptive": of(budgeter + adaptive, first_turn_wait_min, "run"),
    }


@evaluates("B-mix", pooled=True, arms=MIX_ARMS)
def mix(none: list[Records], *controlled: list[Records]) -> Noted:
    """Caps 22 and 34 collapse in every run as without control; caps 10 and 14 in none, but their first turns wait (90th
    percentile over 0.1 min); budgeter and adaptive cap do neither and complete every session of the first hour."""
    cap22, cap34, cap10, cap14, budgeter, adaptive = controlled
    loose = all(map(_collapses, none + cap22 + cap34))
    tight = not any(map(_collapses, cap10 + cap14)) and min(map(first_turn_wait_min, cap10 + cap14)) > SHORT_WAIT_MIN
    fitting = budgeter + adaptive
    free = not any(map(_collapses, fitting)) and max(map(first_turn_wait_min, fitting)) <= SHORT_WAIT_MIN
    served = min(map(_served, fitting))
    seen = (
        f"loose caps collapse: {loose}; tight ones only wait: {tight}; the others neither: {free}, served {served:.2f}"
    )
    return Noted(loose and tight and free and served == 1.0, seen)


def first_turn_wait_min(run: Records) -> float:
    sessions = evaluated(run, (0.0, MIX_SHIFT_S))
    return float(first_call_wait(sessions, duration_s(run)).quantile(0.9)) / MINUTE


def _collapses(run: Records) -> bool:
    return not end_hit(run) >= DEGRADED_HIT


def _served(run: Records) -> float:
    return float((evaluated(run, (0.0, SERVED_S))["outcome"] == "completed").mean())


# A host tier -------------------------------------------------------------------------------------------------------


@evaluates("B-offload", pooled=True, arms=("offload/burst",))
def offload(burst: list[Records]) -> float:
    return share(degraded(run, BURST_END_S) for run in burst)


@evaluates("B-offload-state", pooled=True, arms=("offload/burst", "offload/none"))
def offload_state(burst: list[Records], none: list[Records]) -> dict[str, object]:
    """At the end of the degraded burst runs; twins of six."""
    lost = [run for run in burst if degraded(run, BURST_END_S)]
    return {
        "hit": of(lost, end_hit, "degraded run"),
        "sessions": of(lost, end_sessions, "degraded run"),
        "twins_degraded": per(6, (degraded(run, BURST_END_S) for run in none)),
    }


@evaluates("B-offload-onset", pooled=True, arms=("offload/burst", "pairs/burst"))
def offload_onset(host: list[Records], none: list[Records]) -> dict[str, list[float]]:
    """Minute in which the first window of the persistent degradation begins."""
    return {name: extent(_onsets(runs), "degraded run") for name, runs in (("host", host), ("none", none))}


@evaluates("B-offload-prevent", pooled=True, arms=("offload_late/none", "offload_late/budgeter"))
def offload_prevents(none: list[Records], budgeter: list[Records]) -> dict[str, float]:
    """Of three runs, collapsed at their end."""
    return {name: per(3, map(_collapses, runs)) for name, runs in (("none", none), ("budgeter", budgeter))}


def _onsets(runs: list[Records]) -> list[float]:
    starts = [degraded_from(run, BURST_END_S) / MINUTE for run in runs]
    return [start for start in starts if start < np.inf]
