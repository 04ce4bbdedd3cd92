"""What every metric asks of a run: its columns, its length, its trigger, its capacities."""

from typing import Any

import numpy as np
import pyarrow as pa

from artifact.records.schema import Records

Interval = tuple[float, float]


class NotObserved(ValueError):
    """The run cannot show what was asked, for instance because it ends too early; the message says why."""


NOMINAL_TRIGGER_S: Interval = (900.0, 900.0)
"""Stands in for the trigger of a run that has none (a control, or steady overload): minute 15, when the surges of both
papers begin."""


def column(table: pa.Table, name: str) -> np.ndarray:
    """One column as an array; a null in a numeric column becomes NaN. Raises `KeyError` naming an unknown column."""
    return table.column(name).to_numpy()


def duration_s(records: Records) -> float:
    """Length of the run. Raises `ValueError` when its provenance does not say."""
    return float(_meta(records, "duration_s"))


def trigger(records: Records) -> Interval:
    """Start and end of the surge or burst, or `NOMINAL_TRIGGER_S` for a run without one."""
    found = records.meta.get("trigger")
    return (float(found["start_s"]), float(found["end_s"])) if found else NOMINAL_TRIGGER_S


def capacity(records: Records, key: str) -> float:
    """`prefill_cache_tokens`, `host_cache_tokens`, `decode_kv_tokens` (tokens over all instances) or
    `saturated_prefill_tokens_per_s`. Raises `ValueError` when the run's provenance lacks it."""
    capacities = _meta(records, "capacity")
    if key not in capacities:
        raise ValueError(f"records: meta['capacity'] has no {key!r} (it has {sorted(capacities)}); record the run anew")
    return float(capacities[key])


def cache_tokens(records: Records) -> float:
    """C: the tokens of prefix that can be kept. A host tier is inclusive, so the larger tier counts (paper A §7.1)."""
    return max(capacity(records, "prefill_cache_tokens"), capacity(records, "host_cache_tokens"))


def rate(records: Records, counter: str, interval: Interval) -> float:
    """Mean increase per second of a `*_total` column of `samples` over the interval, interpolated between samples."""
    start, end = interval
    value = counter_at(records, counter, np.array([start, end]))
    return float((value[1] - value[0]) / (end - start))


def sampled(records: Records, name: str, interval: Interval) -> float:
    """Mean of a column of `samples` over the interval; NaN without a sample in it."""
    time = column(records.samples, "time_s")
    return nan_mean(column(records.samples, name)[(time >= interval[0]) & (time < interval[1])])


def counter_at(records: Records, counter: str, times_s: np.ndarray) -> np.ndarray:
    """A counter of `samples` at the given times, linear between samples; NaN where not measured.

    It starts at 0 with the run, and up to one sampling interval after the last sample it goes on as before it."""
    time, value = column(records.samples, "time_s"), column(records.samples, counter)
    known = ~np.isnan(value)
    if not known.any():
        return np.full(len(times_s), np.nan)
    time, value = np.append(0.0, time[known]), np.append(0.0, value[known])
    interval = time[-1] - time[-2]
    time, value = np.append(time, time[-1] + interval), np.append(value, 2 * value[-1] - value[-2])
    return np.interp(times_s, time, value, right=np.nan)


def nan_mean(values: np.ndarray) -> float:
    return float(np.nanmean(values)) if np.any(~np.isnan(values)) else float("nan")


def nan_median(values: np.ndarray) -> float:
    return float(np.nanmedian(values)) if np.any(~np.isnan(values)) else float("nan")


def _meta(records: Records, key: str) -> Any:
    if key not in records.meta:
        raise ValueError(f"records: meta has no {key!r} (it has {sorted(records.meta)}); record the run anew")
    return records.meta[key]
