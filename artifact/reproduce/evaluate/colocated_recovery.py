"""Getting out (paper B §5-6, Figs. 5 and 8, Table 3): controllers switched on in collapsed 8B runs.

Arms: `recovery/<arm>` for the arms of `RECOVERY_ARMS` and the budgeter with other thresholds (`low`, `high`). Only runs
that were collapsed when control began count. All arms of a seed are the same run up to then, so that the collapsed
seeds are the same in every arm, which in the paper's testbed they are not quite.
"""

from collections.abc import Sequence

import numpy as np

from artifact.metrics import in_system_at, paired_test, turn_rate
from artifact.metrics.turns import DEGRADED_HIT, WINDOW_S, turn_windows
from artifact.records.schema import Records
from artifact.reproduce.colocated import (
    END_S,
    MINUTE,
    cohort,
    cohort_done,
    collapsed,
    completion_min,
    drained_min,
    end_hit,
    extent,
    matched,
    of,
    per,
    recovery_min,
    share,
)
from artifact.reproduce.registry import Noted, evaluates
from artifact.reproduce.scenarios_colocated import (
    COHORT_S,
    CONTROL_32B_S,
    CONTROL_S,
    PAIRED_RATE,
    RECOVERY_ARMS,
    THRESHOLDS,
)

ALL = tuple(f"recovery/{arm}" for arm in RECOVERY_ARMS)
NONE, ADMISSION, AIMD, CAP, BUDGETER = ALL
OTHERS = tuple(f"recovery/{name}" for name in THRESHOLDS)
TOTAL = {BUDGETER: CONTROL_S, **dict.fromkeys(OTHERS, CONTROL_S), "32b03/budgeter": CONTROL_32B_S,
         "32b025/budgeter": CONTROL_32B_S}  # fmt: skip
"""Every experiment in which the budgeter is switched on in a collapsed run, and when."""
TURNS_A_SESSION = 25


def minutes(runs: Sequence[Records], control_s: float = CONTROL_S) -> list[float]:
    """Recovery times of the runs collapsed when control began."""
    return [recovery_min(run, control_s) for run in collapsed(runs, control_s)]


def recovered(runs: Sequence[Records], control_s: float = CONTROL_S) -> list[bool]:
    return [bool(minute < np.inf) for minute in minutes(runs, control_s)]


@evaluates("B-recover-budget", pooled=True, arms=(BUDGETER,))
def budgeter(runs: list[Records]) -> dict[str, object]:
    return {"share": share(recovered(runs)), "minutes": extent(minutes(runs), "collapsed run")}


@evaluates("B-recover-cap", pooled=True, arms=(CAP,))
def cap(runs: list[Records]) -> list[float]:
    """A run that does not recover takes for ever."""
    return extent(minutes(runs), "collapsed run")


@evaluates("B-recover-aimd", pooled=True, arms=(AIMD,))
def aimd(runs: list[Records]) -> Noted:
    return _counted(runs)


@evaluates("B-recover-admit", pooled=True, arms=(ADMISSION,))
def admission(runs: list[Records]) -> Noted:
    return _counted(runs)


@evaluates("B-recover-none", pooled=True, arms=(NONE,))
def none(runs: list[Records]) -> Noted:
    return _counted(runs)


@evaluates("B-recover-matched", pooled=True, arms=(BUDGETER, CAP, AIMD, ADMISSION, NONE))
def recovered_of_seven(*arms: list[Records]) -> Noted:
    """Scaled to seven seeds; p is that of the two-sided exact paired test, budgeter against admission-only."""
    found = [recovered(runs) for runs in arms]
    names = ("budgeter", "cap", "aimd", "admission", "none")
    test = paired_test(found[0], found[3])
    seen = f"{len(found[0])} seeds; budgeter against admission-only p = {test.p:.3g}"
    return Noted({name: per(7, flags) for name, flags in zip(names, found, strict=True)}, seen)


