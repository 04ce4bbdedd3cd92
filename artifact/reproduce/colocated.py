"""What paper B's claims, pictures and words ask of a run: its fate, its last minutes, its users."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from artifact.metrics import (
    Interval,
    NotObserved,
    capacity,
    collapsed_at,
    column,
    degraded_from,
    duration_s,
    evaluated,
    in_system,
    recovered_after_s,
    turn_hit_ratio,
    turn_rate,
    turn_windows,
    turns,
)
from artifact.records.schema import Records

MINUTE = 60.0
END_S = 10 * MINUTE
"""Hit ratio and throughput at the end are those of the last ten minutes, sessions those of the last five (Table 2)."""


def last(run: Records, length_s: float = END_S) -> Interval:
    """The run's last ten (or other) minutes."""
    return duration_s(run) - length_s, duration_s(run)


def end_hit(run: Records) -> float:
    return turn_hit_ratio(run, last(run))


def end_rate(run: Records) -> float:
    """Turns/s."""
    return turn_rate(run, last(run))


def end_sessions(run: Records) -> float:
    return in_system(run, last(run, END_S / 2))


def degraded(run: Records, after_s: float) -> bool:
    """Persistently, after a trigger that ends at `after_s`."""
    return degraded_from(run, after_s) < np.inf


def collapsed(runs: Iterable[Records], control_s: float) -> list[Records]:
    """Those that were degraded when control began; raises `NotObserved` if none was."""
    found = [run for run in runs if collapsed_at(run, control_s)]
    if not found:
        raise NotObserved(f"no run was collapsed at minute {control_s / MINUTE:g}, when control began")
    return found


def recovery_min(run: Records, control_s: float) -> float:
    """Minutes from when control begins; infinite for a run that does not recover."""
    return recovered_after_s(run, control_s) / MINUTE


def cohort(run: Records, control_s: float, length_s: float) -> pd.DataFrame:
    """The sessions arriving in so long after control began."""
    return evaluated(run, (control_s, control_s + length_s))


def cohort_done(run: Records, control_s: float, length_s: float) -> float:
    """The share of them that has completed by the run's end."""
    return float((cohort(run, control_s, length_s)["outcome"] == "completed").mean())


def completion_min(runs: Iterable[Records], control_s: float, length_s: float) -> pd.Series:
    """Minutes from arrival to completion of their completed sessions, all runs together."""
    rows = pd.concat([cohort(run, control_s, length_s) for run in runs])
    rows = rows[rows["outcome"] == "completed"]
    return (rows["ended_s"] - rows["arrival_s"]) / MINUTE


def extent(values: Iterable[float], what: str) -> list[float]:
    """Lowest and highest of what runs gave; raises `NotObserved` without any."""
    found = [float(value) for value in values]
    if not found:
        raise NotObserved(f"no {what} among the runs")
    return [min(found), max(found)]


def of(runs: Sequence[Records], metric: Callable[[Records], float], what: str) -> list[float]:
    """The `extent` of a metric over runs."""
    return extent(map(metric, runs), what)


def per(published: int, flags: Iterable[Any]) -> float:
    """The number of flags that are set, scaled to the published number of runs where there are fewer or more."""
    found = [bool(flag) for flag in flags]
    if not found:
        raise NotObserved("no runs")
    return published * sum(found) / len(found)


def share(flags: Iterable[Any]) -> float:
    return per(1, flags)


def matched(one: Sequence[Records], other: Sequence[Records]) -> list[tuple[Records, Records]]:
    """The runs of two arms by common seed."""
    by_seed = {run.meta["seed"]: run for run in other}
    return [(run, by_seed[run.meta["seed"]]) for run in one if run.meta["seed"] in by_seed]


def mean_context(run: Records, interval: Interval | None = None) -> float:
    """Mean prompt of the turns completed in the interval, tokens: the paper's L."""
    return float(turns(run, interval)["prompt_tokens"].mean())


def demand_by_minute(run: Records) -> pd.DataFrame:
    """`turn_windows` of a minute each, with `d_over_c`, the resident demand over C: the sessions in the system times
    the mean context of their turns (paper B Fig. 4)."""
    course = turn_windows(run, MINUTE)
    held = course["sessions"] * course["mean_context_tokens"]
    return course.assign(d_over_c=held / capacity(run, "prefill_cache_tokens"))


def queued(run: Records) -> tuple[np.ndarray, np.ndarray]:
    """Times of the samples, and sessions at the gateway then: parked at a turn boundary or waiting to enter."""
    waiting = np.nan_to_num(column(run.samples, "parked_sessions"))
    return column(run.samples, "time_s"), waiting + np.nan_to_num(column(run.samples, "suspended_sessions"))


def drained_min(run: Records, control_s: float) -> float:
    """Minutes from when control begins until nobody waits at the gateway, for the first time after somebody did;
    infinite if that does not happen within the run."""
    time, waiting = queued(run)
    after = time >= control_s
    time, waiting = time[after], waiting[after]
    began = np.flatnonzero(waiting > 0)
    over = np.flatnonzero(waiting[began[0] :] == 0) if len(began) else np.empty(0)
    return float(time[began[0] + over[0]] - control_s) / MINUTE if len(over) else np.inf
