"""Session metrics of paper A §7.1: goodput, slowdown, ITL allowance, first-call wait, completion.

They describe the sessions that arrive within an interval; warm-start sessions are never among them.
"""

import numpy as np
import pandas as pd

from artifact.metrics.run import Interval, NotObserved, duration_s
from artifact.records.schema import Records

MAX_SLOWDOWN = 4.0
ITL_ALLOWANCE = 0.05
"""Share of a session's decode steps that may exceed the ITL SLO."""


def evaluated(records: Records, interval: Interval | None = None) -> pd.DataFrame:
    """The `sessions` rows that count: no warm start, arrival in the interval (None: the whole run).

    Raises `NotObserved` for an interval that outlasts the run, `ValueError` for an empty one."""
    start, end = interval or (0.0, duration_s(records))
    if not end > start:
        raise ValueError(f"evaluation interval: [{start}, {end}) s is empty")
    if end > duration_s(records):
        raise NotObserved(f"evaluation interval: ends at {end} s, the run at {duration_s(records)} s")
    sessions = records.sessions.to_pandas()
    arrival = sessions["arrival_s"]
    return sessions[(sessions["group"] != "warm") & (arrival >= start) & (arrival < end)]


def slowdown(sessions: pd.DataFrame) -> pd.Series:
    """Time from arrival (first-call wait included) to the end over the unloaded duration; NaN unless completed."""
    elapsed = sessions["ended_s"] - sessions["arrival_s"]
    return (elapsed / sessions["unloaded_s"]).where(sessions["outcome"] == "completed")


def over_itl_allowance(sessions: pd.DataFrame) -> pd.Series:
    """Whether more than 5% of a session's decode steps exceeded the ITL SLO. Sessions without a step are not over."""
    return sessions["slow_steps"] > ITL_ALLOWANCE * sessions["decode_steps"]


def goodput(records: Records, interval: Interval | None = None) -> float:
    """Sessions arriving in the interval that complete with a slowdown of at most 4 and within the ITL allowance, per
    hour of that interval."""
    start, end = interval or (0.0, duration_s(records))
    sessions = evaluated(records, (start, end))
    good = (slowdown(sessions) <= MAX_SLOWDOWN) & ~over_itl_allowance(sessions)
    return float(good.sum() / ((end - start) / 3600))


def completion_fraction(records: Records, interval: Interval | None = None) -> float:
    """Completed over all evaluated arrivals; whatever else became of a session (shed, unfinished) is a failure."""
    return _share(evaluated(records, interval)["outcome"] == "completed")


def shed_fraction(records: Records, interval: Interval | None = None) -> float:
    """Shed over all evaluated arrivals."""
    return _share(evaluated(records, interval)["outcome"] == "shed")


def first_call_wait(
    sessions: pd.DataFrame, run_end_s: float, until: str = "admitted_s", censor: bool = True
) -> pd.Series:
    """Seconds from arrival until the first call is let through, or with `until="started_s"` until its first token.

    A session that never got there, shed ones included, has waited until the run's end: that is a lower bound, so that
    refusing sessions never shortens the wait. Without `censor` it is NaN.
    """
    reached = sessions[until].fillna(run_end_s) if censor else sessions[until]
    return reached - sessions["arrival_s"]


def _share(flags: pd.Series) -> float:
    return float(np.mean(flags)) if len(flags) else float("nan")
