"""Paper B's endpoints (§3, §6): the hit ratio and throughput of completed turns, the sessions in the system, whether a
run stays degraded after its trigger, and when it has recovered.

A turn is a model call; it counts in the window in which it finishes (`artifact.metrics.windows`, paper A, goes by when
a call is scheduled).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from artifact.metrics.run import Interval, NotObserved, column, duration_s
from artifact.records.schema import Records

WINDOW_S = 300.0
STEP_S = 60.0
"""Recovery is looked for in windows that begin a minute apart."""
DEGRADED_HIT = 0.5
RECOVERED_HIT = 0.8
FOLLOW_UP_S = 600.0
"""A recovery counts if at least this much of the run follows its start."""


def turns(records: Records, interval: Interval | None = None) -> pd.DataFrame:
    """The rows of `calls` that finish within the interval (None: the whole run)."""
    finished = column(records.calls, "finished_s")
    start, end = interval or (0.0, np.inf)
    frame: pd.DataFrame = records.calls.filter((finished >= start) & (finished < end)).to_pandas()
    return frame


def turn_hit_ratio(records: Records, interval: Interval | None = None) -> float:
    """Cached over prompt tokens of the turns completed in the interval (paper B §3); NaN without any."""
    done = turns(records, interval)
    return _ratio(done["cached_tokens"].sum(), done["prompt_tokens"].sum())


def turn_rate(records: Records, interval: Interval) -> float:
    """Turns completed a second."""
    return len(turns(records, interval)) / (interval[1] - interval[0])


def in_system(records: Records, interval: Interval) -> float:
    """Time mean of the sessions that have arrived and not ended: running, thinking, parked or at the door."""
    start, end = interval
    arrived, left = _stays(records)
    inside = np.clip(np.minimum(left, end) - np.maximum(arrived, start), 0, None)
    return float(inside.sum() / (end - start))


def in_system_at(records: Records, times_s: np.ndarray) -> np.ndarray:
    """The number of such sessions at each time."""
    arrived, left = _stays(records)
    return np.searchsorted(np.sort(arrived), times_s, "right") - np.searchsorted(np.sort(left), times_s, "right")


def turn_windows(
    records: Records, width_s: float = WINDOW_S, start_s: float = 0.0, step_s: float | None = None
) -> pd.DataFrame:
    """One row a whole window of the run from `start_s` on, `step_s` apart (None: end to end).

    Columns: `start_s`, `end_s`; of the turns completed in it `hit_ratio` (token-weighted), `turns_per_s`,
    `mean_context_tokens` (prompt) and `recomputed_per_s` (prompt tokens not cached); `sessions`, the time mean in the
    system. Raises `NotObserved` when the run holds no whole window after `start_s`."""
    step = step_s or width_s
    count = int(np.floor((duration_s(records) - start_s - width_s) / step + 1e-9)) + 1
    if count < 1:
        raise NotObserved(f"turns: a run of {duration_s(records)} s has no whole {width_s} s after {start_s} s")
    starts = start_s + step * np.arange(count)
    done = turns(records).sort_values("finished_s")
    first, last = (np.searchsorted(done["finished_s"], edge, "left") for edge in (starts, starts + width_s))
    prompt, cached = (np.append(0, done[f"{name}_tokens"].fillna(0).cumsum()) for name in ("prompt", "cached"))
    number, asked, found = last - first, prompt[last] - prompt[first], cached[last] - cached[first]
    return pd.DataFrame(
        {
            "start_s": starts,
            "end_s": starts + width_s,
            "hit_ratio": _ratios(found, asked),
            "turns_per_s": number / width_s,
            "mean_context_tokens": _ratios(asked, number),
            "recomputed_per_s": (asked - found) / width_s,
            "sessions": [in_system(records, (start, start + width_s)) for start in starts],
        }
    )


def gateway_waits(records: Records, gaps: Mapping[str, Sequence[float]]) -> pd.Series:
    """Seconds that each session was held at the gateway in all, by session: before its first call from its arrival on,
    and before every later one from the end of its gap on. `gaps`: seconds before every call, by trajectory.

    A call that was ready and not let through when the run ended has been held until then. Sessions of a warm start
    have no arrival and are left out."""
    sessions = records.sessions.to_pandas().set_index("session_id")
    sessions = sessions[sessions["group"] != "warm"]
    calls = records.calls.to_pandas().sort_values("call_index")
    released = dict(iter(calls.groupby("session_id")[["released_s", "finished_s"]]))
    none = calls.iloc[:0][["released_s", "finished_s"]]
    return pd.Series(
        {
            row.Index: _held_s(row, released.get(row.Index, none), gaps[row.trajectory_id], duration_s(records))
            for row in sessions.itertuples()
        },
        dtype=float,
    )


def _held_s(session: Any, calls: pd.DataFrame, gaps: Sequence[float], end_s: float) -> float:
    """Over the calls of one session that were let through, and the next one if there is to be one."""
    count = len(calls)
    ends = zip(calls["finished_s"], gaps[1:], strict=False)
    ready = np.array([session.arrival_s, *(finished + gap for finished, gap in ends)])
    released = calls["released_s"].to_numpy()
    if count < session.calls_planned and np.isnan(session.ended_s):
        released = np.append(released, end_s)
    held = released - ready[: len(released)]
    return float(np.nansum(np.clip(held, 0.0, None)))


def degraded_from(records: Records, after_s: float) -> float:
    """Start of a persistent degradation, in seconds; infinite if the run is not persistently degraded.

    It is that if every 5-minute window from its first degraded one (hit ratio below 0.5) after the trigger, which ends
    at `after_s`, to the end of the run is degraded (paper B §3). A window without a completed turn is degraded."""
    course = turn_windows(records, start_s=after_s)
    degraded = ~(course["hit_ratio"] >= DEGRADED_HIT).to_numpy()
    if not degraded.any() or not degraded[int(np.argmax(degraded)) :].all():
        return float("inf")
    return float(course["start_s"].iloc[int(np.argmax(degraded))])


def collapsed_at(records: Records, time_s: float) -> bool:
    """Whether the five minutes before a time are degraded."""
    return not turn_hit_ratio(records, (time_s - WINDOW_S, time_s)) >= DEGRADED_HIT


def recovered_after_s(records: Records, from_s: float) -> float:
    """Seconds from `from_s` to the start of the first 5-minute window, stepped by a minute, from which every later one
    has a hit ratio of at least 0.8, with ten minutes or more to follow (paper B Table 3); infinite without one."""
    course = turn_windows(records, start_s=from_s, step_s=STEP_S)
    bad = np.flatnonzero(~(course["hit_ratio"] >= RECOVERED_HIT).to_numpy())
    first = int(bad[-1]) + 1 if len(bad) else 0
    if first >= len(course) or duration_s(records) - course["start_s"].iloc[first] < FOLLOW_UP_S:
        return float("inf")
    return float(course["start_s"].iloc[first] - from_s)


def _stays(records: Records) -> tuple[np.ndarray, np.ndarray]:
    """Arrival and end of every session that arrives within the run; one that does not end leaves never."""
    arrived, left = (column(records.sessions, name) for name in ("arrival_s", "ended_s"))
    within = arrived < duration_s(records)
    return arrived[within], np.where(np.isnan(left), np.inf, left)[within]


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole else float("nan")


def _ratios(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0)
