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
    """Seconds from a call's release to its first token, one a call. A call still without one at the run's end has
    waited at least until then: that lower bound stands in, so that a stalled engine does not look fast."""
    released, first = column(records.calls, "released_s"), column(records.calls, "first_token_s")
    return np.where(np.isnan(first), duration_s(records), first) - released


def hit_rate(records: Records, interval: Interval | None = None) -> float:
    """Cached over prompt tokens of the calls scheduled in the interval; NaN without any."""
    start, end = interval or (0.0, duration_s(records))
    scheduled = column(records.calls, "scheduled_s")
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
    frame = pd.DataFrame({"start_s": edges[:-1], "end_s": edges[1:]})
    frame = frame.join(_by_release(records, edges)).join(_by_schedule(records, edges))
    finished = column(records.calls, "finished_s")
    frame["calls_per_min"] = np.histogram(finished[~np.isnan(finished)], edges)[0] / (width_s / 60)
    computed = counter_at(records, "computed_tokens_total", edges)
    frame["computed_tokens_per_s"] = np.diff(computed) / width_s
    frame["prefill_use"] = frame["computed_tokens_per_s"] / capacity(records, "saturated_prefill_tokens_per_s")
    return _with_shares(frame.join(_by_sample(records, edges)), records)


def late_latency(records: Records, width_s: float = 120.0) -> float:
    """L_late: the highest window-median TTFT in the final 30 minutes, seconds (paper A §4)."""
    end = duration_s(records)
    return float(windows(records, width_s, start_s=max(0.0, end - LATE_S))["ttft_p50_s"].max())


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


def _by_window(table: dict[str, np.ndarray], times_s: np.ndarray, edges: np.ndarray) -> pd.api.typing.DataFrameGroupBy:
    return pd.DataFrame(table).groupby(_place(times_s, edges))


def _by_release(records: Records, edges: np.ndarray) -> pd.DataFrame:
    values = {"ttft_p50_s": ttft(records), "reserve_wait_p50_s": column(records.calls, "reserve_wait_s")}
    grouped = _by_window(values, column(records.calls, "released_s"), edges)
    return grouped.median().reindex(range(len(edges) - 1))


def _by_schedule(records: Records, edges: np.ndarray) -> pd.DataFrame:
    calls = {name: column(records.calls, f"{name}_tokens") for name in ("prompt", "cached")}
    total = _by_window(calls, column(records.calls, "scheduled_s"), edges).sum().reindex(range(len(edges) - 1))
    return pd.DataFrame(
        {
            "prompt_tokens": total["prompt"].fillna(0),
            "hit_rate": total["cached"] / total["prompt"],
            "uncached_tokens_per_s": (total["prompt"] - total["cached"]).fillna(0) / np.diff(edges),
        }
    )


def _by_sample(records: Records, edges: np.ndarray) -> pd.DataFrame:
    values = {name: column(records.samples, name).astype(float) for name in SAMPLED}
    return _by_window(values, column(records.samples, "time_s"), edges).mean().reindex(range(len(edges) - 1))


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
