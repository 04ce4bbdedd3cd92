"""What a recorded load ramp says: the cliff, and the engine rates that Eq. 1 needs (paper A §6.5)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from artifact.control.profile import RampPoint, fit_kappa
from sim.risk.question import UsageError

Columns = dict[str, NDArray[np.float64]]

WINDOW_S = 120.0
"""Counters are read over windows of this length, as the paper reads its own (§3.3)."""
HEALTHY = 0.85
"""Share of the way from floor to plateau from which on a point counts as healthy."""
COUNTERS = ("prompt_tokens_total", "cached_tokens_total", "computed_tokens_total", "calls_done_total")
IN_SERVICE = ("prefill_queue_calls", "decode_waiting_calls", "decode_running_calls")


@dataclass(frozen=True)
class Ramp:
    """Settled points or windows of a run, one entry each. None: the file does not hold it."""

    hit_rate: NDArray[np.float64]
    working_set_tokens: NDArray[np.float64] | None = None
    active_sessions: NDArray[np.float64] | None = None
    calls_per_min: NDArray[np.float64] | None = None
    computed_tokens_per_s: NDArray[np.float64] | None = None
    in_service: NDArray[np.float64] | None = None
    """Requests in a call, not in a tool."""


def read_ramp(path: Path) -> Ramp:
    """Read a CSV or Parquet file with one row a settled point, or the `samples` table of a run.

    Columns: `hit_rate`, or the counters `prompt_tokens_total`, `cached_tokens_total` and `time_s`; `working_set_tokens`
    or `active_sessions`; where there are, `calls_per_min` or `calls_done_total`, `computed_tokens_per_s` or
    `computed_tokens_total`, `in_service` or the samples' queue columns. Raises `UsageError` naming what is missing.
    """
    columns = _columns(path)
    if "hit_rate" not in columns:
        columns = _windows(columns, path)
    if "working_set_tokens" not in columns and "active_sessions" not in columns:
        raise UsageError(f"{path}: needs a column working_set_tokens or active_sessions; it has {_names(columns)}")
    if "in_service" not in columns and all(name in columns for name in IN_SERVICE):
        columns["in_service"] = np.sum([columns[name] for name in IN_SERVICE], axis=0)
    complete = np.isfinite(columns["hit_rate"])
    hits = columns["hit_rate"][complete]
    if np.any((hits < 0) | (hits > 1)):
        raise UsageError(
            f"{path}: hit_rate ranges from {hits.min():g} to {hits.max():g}; give it as a fraction, 0 to 1"
        )
    held: dict[str, Any] = {name: columns[name][complete] for name in Ramp.__dataclass_fields__ if name in columns}
    return Ramp(**held)


def measure(ramp: Ramp, known: Mapping[str, Any], path: Path) -> dict[str, float]:
    """Fields of a `Question` that the ramp settles, given those `known` from file and options.

    Raises `UsageError` when the ramp has no cliff or a needed number is missing.
    """
    capacity, context = known.get("cache_tokens"), known.get("context_tokens")
    if capacity is None:
        raise UsageError("--cache-tokens is missing: a ramp gives the cliff relative to the prefix cache")
    found: dict[str, float] = {}
    w, n = ramp.working_set_tokens, ramp.active_sessions
    if context is None and w is not None and n is not None:
        found["context_tokens"] = context = float(np.median(w[n > 0] / n[n > 0]))
    if w is None:
        if context is None:
            raise UsageError(f"{path}: has no working_set_tokens: add --context-tokens to turn sessions into tokens")
        assert n is not None
        w = n * float(context)
    try:
        fit = fit_kappa([RampPoint(*p) for p in zip(w.tolist(), ramp.hit_rate.tolist(), strict=True)], float(capacity))
    except ValueError as error:
        raise UsageError(f"{path}: {error}; drive the load on until the hit rate is down at its floor") from None
    found |= {"kappa": fit.kappa, "plateau": fit.plateau, "floor": fit.floor}
    reuse = (ramp.hit_rate - fit.floor) / (fit.plateau - fit.floor)
    prompt = float(known.get("prompt_tokens") or context or 0)
    return found | _health(ramp, reuse >= HEALTHY) | _saturation(ramp, reuse < 1 - HEALTHY, fit.floor, prompt)


def _health(ramp: Ramp, healthy: NDArray[np.bool_]) -> dict[str, float]:
    """Population, call rate and fraction in service in health, and how calls slow one another down there."""
    n, calls, busy = ramp.active_sessions, ramp.calls_per_min, ramp.in_service
    if n is None or calls is None or not np.any(at := healthy & (n > 0) & (calls > 0)):
        return {}
    middle = np.flatnonzero(at)[np.argsort(n[at])[at.sum() // 2]]
    found = {"active_sessions": float(n[middle]), "calls_per_min": float(calls[middle])}
    if busy is None or not np.any(at := at & (busy > 0)):
        return found
    found["in_service"] = float(np.clip(np.median(busy[at] / n[at]), 1e-3, 1))
    others = found["in_service"] * found["active_sessions"]
    if np.ptp(busy[at]) > 0.2 * others:  # a line through one population is no line
        slope = np.polyfit(busy[at], 60 * busy[at] / calls[at], 1)[0]  # Little: latency is in service over throughput
        steepest = 0.9 * 60 / found["calls_per_min"]
        found["latency_s_per_request"] = float(np.clip(slope, 0, steepest))
    return found


def _saturation(ramp: Ramp, collapsed: NDArray[np.bool_], floor: float, prompt: float) -> dict[str, float]:
    """Saturated prefill rate, from its counter or from the call rate once the cache has collapsed."""
    if ramp.computed_tokens_per_s is not None:
        return {"prefill_tokens_per_s": float(np.nanmax(ramp.computed_tokens_per_s))}
    if ramp.calls_per_min is not None and prompt and collapsed.any():
        return {"prefill_tokens_per_s": float(np.median(ramp.calls_per_min[collapsed])) / 60 * (1 - floor) * prompt}
    return {}


def _columns(path: Path) -> Columns:
    import pyarrow as pa

    try:
        if path.suffix == ".parquet":
            from pyarrow.parquet import read_table

            table = read_table(path)
        else:
            from pyarrow.csv import read_csv

            table = read_csv(path)
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file") from None
    except (OSError, pa.ArrowInvalid) as error:
        raise UsageError(f"{path}: cannot be read as CSV or Parquet: {error}") from None
    wanted = {*Ramp.__dataclass_fields__, *COUNTERS, *IN_SERVICE, "time_s"}
    numbers: Columns = {}
    for name in wanted & set(table.column_names):
        try:
            numbers[name] = np.asarray(table[name].cast(pa.float64()).to_numpy(), float)
        except pa.ArrowInvalid as error:
            raise UsageError(f"{path}: column {name} holds something other than numbers: {error}") from None
    if table.num_rows == 0:
        raise UsageError(f"{path}: has no rows")
    return numbers


def _windows(columns: Columns, path: Path) -> Columns:
    """Rates from counters, and means of the other columns, over windows of two minutes."""
    needed = ("time_s", "prompt_tokens_total", "cached_tokens_total")
    if absent := [name for name in needed if name not in columns]:
        raise UsageError(
            f"{path}: needs a column hit_rate, or the counters {', '.join(needed)}; {', '.join(absent)} "
            f"{'is' if len(absent) == 1 else 'are'} missing, it has {_names(columns)}"
        )
    window = np.floor(columns["time_s"] / WINDOW_S).astype(int)
    starts = np.flatnonzero(np.diff(window, prepend=window[0] - 1))
    if len(starts) < 2:
        raise UsageError(f"{path}: covers less than two windows of {WINDOW_S:g} s, too short for a ramp")
    counts = np.diff(starts, append=len(window))[:-1]
    means = {
        name: np.add.reduceat(values, starts)[:-1] / counts for name, values in columns.items() if name not in COUNTERS
    }
    per_s = {
        name: np.diff(columns[name][starts]) / np.diff(columns["time_s"][starts])
        for name in COUNTERS
        if name in columns
    }
    prompt = per_s["prompt_tokens_total"]
    hits = np.divide(per_s["cached_tokens_total"], prompt, out=np.full(len(prompt), np.nan), where=prompt > 0)
    rates = {"hit_rate": hits}
    if "calls_done_total" in per_s:
        rates["calls_per_min"] = per_s["calls_done_total"] * 60
    if "computed_tokens_total" in per_s:
        rates["computed_tokens_per_s"] = per_s["computed_tokens_total"]
    return means | rates


def _names(columns: Columns) -> str:
    return ", ".join(sorted(columns)) or "none of the known columns"
