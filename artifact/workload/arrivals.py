"""When sessions arrive: independent streams that can be added and thinned without disturbing one another.

A stream is a unit-rate marked Poisson process, warped to the offered rate. Each point has a height, uniform over a
layer of height one for every multiple of the base rate, and arrives when its height is below the factor in force. So a
higher factor only adds arrivals, and every factor shares the arrivals of the lower ones (paired runs, paper A §4).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from artifact.workload.load import Load

Floats = NDArray[np.float64]
Warp = Callable[[Floats], Floats]
"""From expected arrivals so far to seconds: the inverse of the integrated rate."""

STEP_S, WINDOW_S, PATTERN_S = 60.0, 600.0, 7200.0

RATE_EXCESS = {"bailian-coder": 0.073, "bailian-a": 0.48}
"""Stand-ins for two production traces of two hours that cannot be shipped: how far the busiest ten-minute window of the
rate itself exceeds its mean. Only burstiness is published: thinned to one deployment's rate, the traces' busiest ten
minutes exceed the hourly mean by 16% and 49% (paper A §4.1). The values are fitted so that arrivals do, with the
Poisson noise of 9-20 sessions/min; what the rate does in between is a random walk of ours."""

FITTED_CLAIM = "A-wl-bailian-burst"
"""The claim that these values are fitted to."""


@dataclass(frozen=True)
class Stream:
    """Arrivals of one stream. `picks` are uniform in [0, 1), one an arrival, to draw its trajectory with; `ids` number
    the points before any thinning, so a session keeps its id whatever the factor."""

    times_s: Floats
    picks: Floats
    ids: tuple[str, ...]


def base_stream(load: Load, seed: int) -> Stream:
    """The base arrivals in [0, duration), `load.rate_change` applied."""
    change = load.rate_change
    top = max(1.0, change.factor) if change else 1.0
    points = _recorded_points(load, seed) if load.process == "recorded" else _points(load, seed, ("base", 0), top)
    factor = np.ones(len(points.times_s))
    if change:
        factor[points.times_s >= change.at_s] = change.factor
    return points.where(points.heights < factor)


def surge_stream(load: Load, seed: int, index: int) -> Stream:
    """What `load.surges[index]` adds to the base arrivals."""
    surge = load.surges[index]
    points = _points(load, seed, ("surge", index), surge.factor - 1)
    return points.where((points.heights < surge.factor - 1) & _within(points.times_s, surge.start_s, surge.end_s))


def burst_stream(load: Load, seed: int) -> Stream:
    """Arrivals of `load.burst`; empty when there is none."""
    if load.burst is None:
        return Stream(np.zeros(0), np.zeros(0), ())
    points = _points(load, seed, ("burst", 0), load.burst.rate_factor)
    kept = (points.heights < load.burst.rate_factor) & _within(points.times_s, load.burst.start_s, load.burst.end_s)
    return points.where(kept)


def stream_rng(seed: int, stream: str, index: int = 0, purpose: int = 0) -> np.random.Generator:
    """The random numbers of one purpose of one stream, independent of all others of the same seed."""
    code = ("rate", "base", "surge", "burst", "warm").index(stream)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(code, index, purpose)))


@dataclass(frozen=True)
class _Points:
    times_s: Floats
    heights: Floats
    picks: Floats
    ids: tuple[str, ...]

    def where(self, kept: NDArray[np.bool_]) -> Stream:
        rows = np.flatnonzero(kept)
        return Stream(self.times_s[rows], self.picks[rows], tuple(self.ids[row] for row in rows))


def _points(load: Load, seed: int, stream: tuple[str, int], top: float) -> _Points:
    """All points of a stream's layers up to height `top`."""
    warp, total = _warp(load, seed)
    name, index = stream
    label = name if index == 0 else f"{name}{index + 1}"
    layers = []
    for layer in range(int(np.ceil(top))):
        times = warp(_unit_points(total, stream_rng(seed, name, index, 3 * layer)))
        heights = layer + stream_rng(seed, name, index, 3 * layer + 1).random(len(times))
        picks = stream_rng(seed, name, index, 3 * layer + 2).random(len(times))
        ids = tuple(f"{label}-{layer}-{i:05d}" for i in range(len(times)))
        layers.append(_Points(times, heights, picks, ids))
    if not layers:
        return _Points(np.zeros(0), np.zeros(0), np.zeros(0), ())
    times, heights, picks = (
        np.concatenate([getattr(points, name) for points in layers]) for name in ("times_s", "heights", "picks")
    )
    return _Points(times, heights, picks, tuple(i for points in layers for i in points.ids))


