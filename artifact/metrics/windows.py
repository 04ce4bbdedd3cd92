"""Call metrics and their course over fixed windows (paper A §3 uses two minutes, §7.1 twenty)."""

import numpy as np
import pandas as pd

from artifact.metrics.run import (
    Interval,
    NotObserved,
    cache_tokens,
    capacity,
    column,
    counter_at,
    duration_s,
    nan_median,
)
from artifact.records.schema import Records

SAMPLED = (
    "active_sessions",
    "active_extra_sessions",
    "parked_sessions",
    "suspended_sessions",
    "working_set_tokens",
    "prefill_queue_calls",
    "decode_waiting_calls",
    "decode_running_calls",
    "decode_kv_running_tokens",
    "decode_kv_idle_tokens",
    "lent_tokens",
    "reference_budget_tokens",
    "budget_tokens",
)
"""Columns of `samples` of which a window reports the time mean."""

LATE_S = 1800.0


def ttft(records: Records) -> np.ndarray:
    """Seconds from a call's release to its first token, one a call. A call without one has waited at least until its
    session or the run ended: that lower bound stands in, so that a stalled engine does not look fast."""
    released, first = column(records.calls, "released_s"), column(records.calls, "first_token_s")
    without = np.isnan(first)
    return np.where(without, _given_up(records, without), first) - released


def hit_rate(records: Records, interval: Interval | None = None) -> float:
    """Cached over prompt tokens of the calls scheduled in the interval; NaN without any."""
    start, end = interval or (0.0, duration_s(records))
    scheduled = _scheduled(records)
    inside = (scheduled >= start) & (scheduled < end)
    prompt = column(records.calls, "prompt_tokens")[inside].sum()
    return float(np.nansum(column(records.calls, "cached_tokens")[inside]) / prompt) if prompt else float("nan")


def reserve_wait(records: Records, interval: Interval) -> float:
    """Median seconds that the calls released in the interval waited for decode memory."""
    released = column(records.calls, "released_s")
    inside = (released >= interval[0]) & (released < interval[1])
    return nan_median(column(records.calls, "reserve_wait_s")[inside])


def windows(records: Records, width_s: float = 120.0, start_s: float = 0.0) -> pd.DataFrame:
    """One row for each whole window of the run from `start_s` on; a remainder shorter than `width_s` is left out.

    Columns: `start_s`, `end_s`; `ttft_p50_s` of calls released in the window; `reserve_wait_p50_s` of the same;
    `hit_rate`, `prompt_tokens` and `uncached_tokens_per_s` (prompt tokens not found in any tier) of calls scheduled in
    it; `calls_per_min` finished in it; `computed_tokens_per_s`, the prefill engine's output by its counter, and
    `prefill_use`, that over the saturated throughput; the time mean of each column in `SAMPLED`;
    `active_base_sessions`; `w_over_c`, W over C; and of the decode KV capacity the shares `decode_kv_running`,
    `decode_kv_idle` (reserved, not decoding) and `decode_kv_used`, both together. What was not observed is NaN.

    Raises `NotObserved` when the run holds no whole window after `start_s`.
    """
    edges = _edges(records, width_s, start_s)
    computed = np.diff(counter_at(records, "computed_tokens_total", edges)) / width_s
    columns = {
        "start_s": edges[:-1],
        "end_s": edges[1:],
        **_by_release(records, edges),
        **_by_schedule(records, edges),
        "calls_per_min": _sums(column(records.calls, "finished_s"), None, edges) / (width_s / 60),
        "computed_tokens_per_s": computed,
        "prefill_use": computed / capacity(records, "saturated_prefill_tokens_per_s"),
        **_by_sample(records, edges),
    }
    return _with_shares(pd.DataFrame(columns), records)


def late_latency(records: Records, width_s: float = 120.0) -> float:
    """L_late: the highest window-median TTFT in the final 30 minutes, seconds (paper A §4)."""
    end = duration_s(records)
    return float(windows(records, width_s, start_s=max(0.0, end - LATE_S))["ttft_p50_s"].max())


def _scheduled(records: Records) -> np.ndarray:
    """When each call entered prefill; a real engine does not say, and the first token, a prefill later, stands in."""
    scheduled = column(records.calls, "scheduled_s")
    return np.where(np.isnan(scheduled), column(records.calls, "first_token_s"), scheduled)


def _given_up(records: Records, calls: np.ndarray) -> np.ndarray:
    """When the marked calls' sessions, or else the run, ended; NaN for the other calls."""
    ended = pd.Series(column(records.sessions, "ended_s"), index=column(records.sessions, "session_id"))
    at = np.full(len(calls), np.nan)
    at[calls] = ended.reindex(column(records.calls, "session_id")[calls]).fillna(duration_s(records))
    return at


def _edges(records: Records, width_s: float, start_s: float) -> np.ndarray:
    if not width_s > 0:
        raise ValueError(f"window width: {width_s} s is not positive")
    count = int(np.floor((duration_s(records) - start_s) / width_s + 1e-9))
    if count < 1:
        raise NotObserved(f"windows: a run of {duration_s(records)} s has no whole {width_s} s after {start_s} s")
    return start_s + width_s * np.arange(count + 1)


def _place(times_s: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Index of the window each time falls into; NaN and times outside get none (-1 or the number of windows)."""
    return np.searchsorted(edges, times_s, side="right") - 1


def _sums(times_s: np.ndarray, values: np.ndarray | None, edges: np.ndarray) -> np.ndarray:
    """Sum of the values (None: their number) by window; NaN counts as absent."""
    place, count = _place(times_s, edges), len(edges) - 1
    inside = (place >= 0) & (place < count)
    if values is None:
        return np.bincount(place[inside], minlength=count)
    return np.bincount(place[inside], np.nan_to_num(values[inside]), minlength=count)


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0)


def _by_release(records: Records, edges: np.ndarray) -> dict[str, np.ndarray]:
    values = {"ttft_p50_s": ttft(records), "reserve_wait_p50_s": column(records.calls, "reserve_wait_s")}
    place = _place(column(records.calls, "released_s"), edges)
    medians = pd.DataFrame(values).groupby(place).median().reindex(range(len(edges) - 1))
    return {name: medians[name].to_numpy() for name in values}


def _by_schedule(records: Records, edges: np.ndarray) -> dict[str, np.ndarray]:
    scheduled = _scheduled(records)
    prompt, cached = (_sums(scheduled, column(records.calls, f"{n}_tokens"), edges) for n in ("prompt", "cached"))
    return {
        "prompt_tokens": prompt,
        "hit_rate": _ratio(cached, prompt),
        "uncached_tokens_per_s": (prompt - cached) / np.diff(edges),
    }


def _by_sample(records: Records, edges: np.ndarray) -> dict[str, np.ndarray]:
    time = column(records.samples, "time_s")
    values = {name: column(records.samples, name) for name in SAMPLED}
    return {n: _ratio(_sums(time, v, edges), _sums(time, ~np.isnan(v), edges)) for n, v in values.items()}


def _with_shares(frame: pd.DataFrame, records: Records) -> pd.DataFrame:
    decode_kv = capacity(records, "decode_kv_tokens")
    running, idle = frame["decode_kv_running_tokens"] / decode_kv, frame["decode_kv_idle_tokens"] / decode_kv
    return frame.assign(
        active_base_sessions=frame["active_sessions"] - frame["active_extra_sessions"],
        w_over_c=frame["working_set_tokens"] / cache_tokens(records),
        decode_kv_running=running,
        decode_kv_idle=idle,
        decode_kv_used=running + idle,
    )
