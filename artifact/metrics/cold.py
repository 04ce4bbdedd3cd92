"""What a turn costs when nothing of its prompt is cached, and the work that a backlog still holds at that cost
(paper B §4, "When can the degraded regime drain?")."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from artifact.metrics.run import NotObserved, column
from artifact.metrics.turns import turn_windows, turns
from artifact.records.schema import Records

WIDTH_S = 120.0
LEAST_RUNNING = 4
"""Requests in the engine, on the window's average, from which it counts as busy throughout."""
MISS_SHARE = 0.5
"""A turn misses if less than this share of its prompt is cached."""


class ColdCost(NamedTuple):
    """c(L) = `intercept_s` + `per_token_s` L, engine-seconds of a cold turn with a prompt of L tokens; `windows` is the
    number that it was fitted to."""

    intercept_s: float
    per_token_s: float
    windows: int

    def __call__(self, prompt_tokens: Sequence[int] | np.ndarray) -> float:
        """Engine-seconds of these turns together: a session's is S."""
        return self.intercept_s * len(prompt_tokens) + self.per_token_s * float(np.sum(prompt_tokens))


def fit_cold_cost(runs: Iterable[Records], start_s: float = 0.0, only_misses: bool = False) -> ColdCost:
    """Least squares of window length on the number of completed turns and their prompt tokens, over the complete
    two-minute windows in which at least four requests were running (with `only_misses`, and every turn missed).

    Raises `NotObserved` with fewer than three such windows."""
    rows = [_busy(run, start_s, only_misses) for run in runs]
    work = np.concatenate(rows) if rows else np.empty((0, 2))
    if len(work) < 3:
        raise NotObserved(f"cold cost: {len(work)} busy windows, of which a regression needs three")
    (intercept, per_token), *_ = np.linalg.lstsq(work, np.full(len(work), WIDTH_S), rcond=None)
    return ColdCost(float(intercept), float(per_token), len(work))


def running(records: Records, times_s: np.ndarray) -> np.ndarray:
    """Requests in the engine's batch at each time: scheduled and not finished."""
    begun, done = (column(records.calls, name) for name in ("scheduled_s", "finished_s"))
    begun, done = begun[~np.isnan(begun)], done[~np.isnan(done)]
    return np.searchsorted(np.sort(begun), times_s, "right") - np.searchsorted(np.sort(done), times_s, "right")


def mean_running(records: Records, start_s: float, end_s: float) -> float:
    """Time mean of `running`, at one reading a second."""
    return float(running(records, np.arange(start_s, end_s)).mean())


def missed(calls: pd.DataFrame) -> pd.Series:
    """Whether less than half of the prompt was cached, by row of `calls`."""
    return calls["cached_tokens"] < MISS_SHARE * calls["prompt_tokens"]


def remaining_cold_work(
    records: Records, prompts: Mapping[str, Sequence[int]], cost: ColdCost, times_s: np.ndarray
) -> np.ndarray:
    """Engine-seconds that the sessions in the system at each time would still take if every turn missed.

    `prompts`: the prompt of every turn, tokens, by trajectory."""
    sessions = records.sessions.to_pandas()
    ends = sessions["ended_s"].fillna(np.inf).to_numpy()
    done = records.calls.to_pandas().groupby("session_id")["finished_s"].apply(lambda times: np.sort(times.dropna()))
    work = np.zeros(len(times_s))
    for row, end in zip(sessions.itertuples(), ends, strict=True):
        inside = (row.arrival_s <= times_s) & (times_s < end)
        if inside.any():
            left = _cost_from(prompts[str(row.trajectory_id)], cost)
            finished = done.get(row.session_id, np.empty(0))
            work[inside] += left[np.searchsorted(finished, times_s[inside], "right")]
    return work


def _cost_from(prompt_tokens: Sequence[int], cost: ColdCost) -> np.ndarray:
    """Cost of the turns from the i-th on, for i from 0 to their number."""
    each = cost.intercept_s + cost.per_token_s * np.asarray(prompt_tokens, dtype=float)
    return np.append(np.cumsum(each[::-1])[::-1], 0.0)


def _busy(records: Records, start_s: float, only_misses: bool) -> np.ndarray:
    """Turns and prompt tokens of each window that counts, two columns."""
    course = turn_windows(records, WIDTH_S, start_s)
    busy = np.array([mean_running(records, s, e) >= LEAST_RUNNING for s, e in course[["start_s", "end_s"]].to_numpy()])
    count = course["turns_per_s"].to_numpy() * WIDTH_S
    kept = busy & (count > 0)
    if only_misses:
        done = turns(records)
        hits = done.loc[~missed(done), "finished_s"]
        kept &= np.histogram(hits, np.append(course["start_s"], course["end_s"].iloc[-1]))[0] == 0
    return np.column_stack([count, count * course["mean_context_tokens"].fillna(0.0).to_numpy()])[kept]