def _unit_points(total: float, rng: np.random.Generator) -> Floats:
    """A unit-rate Poisson process on [0, total); a larger total only adds points."""
    block = int(total + 6 * np.sqrt(total)) + 10
    points = np.cumsum(rng.exponential(size=block))
    while points[-1] < total:
        points = np.concatenate([points, points[-1] + np.cumsum(rng.exponential(size=block))])
    return points[points < total]


def _warp(load: Load, seed: int) -> tuple[Warp, float]:
    """How expected arrivals map to seconds, and how many there are in the whole run."""
    rate_s = load.rate_per_min / 60
    if load.process not in RATE_EXCESS:
        return lambda points: points / rate_s, rate_s * load.duration_s
    level = _wandering_rate(RATE_EXCESS[load.process], stream_rng(seed, "rate"))
    level = np.tile(level, int(np.ceil(load.duration_s / PATTERN_S)))
    grid = STEP_S * np.arange(len(level) + 1, dtype=np.float64)
    expected = np.concatenate([[0.0], np.cumsum(level)]) * STEP_S * rate_s
    return lambda points: np.interp(points, expected, grid), float(np.interp(load.duration_s, grid, expected))


def _wandering_rate(excess: float, rng: np.random.Generator) -> Floats:
    """A two-hour pattern of relative rates, one a minute, with mean one: the exponential of a first-order random walk
    with a correlation time of ten minutes, its spread such that the busiest window has the excess."""
    keep = np.exp(-STEP_S / WINDOW_S)
    shocks = rng.standard_normal(round(PATTERN_S / STEP_S))
    shocks[1:] *= np.sqrt(1 - keep**2)
    walk = np.array(list(accumulate(shocks.tolist(), lambda state, shock: keep * state + shock)))

    def level(spread: float) -> Floats:
        relative = np.exp(spread * walk)
        return np.asarray(relative / relative.mean(), dtype=np.float64)

    def busiest(spread: float) -> float:
        return float(level(spread).reshape(-1, round(WINDOW_S / STEP_S)).mean(axis=1).max())

    return level(brentq(lambda spread: busiest(spread) - 1 - excess, 0.0, 10.0))


def _recorded_points(load: Load, seed: int) -> _Points:
    """The arrivals of a trace, with heights such that thinning to the offered rate keeps those below one."""
    assert load.arrivals_path is not None  # `Load` sees to it
    times = np.array(recorded_arrivals(load.arrivals_path))
    times = times[times < load.duration_s]
    recorded_per_min = len(times) / load.duration_s * 60
    room = recorded_per_min / load.rate_per_min
    wanted = max(1.0, load.rate_change.factor) if load.rate_change else 1.0
    if wanted > room * (1 + 1e-9):
        raise ValueError(
            f"{load.arrivals_path}: {recorded_per_min:.4g} arrivals/min in the first {load.duration_s:g} s cannot be "
            f"thinned to {wanted * load.rate_per_min:.4g}/min: lower rate_per_min"
        )
    heights = stream_rng(seed, "base", purpose=1).random(len(times)) * room
    picks = stream_rng(seed, "base", purpose=2).random(len(times))
    return _Points(times, heights, picks, tuple(f"base-0-{i:05d}" for i in range(len(times))))


@cache
def recorded_arrivals(path: str) -> tuple[float, ...]:
    """Arrivals in a trace file, in seconds from the first, ascending; sub-agents do not count.

    Raises what `artifact.workload.formats.load` raises, and `ValueError` where the trace records no arrivals.
    """
    from artifact.workload.formats import load  # the formats' tokenizer is slow to import

    trace = load(path)
    times = sorted(trace.arrivals_s[t.id] for t in trace if t.parent_id is None and t.id in trace.arrivals_s)
    if not times:
        raise ValueError(f"{path}: a trace of format {trace.format} without arrival times: choose another process")
    return tuple(time - times[0] for time in times)


def _within(times_s: Floats, start_s: float, end_s: float) -> NDArray[np.bool_]:
    return (times_s >= start_s) & (times_s < end_s)
