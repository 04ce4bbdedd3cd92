"""Where arrivals meet departures: the peak, the equilibria, and what it takes to leave or regain the healthy one
(paper A §5.1 Fig. 9a, §5.2, §5.3).

Rates are sessions/s, durations seconds. A function that says "shape of the fields" takes deployments whose numbers
are arrays and answers for all of them at once; a rate then broadcasts against them.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sim.fluid.hits import Array
from sim.fluid.model import FluidDeployment

FALL = 1e-3
"""A curve whose departures never drop by this share below their peak has no falling branch."""
_FRACTIONS = np.concatenate([[0.0], np.geomspace(1e-3, 1, 600)])
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(96)


class Landscape(NamedTuple):
    """The departure curve's marks, shape of the fields."""

    peak_sessions: Array
    """N*; infinite where departures never fall, so that no surge can trap the deployment."""
    peak: Array
    """D(N*), the highest rate that can be served, sessions/s."""
    low: Array
    """D_low, the least departure rate past the peak, sessions/s; equals `peak` where the curve never falls."""
    trough_sessions: Array
    """Population at which departures are down at D_low; infinite if only approached."""


def landscape(d: FluidDeployment) -> Landscape:
    """Peak and low-reuse rate of D(N) (§5.1)."""
    n, rate = curve(d)
    at = rate.argmax(axis=-1)[..., None]
    top, peak = np.take_along_axis(n, at, -1)[..., 0], rate.max(axis=-1)
    past = np.where(np.arange(n.shape[-1]) >= at, rate, np.inf)
    low = np.minimum(past.min(axis=-1), d.low_reuse_departures)
    trough = np.where(past.min(axis=-1) <= low, np.take_along_axis(n, past.argmin(-1)[..., None], -1)[..., 0], np.inf)
    falls = (peak > low * (1 + FALL)) & (peak > d.low_reuse_departures)
    best = np.maximum(peak, d.low_reuse_departures)
    return Landscape(
        np.where(falls, top, np.inf),
        np.where(falls, peak, best),
        np.where(falls, low, best),
        np.where(falls, trough, np.inf),
    )


class OperatingPoint(NamedTuple):
    """Healthy equilibrium and tipping point at a load, shape of the fields; NaN where there is none."""

    stable: Array
    """N_s, where the population settles; NaN at or above the peak departure rate (overload)."""
    tipping: Array
    """N_u, beyond which departures stay below arrivals; NaN unless D_low < load < peak."""


def operating_point(d: FluidDeployment, rate: ArrayLike) -> OperatingPoint:
    """N_s and N_u at `rate` sessions/s (§5.1)."""
    marks = landscape(d)
    rate = np.asarray(rate, float)
    shape = np.broadcast_shapes(rate.shape, marks.peak.shape)
    n, departures = curve(d)
    end = n[..., -1]
    top = np.broadcast_to(np.where(np.isfinite(marks.peak_sessions), marks.peak_sessions, end), shape)
    trough = np.broadcast_to(np.where(np.isfinite(marks.trough_sessions), marks.trough_sessions, end), shape)
    stable = _crossing(lambda n: d.departures(n) - rate, np.zeros(shape), top)
    # the curve may dip and rise again before its last fall: the last point above the load is what counts
    above = (departures >= rate[..., None]) & (n <= trough[..., None])
    last = n.shape[-1] - 1 - above[..., ::-1].argmax(-1)
    grid = np.broadcast_to(n, above.shape)
    left, right = (
        np.take_along_axis(grid, np.minimum(last + i, n.shape[-1] - 1)[..., None], -1)[..., 0] for i in (0, 1)
    )
    tipping = _crossing(lambda n: rate - d.departures(n), left, right)
    return OperatingPoint(
        np.where(rate < marks.peak, stable, np.nan),
        np.where((rate > marks.low) & (rate < marks.peak), tipping, np.nan),
    )


class Equilibrium(NamedTuple):
    sessions: float
    stable: bool
    """True where departures rise through the arrival rate: a displaced population comes back."""