@evaluates("B-recover-total", pooled=True, arms=tuple(TOTAL))
def budgeter_everywhere(*arms: list[Records]) -> Noted:
    found = [flag for runs, at in zip(arms, TOTAL.values(), strict=True) for flag in recovered(runs, at)]
    return Noted(share(found), f"{sum(found)} of {len(found)} collapsed runs")


@evaluates("B-recover-hit", pooled=True, arms=(BUDGETER, CAP, AIMD, ADMISSION, NONE))
def hit_at_end(*arms: list[Records]) -> dict[str, list[float]]:
    """Over the last ten minutes of every collapsed run, recovered or not."""
    names = ("budgeter", "cap", "aimd", "admission", "none")
    return {
        name: of(collapsed(runs, CONTROL_S), end_hit, "collapsed run") for name, runs in zip(names, arms, strict=True)
    }


@evaluates("B-recover-cohort", pooled=True, arms=(BUDGETER, CAP, AIMD, ADMISSION, NONE))
def users_served(*arms: list[Records]) -> dict[str, list[float]]:
    """Share of the sessions arriving in the 20 minutes after control began that complete, of every collapsed run."""
    names = ("budgeter", "cap", "aimd", "admission", "none")
    return {
        name: of(collapsed(runs, CONTROL_S), lambda run: cohort_done(run, CONTROL_S, COHORT_S), "collapsed run")
        for name, runs in zip(names, arms, strict=True)
    }


@evaluates("B-recover-slow", pooled=True, arms=(AIMD, ADMISSION))
def slow_recovery(aimd: list[Records], admission: list[Records]) -> dict[str, list[float]]:
    """Of the runs that recover."""
    return {
        name: extent([m for m in minutes(runs) if m < np.inf], f"recovered run under {name}")
        for name, runs in (("aimd", aimd), ("admission", admission))
    }


@evaluates("B-start-state", pooled=True, arms=(NONE,))
def start_state(none: list[Records]) -> dict[str, list[float]]:
    """Sessions in the system when control begins, and the turns that they have left."""
    runs = collapsed(none, CONTROL_S)
    return {
        "sessions": of(runs, lambda run: float(in_system_at(run, np.array([CONTROL_S]))[0]), "collapsed run"),
        "turns_left": of(runs, turns_left, "collapsed run"),
    }


@evaluates("B-unfinished", pooled=True, arms=(AIMD, ADMISSION, NONE))
def unfinished(*arms: list[Records]) -> dict[str, float]:
    """Of all collapsed seeds' sessions arriving in the 20 minutes after control began together."""
    rows = [[cohort(run, CONTROL_S, COHORT_S) for run in collapsed(runs, CONTROL_S)] for runs in arms]
    shares = [share(row != "completed" for frame in frames for row in frame["outcome"]) for frames in rows]
    return dict(zip(("aimd", "admission", "none"), shares, strict=True))


@evaluates("B-latency", pooled=True, arms=(BUDGETER, CAP, NONE))
def latency(budgeter: list[Records], cap: list[Records], none: list[Records]) -> dict[str, float]:
    """Median minutes from arrival to completion of the same sessions; never collapsed: of uncontrolled runs without a
    degraded window from the burst's end on."""
    calm = [run for run in none if never_degraded(run)]
    extent((0.0 for _ in calm), "run that never collapsed")
    return {
        "budgeter": _completion(collapsed(budgeter, CONTROL_S)).median(),
        "cap": _completion(collapsed(cap, CONTROL_S)).median(),
        "never_collapsed": _completion(calm).median(),
    }


@evaluates("B-latency-p90", pooled=True, arms=(BUDGETER, CAP, AIMD))
def latency_tail(budgeter: list[Records], cap: list[Records], aimd: list[Records]) -> dict[str, float]:
    return {
        "budgeter_p90": _completion(collapsed(budgeter, CONTROL_S)).quantile(0.9),
        "cap_p90": _completion(collapsed(cap, CONTROL_S)).quantile(0.9),
        "aimd_median": _completion(collapsed(aimd, CONTROL_S)).median(),
    }


