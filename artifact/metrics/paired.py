"""A run against its pair: the same base arrivals without the surge (paper A §3.2, Fig. 4)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from artifact.metrics.run import duration_s
from artifact.metrics.states import HIT_DROP, MAX_TTFT_S, hit_before_trigger
from artifact.metrics.windows import windows
from artifact.records.schema import Records

WARM_UP_S = 300.0
"""Left out of the pair's band: a warm start begins with a cold cache."""
BAND_SLACK = 0.25


class Band(NamedTuple):
    """Bounds of normal service: highest 2-minute median TTFT, lowest hit rate."""

    ttft_s: float
    hit_rate: float


def duration_ratio(records: Records, paired: Records, bin_s: float = 600.0, from_s: float = 0.0) -> pd.DataFrame:
    """Session durations over those of the same sessions in the paired run, in bins of arrival time from `from_s` on
    (columns `start_s`, `end_s`, `ratio`, the median, and `sessions`).

    Sessions count that completed in the pair, warm ones excluded. One that has not completed here has lasted until the
    run's end at least, and that enters the median as long as fewer than half of a bin's sessions are such; otherwise
    the median is not known and `ratio` is NaN. Durations run from arrival, first-call wait included.
    """
    both = _base(records).join(_base(paired).add_suffix("_paired"), how="inner")
    both = both[(both["outcome_paired"] == "completed") & (both["arrival_s"] >= from_s)]
    done = both["outcome"] == "completed"
    ended = both["ended_s"].where(done, duration_s(records))
    both = both.assign(
        ratio=(ended - both["arrival_s"]) / (both["ended_s_paired"] - both["arrival_s_paired"]),
        start_s=from_s + (both["arrival_s"] - from_s) // bin_s * bin_s,
        done=done,
    )
    bins = both.groupby("start_s").agg(ratio=("ratio", "median"), sessions=("ratio", "size"), done=("done", "mean"))
    bins["ratio"] = bins["ratio"].where(bins["done"] > 0.5)
    bins = bins.reset_index()
    return bins.assign(end_s=bins["start_s"] + bin_s)[["start_s", "end_s", "ratio", "sessions"]]


def normal_band(controls: Sequence[Records]) -> Band:
    """What undisturbed runs stay within: the worst 2-minute window of all of them after their first five minutes, with
    a quarter of slack on TTFT and on the miss rate.

    A control that degrades by itself does not make that normal: TTFT stays bounded by the 5 s, and the hit rate by 0.10
    below that of minutes 5-15, at which §7.1 would call a window degraded and its reuse lost."""
    normal = pd.concat([windows(control, start_s=WARM_UP_S) for control in controls])
    miss = 1 - normal["hit_rate"].min()
    kept = float(np.median([hit_before_trigger(control) for control in controls])) - HIT_DROP
    return Band(
        min(float(normal["ttft_p50_s"].max() * (1 + BAND_SLACK)), MAX_TTFT_S),
        max(float(1 - miss * (1 + BAND_SLACK)), kept),
    )


def time_to_normal(records: Records, band: Band, from_s: float) -> float:
    """Minutes after `from_s` from which every later 2-minute window lies within the band; infinite if the last window
    does not. A window in which nothing was released or scheduled is not normal."""
    course = windows(records, start_s=from_s)
    outside = ~((course["ttft_p50_s"] <= band.ttft_s) & (course["hit_rate"] >= band.hit_rate)).to_numpy()
    if outside[-1]:
        return float("inf")
    bad = np.flatnonzero(outside)
    return 0.0 if not len(bad) else float((course["end_s"].iloc[bad[-1]] - from_s) / 60)


def _base(records: Records) -> pd.DataFrame:
    sessions = records.sessions.to_pandas().set_index("session_id")
    return sessions.loc[sessions["group"] == "base", ["arrival_s", "ended_s", "outcome"]]
