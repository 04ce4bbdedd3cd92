"""The cache cliff: hit rate against working set over cache size (paper A §3.3, Fig. 6b)."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd

from artifact.metrics.run import NotObserved
from artifact.metrics.windows import windows
from artifact.records.schema import Records

BIN_WIDTH = 0.1
MIN_WINDOWS = 3
SAME_DROP = 0.5
"""A step next to the steepest belongs to the same drop if it falls at least half as much per W/C."""


class HitCurve(NamedTuple):
    """`points`: one 2-minute window a row (`w_over_c`, `hit_rate`). `bins`: centre `w_over_c`, median `hit_rate` and
    number of `windows` of each bin of W/C."""

    points: pd.DataFrame
    bins: pd.DataFrame


class Knee(NamedTuple):
    """`w_over_c` is the midpoint of the steepest step between neighbouring bins; `shoulder` and `floor` are the median
    hit rates of the bins just before and just after the whole drop that the step belongs to."""

    w_over_c: float
    shoulder: float
    floor: float


def hit_curve(runs: Iterable[Records], bin_width: float = BIN_WIDTH, min_windows: int = MIN_WINDOWS) -> HitCurve:
    """The binned median over the 2-minute windows of all `runs`; bins with fewer than `min_windows` are left out.

    Raises `ValueError` without a run."""
    frames = [windows(run)[["w_over_c", "hit_rate"]] for run in runs]
    if not frames:
        raise ValueError("hit curve: no runs")
    points = pd.concat(frames, ignore_index=True).dropna()
    place = np.floor(points["w_over_c"] / bin_width + 1e-9)
    bins = points.groupby(place)["hit_rate"].agg(hit_rate="median", windows="size")
    bins = bins[bins["windows"] >= min_windows]
    centre = (bins.index.to_numpy() + 0.5) * bin_width
    return HitCurve(points, bins.reset_index(drop=True).assign(w_over_c=centre)[["w_over_c", "hit_rate", "windows"]])


def knee(curve: HitCurve) -> Knee:
    """Where the binned median falls most steeply. Raises `NotObserved` for a curve that never falls."""
    w, hit = curve.bins["w_over_c"].to_numpy(), curve.bins["hit_rate"].to_numpy()
    slope = np.diff(hit) / np.diff(w)
    if not len(slope) or not slope.min() < 0:
        raise NotObserved(f"knee: the hit rate never falls over the {len(w)} bins of W/C observed")
    first = last = steepest = int(np.argmin(slope))
    while first > 0 and slope[first - 1] <= SAME_DROP * slope[steepest]:
        first -= 1
    while last + 1 < len(slope) and slope[last + 1] <= SAME_DROP * slope[steepest]:
        last += 1
    return Knee(float(w[steepest] + w[steepest + 1]) / 2, float(hit[first]), float(hit[last + 1]))
