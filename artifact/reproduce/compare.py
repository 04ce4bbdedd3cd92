"""What systems are compared by: the session metrics of paper A §7.1 over the first 90 minutes' arrivals."""

from collections.abc import Mapping, Sequence
from math import inf, nan

import numpy as np
import pandas as pd

from artifact.metrics import (
    Interval,
    NotObserved,
    completion_fraction,
    duration_s,
    end_state,
    evaluated,
    first_call_wait,
    goodput,
    hit_rate,
    over_itl_allowance,
    slowdown,
)
from artifact.metrics.states import final_windows
from artifact.records.schema import Records
from artifact.reproduce.scenarios_policies import BIN_S, EVALUATED

Runs = Mapping[str, Sequence[Records]]
UNKNOWN = "not observed"


def good(run: Records) -> float:
    """Goodput, sessions/h."""
    return goodput(run, EVALUATED)


def done(run: Records) -> float:
    """Share of the sessions that completed."""
    return completion_fraction(run, EVALUATED)


def ratio(over: float, under: float) -> float:
    """Infinite over nothing, NaN for nothing over nothing."""
    return over / under if under else inf if over else nan


def slowdown_p50(run: Records) -> float:
    """Median slowdown of the completed sessions, first-call wait included."""
    return float(slowdown(evaluated(run, EVALUATED)).median())


def waits(run: Records, interval: Interval = EVALUATED) -> pd.Series:
    """First-call wait in seconds, up to the first token, of the sessions arriving in the interval.

    Up to the first token because Continuum holds nobody back at the door and yet makes new sessions wait for minutes
    (paper A §7.2): in the engine's queues, behind older ones."""
    return first_call_wait(evaluated(run, interval), duration_s(run), until="started_s")


def over_itl(run: Records) -> float:
    """Share of the sessions over the ITL allowance."""
    return float(over_itl_allowance(evaluated(run, EVALUATED)).mean())


def late_hit(run: Records) -> float:
    """Hit rate of the two windows that an end state is judged by."""
    (start, _), (_, end) = final_windows(run)
    return hit_rate(run, (start, end))


def state(run: Records) -> str:
    """The end state, or "not observed" for a run that ends too early."""
    try:
        return str(end_state(run))
    except NotObserved:
        return UNKNOWN


def by_arrival(run: Records) -> pd.DataFrame:
    """One row a 5-minute bin: `start_s`, `end_s`, `hit_rate` of the calls scheduled in it, `wait_p50_s` of the sessions
    arriving in it (paper A Fig. 13). A remainder shorter than a bin is left out."""
    starts = np.arange(int(duration_s(run) // BIN_S)) * BIN_S
    bins = [(start, start + BIN_S) for start in starts]
    return pd.DataFrame(
        {
            "start_s": starts,
            "end_s": starts + BIN_S,
            "hit_rate": [hit_rate(run, one) for one in bins],
            "wait_p50_s": [waits(run, one).median() for one in bins],
        }
    )


def table(runs: Runs) -> pd.DataFrame:
    """One row a run: `setting`, `policy`, `seed`, `goodput`, `state`, `slowdown`, `completed`, `wait_p50_s`,
    `wait_p90_s`, `over_itl` (share of sessions)."""
    rows = []
    for name, seeds in runs.items():
        setting, policy = name.split("/")
        for run in seeds:
            wait = waits(run)
            rows.append(
                {
                    "setting": setting,
                    "policy": policy,
                    "seed": run.meta.get("seed"),
                    "goodput": good(run),
                    "state": state(run),
                    "slowdown": slowdown_p50(run),
                    "completed": done(run),
                    "wait_p50_s": float(wait.median()),
                    "wait_p90_s": float(wait.quantile(0.9)),
                    "over_itl": over_itl(run),
                }
            )
    return pd.DataFrame(rows)
