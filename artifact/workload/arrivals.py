"""When sessions arrive: independent streams that can be added and thinned without disturbing one another.

A stream is a unit-rate marked Poisson process, warped to the offered rate. Each point has a height, uniform over a
layer of height one for every multiple of the base rate, and arrives when its height is below the factor in force. So a
higher factor only adds arrivals, and every factor shares the arrivals of the lower ones (paired runs, paper A §4).
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from artifact.workload.load import Load

Floats = NDArray[np.float64]
Warp = Callable[[Floats], Floats]
"""From expected arrivals so far to seconds: the inverse of the integrated rate."""

HOUR_S, WINDOW_S, STEP_S = 3600.0, 600.0, 60.0


@dataclass(frozen=True, slots=True)
class Burstiness:
    """A rate that wanders: the base rate times the exponential of an Ornstein-Uhlenbeck process, whose every hour is
    scaled to a mean of one."""

    sigma: float
    """Stationary standard deviation of the log rate."""
    correlation_s: float = WINDOW_S


# Stand-ins for two production traces that cannot be shipped. Only their burstiness is published: thinned to one
# deployment's rate, the busiest ten minutes exceed the hourly mean by 16% and 49% (paper A §4.1). `sigma` is fitted to
# that, Poisson noise of 9-20 sessions/min included (`mean_busiest_excess`).
BURSTINESS = {"bailian-coder": Burstiness(sigma=0.115), "bailian-a": Burstiness(sigma=0.445)}


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
    if load.process not in BURSTINESS:
        return lambda points: points / rate_s, rate_s * load.duration_s
    grid, level = _wandering(BURSTINESS[load.process], load.duration_s, stream_rng(seed, "rate"))
    expected = np.concatenate([[0.0], np.cumsum(level * STEP_S)]) * rate_s
    return lambda points: np.interp(points, expected, grid), float(np.interp(load.duration_s, grid, expected))


def _wandering(law: Burstiness, duration_s: float, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Edges of one-minute steps covering the run in whole hours, and the relative rate in each step."""
    per_hour = round(HOUR_S / STEP_S)
    steps = per_hour * int(np.ceil(duration_s / HOUR_S))
    keep = np.exp(-STEP_S / law.correlation_s)
    log_level = np.zeros(steps)
    state = rng.standard_normal()
    for i, shock in enumerate(rng.standard_normal(steps)):
        log_level[i] = law.sigma * state
        state = keep * state + np.sqrt(1 - keep**2) * shock
    level: Floats = np.exp(log_level).reshape(-1, per_hour)
    level /= level.mean(axis=1, keepdims=True)
    return STEP_S * np.arange(steps + 1, dtype=np.float64), level.ravel()


def _recorded_points(load: Load, seed: int) -> _Points:
    """The arrivals of a file, with heights such that thinning to the offered rate keeps those below one."""
    if load.arrivals_path is None:
        raise ValueError("load: process 'recorded' needs arrivals_path, a file of arrival times")
    times = read_arrivals(Path(load.arrivals_path))
    times = times[times < load.duration_s]
    recorded_per_min = len(times) / load.duration_s * 60
    room = recorded_per_min / load.rate_per_min
    wanted = max(1.0, load.rate_change.factor) if load.rate_change else 1.0
    if wanted > room * (1 + 1e-6):
        raise ValueError(
            f"{load.arrivals_path}: {recorded_per_min:.4g} arrivals/min in the first {load.duration_s:g} s cannot be "
            f"thinned to {wanted * load.rate_per_min:.4g}/min; lower rate_per_min"
        )
    heights = stream_rng(seed, "base", purpose=1).random(len(times)) * room
    picks = stream_rng(seed, "base", purpose=2).random(len(times))
    return _Points(times, heights, picks, tuple(f"base-0-{i:05d}" for i in range(len(times))))


def read_arrivals(path: Path) -> Floats:
    """Arrival times from a text file, one number of seconds a line, ascending; shifted to start at 0.

    Raises `ValueError` naming file and line of what is not a number or runs backwards.
    """
    times: list[float] = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            time = float(line)
        except ValueError:
            raise ValueError(f"{path}:{number}: {line.strip()!r} is not a time in seconds") from None
        if not np.isfinite(time) or (times and time < times[-1]):
            raise ValueError(f"{path}:{number}: time {line.strip()} does not follow {times[-1] if times else 0}")
        times.append(time)
    if not times:
        raise ValueError(f"{path}: no arrival times")
    return np.array(times) - times[0]


def busiest_excess(times_s: Floats, start_s: float = 0.0) -> float:
    """Arrivals in the busiest of an hour's six ten-minute windows over the hourly mean, minus one (paper A §4.1)."""
    edges = start_s + np.arange(0, HOUR_S + WINDOW_S, WINDOW_S)
    counts, _ = np.histogram(times_s, edges)
    return float(counts.max() / counts.mean() - 1)


def mean_busiest_excess(load: Load, rates_per_min: tuple[float, ...], seeds: range) -> float:
    """`busiest_excess` of the load's process, averaged over the hours of its runs, rates and seeds."""
    hours = np.arange(0, load.duration_s - HOUR_S + 1, HOUR_S)
    return float(
        np.mean(
            [
                busiest_excess(base_stream(load.model_copy(update={"rate_per_min": rate}), seed).times_s, start)
                for rate in rates_per_min
                for seed in seeds
                for start in hours
            ]
        )
    )


def _within(times_s: Floats, start_s: float, end_s: float) -> NDArray[np.bool_]:
    return (times_s >= start_s) & (times_s < end_s)