def equilibria(d: FluidDeployment, rate: float) -> list[Equilibrium]:
    """Every N with D(N) = `rate` sessions/s, in ascending order, for one deployment (fields without axes).

    Between D_low and the peak there are two (§5.1). Just above D_low, where the smooth minimum is still rising to
    its limit, a third one may stand far out: a population that is trapped but does not grow without end.
    """
    n, departures = curve(d)
    surplus = departures - rate
    at = np.flatnonzero(np.diff(np.sign(surplus)) != 0)
    rising = surplus[at + 1] > surplus[at]
    sign = np.where(rising, 1.0, -1.0)
    found = _crossing(lambda x: sign * (d.departures(x) - rate), n[at], n[at + 1])
    return [Equilibrium(float(x), bool(up)) for x, up in zip(found, rising, strict=True)]


def crossing_time_s(d: FluidDeployment, rate: float, factor: ArrayLike) -> Array:
    """Seconds for which arrivals must come at `factor` times `rate` to carry the population from N_s to N_u.

    The time of Eq. 1 from one to the other; infinite where the surge stays within the peak, or nothing tips.
    Shape of `factor`; one deployment.
    """
    return _crossing_time(d, operating_point(d, rate), np.asarray(factor, float) * rate)


def tipping_factor(d: FluidDeployment, rate: float, duration_s: ArrayLike) -> Array:
    """Smallest factor on `rate` that crosses the tipping point within `duration_s`; infinite where nothing tips.

    Shape of `duration_s`; one deployment.
    """
    duration = np.asarray(duration_s, float)
    point = operating_point(d, rate)
    if not np.isfinite(point.tipping):
        return np.full(duration.shape, np.inf)
    least = np.full(duration.shape, landscape(d).peak)
    most = least + 2 * (point.tipping - point.stable) / duration  # enough even if departures stayed at the peak
    return _crossing(lambda surge: duration - _crossing_time(d, point, surge), least, most) / rate


def _crossing_time(d: FluidDeployment, point: OperatingPoint, surge: Array) -> Array:
    """Integral of dN/(surge - D(N)) from N_s to N_u, by Gauss-Legendre; infinite where the integrand has a pole."""
    if not np.isfinite(point.tipping):
        return np.full(surge.shape, np.inf)
    half = (point.tipping - point.stable) / 2
    growth = surge[..., None] - d.departures(point.stable + half * (_NODES + 1))
    with np.errstate(divide="ignore"):
        return np.where((growth > 0).all(-1), (half * _WEIGHTS / growth).sum(-1), np.inf)


def backlog_drain_s(backlog: ArrayLike, peak: ArrayLike, rate: ArrayLike) -> Array:
    """S/(D(N*) - lambda): seconds until a backlog of S sessions is gone under resident-first order (Eq. 4).

    Rates in sessions/s; infinite when arrivals reach the peak.
    """
    surplus = np.asarray(peak, float) - rate
    return np.divide(backlog, surplus, out=np.full(np.broadcast(backlog, surplus).shape, np.inf), where=surplus > 0)


def curve(d: FluidDeployment) -> tuple[Array, Array]:
    """Populations, and departures at them, that cover everything which happens on D(N); shape (fields, grid).

    The peak itself is one of them: a load just below it meets the curve between two points of any grid.
    """
    reach = np.maximum(d.cliff_sessions, d.memory_sessions)
    departures = d.column().departures
    n = 4 * reach[..., None] * _FRACTIONS
    n, rates = np.broadcast_arrays(n, departures(n))
    at = rates.argmax(axis=-1)[..., None]
    left = np.take_along_axis(n, np.maximum(at - 1, 0), -1)
    right = np.take_along_axis(n, np.minimum(at + 1, n.shape[-1] - 1), -1)
    n = np.sort(np.concatenate([n, _highest(departures, left, right)], axis=-1), axis=-1)
    return n, departures(n)


def _crossing(f: Callable[[Array], Array], low: Array, high: Array) -> Array:
    """Where f turns from negative to positive between `low` and `high`, elementwise, by bisection."""
    for _ in range(60):
        middle = (low + high) / 2
        below = f(middle) < 0
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return (low + high) / 2


def _highest(f: Callable[[Array], Array], left: Array, right: Array) -> Array:
    """Where f, which has one top between `left` and `right`, is highest, elementwise, by ternary search."""
    for _ in range(40):  # (2/3)^40 of one grid step
        third = (right - left) / 3
        rising = f(left + third) < f(right - third)
        left, right = np.where(rising, left + third, left), np.where(rising, right, right - third)
    return (left + right) / 2