@evaluates("B-capacity", pooled=True, arms=(BUDGETER, CAP))
def capacity_warm(budgeter: list[Records], cap: list[Records]) -> dict[str, float]:
    """The highest `rate_after_recovery` under a controller that recovers every run, the sessions that it makes, and
    the share of that which the paired runs' load is."""
    rates = [rate_after_recovery(run) for run in collapsed(budgeter, CONTROL_S) + collapsed(cap, CONTROL_S)]
    highest = max(extent([rate for rate in rates if not np.isnan(rate)], "run that recovered"))
    sessions = highest / TURNS_A_SESSION
    return {"turns_per_s": highest, "sessions_per_s": sessions, "load_share": PAIRED_RATE / sessions}


@evaluates("B-drain-time", pooled=True, arms=(BUDGETER,))
def drain_time(budgeter: list[Records]) -> list[float]:
    """Minutes from when control begins until nobody waits at the gateway."""
    return of(collapsed(budgeter, CONTROL_S), lambda run: drained_min(run, CONTROL_S), "collapsed run")


@evaluates("B-thresholds", pooled=True, arms=(BUDGETER, *OTHERS))
def thresholds(default: list[Records], *others: list[Records]) -> Noted:
    """With either other pair every collapsed run recovers within five minutes (one window) of when it does with the
    default, and every session of the 20 minutes after control began completes if it does with the default."""
    same = [
        recovery_min(run, CONTROL_S) <= recovery_min(usual, CONTROL_S) + WINDOW_S / MINUTE
        and cohort_done(run, CONTROL_S, COHORT_S) >= cohort_done(usual, CONTROL_S, COHORT_S)
        for runs in others
        for run, usual in matched(collapsed(runs, CONTROL_S), default)
    ]
    return Noted(all(same), f"{sum(same)} of {len(same)} runs as with the default")


@evaluates("B-thresholds-rate", pooled=True, arms=(BUDGETER, *OTHERS))
def thresholds_rate(default: list[Records], *others: list[Records]) -> dict[str, list[float]]:
    """`rate_after_recovery` of the runs that recover."""
    both = {"default": default, "others": [run for runs in others for run in runs]}
    return {
        name: extent(filter(np.isfinite, map(rate_after_recovery, collapsed(runs, CONTROL_S))), "recovered run")
        for name, runs in both.items()
    }


def rate_after_recovery(run: Records, control_s: float = CONTROL_S) -> float:
    """Turns/s from the recovery on for as long as sessions wait at the gateway (ten minutes at least), when the engine
    has all the work that it can take; NaN for a run that does not recover."""
    begins = control_s + MINUTE * recovery_min(run, control_s)
    if not np.isfinite(begins):
        return np.nan
    ends = min(control_s + MINUTE * drained_min(run, control_s), float(run.meta["duration_s"]))
    return turn_rate(run, (begins, max(ends, begins + END_S)))


def turns_left(run: Records, at_s: float = CONTROL_S) -> float:
    """Turns that the sessions in the system at a time have not completed yet."""
    sessions = run.sessions.to_pandas()
    inside = sessions[(sessions["arrival_s"] <= at_s) & ~(sessions["ended_s"] <= at_s)]
    done = run.calls.to_pandas()
    done = done[(done["finished_s"] <= at_s) & done["session_id"].isin(inside["session_id"])]
    return float(inside["calls_planned"].sum() - len(done))


def never_degraded(run: Records) -> bool:
    return bool((turn_windows(run, start_s=WINDOW_S)["hit_ratio"] >= DEGRADED_HIT).all())


def _counted(runs: list[Records]) -> Noted:
    found = recovered(runs)
    return Noted(share(found), f"{sum(found)} of {len(found)} collapsed runs")


def _completion(runs: list[Records]):  # type: ignore[no-untyped-def]
    return completion_min(runs, CONTROL_S, COHORT_S)
