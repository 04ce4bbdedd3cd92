"""Escape from the healthy equilibrium as a birth-death chain on the fluid model's departure curve.

Sessions arrive one by one at rate λ and leave one by one at rate D(N): paper B's remark that rare fluctuations of the
arrivals, not the mean load, decide when a server collapses (§4), in its simplest form. The chain knows only how many
sessions there are; it forgets how far each has come, how long its turns last and what the cache holds.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sim.fluid.hits import Array

Departures = Callable[[Array], Array]
"""D(N), sessions/s, of populations; `FluidDeployment.departures`, or a measured curve."""


class ChainEscape(NamedTuple):
    """Healthy population, the one from which arrivals outrun departures, and the mean time from one to the other."""

    healthy_sessions: int
    tipping_sessions: float
    mean_s: float


def escape_time(departures: Departures, arrivals_per_s: float, most_sessions: int = 10_000) -> ChainEscape:
    """Mean first passage from the healthy population to the tipping point.

    With h_n the mean time from n to n + 1 sessions, h_0 = 1/λ and h_n = (1 + D(n) h_(n-1))/λ; the passage is their sum.
    Healthy: the least n with D(n) >= λ; tipping: the least beyond it with D(n) < λ, infinite (as is the time) where
    there is none up to `most_sessions`. Raises `ValueError` where no population departs as fast as arrivals come.
    """
    n = np.arange(most_sessions + 1)
    rate = np.asarray(departures(n.astype(float)), dtype=float)
    served = rate >= arrivals_per_s
    if not served.any():
        raise ValueError(
            f"no equilibrium: departures reach {rate.max():.4g}/s, arrivals come at {arrivals_per_s:.4g}/s"
        )
    healthy = int(np.argmax(served))
    beyond = np.flatnonzero(~served[healthy:])
    if not len(beyond):
        return ChainEscape(healthy, float("inf"), float("inf"))
    tipping = healthy + int(beyond[0])
    step = 1 / arrivals_per_s
    total = step if healthy == 0 else 0.0
    for at in range(1, tipping):
        step = (1 + rate[at] * step) / arrivals_per_s
        total += step if at >= healthy else 0.0
    return ChainEscape(healthy, float(tipping), float(total))
