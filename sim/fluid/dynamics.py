"""Populations and queues over time (paper A §5.1 Eq. 1, §5.3 Eq. 3): integration under surges and entry control.

    dN/dt = I - D(N),   dQ/dt = lambda(t) - I

Q counts sessions that wait for their first call, I is the rate at which they enter the active population.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy.integrate import solve_ivp

from artifact.workload.load import Load
from sim.fluid.equilibria import operating_point
from sim.fluid.hits import Array
from sim.fluid.model import FluidDeployment

REACTION_S = 10.0
"""Time constant with which an open entrance lets a queue in; short against sessions, which last minutes."""

Entry = Callable[[FluidDeployment, float], float]
"""Highest entry rate I, sessions/s, at a population N."""


def open_entry(d: FluidDeployment, n: float) -> float:
    """Every arriving session becomes active at once (Eq. 1)."""
    return np.inf


def resident_first(first_prompt_tokens: float) -> Entry:
    """New sessions use the prefill capacity that resident calls leave (§5.3), `first_prompt_tokens` uncached each.

    As misses grow, less is left; none where the residents' demand alone saturates prefill, hence N stays near N*.
    """

    def entry(d: FluidDeployment, n: float) -> float:
        demand = d.smooth_min(d.closed_loop(n), d.decode_bound) * d.uncached(n)
        return max(0.0, float(d.prefill_tokens_per_s - demand)) / first_prompt_tokens

    return entry


def admission(budget_tokens: float) -> Entry:
    """Sessions enter while the working set N c̄ is within the budget B (§5.3, §6.4)."""

    def entry(d: FluidDeployment, n: float) -> float:
        room = (budget_tokens / d.context_tokens - n) / REACTION_S
        return max(0.0, room + float(d.departures(n)))

    return entry


class Segment(NamedTuple):
    """Arrivals at a constant rate, sessions/s, until `end_s`."""

    end_s: float
    rate: float


def segments(load: Load) -> list[Segment]:
    """The arrival rate of a `Load` as constant pieces: base, surges and rate change (its burst of short sessions,
    which have contexts and lifetimes of their own, is not for this model)."""
    if load.burst is not None:
        raise ValueError(
            "load.burst: the fluid model has one kind of session; leave the burst out or use the simulator"
        )
    change = load.rate_change
    marks = {
        load.duration_s,
        *(t for s in load.surges for t in (s.start_s, s.end_s)),
        *((change.at_s,) if change else ()),
    }
    edges = [0.0, *sorted(t for t in marks if 0 < t <= load.duration_s)]

    def rate(t: float) -> float:
        factor = change.factor if change and t >= change.at_s else 1.0
        extra = sum(s.factor - 1 for s in load.surges if s.start_s <= t < s.end_s)
        return load.rate_per_min / 60 * (factor + extra)

    return [Segment(end, rate(start)) for start, end in pairwise(edges)]


@dataclass(frozen=True)
class Path:
    """One solution: columns over time, and when what was asked for happened (s; absent: it did not)."""

    time_s: Array
    active: Array
    """N."""
    queued: Array
    """Q."""
    arrivals: Array
    """lambda, sessions/s."""
    events: dict[str, float] = field(default_factory=dict)
    """`tipped`: N rose past the tipping point of the last segment's rate; `recovered`: after the last change of rate
    N came within 2% of N_s and Q under half a session; `drained`: Q fell under half a session."""


def integrate(
    d: FluidDeployment,
    arrivals: Sequence[Segment],
    entry: Entry = open_entry,
    active: float | None = None,
    queued: float = 0.0,
    step_s: float = 30.0,
) -> Path:
    """Solve Eq. 3 from `active` sessions (None: N_s of the first rate) and `queued` ones, one segment after another.

    Points are `step_s` apart. Raises `ValueError` where `active` is None and the first rate has no equilibrium.
    """
    if active is None:
        active = float(operating_point(d, arrivals[0].rate).stable)
        if np.isnan(active):
            raise ValueError(f"arrivals[0]: {arrivals[0].rate * 60:.3g} sessions/min exceed the peak; give `active`")
    after = operating_point(d, arrivals[-1].rate)
    times, states, rates = [np.zeros(1)], [np.array([[active], [queued]])], [[arrivals[0].rate]]
    events: dict[str, float] = {}
    for segment in arrivals:
        start = times[-1][-1]

        def flow(t: float, state: Array, rate: float = segment.rate) -> tuple[float, float]:
            n, q = max(state[0], 0.0), max(state[1], 0.0)
            enter = min(entry(d, n), rate + q / REACTION_S)
            return enter - float(d.departures(n)), rate - enter

        last = segment is arrivals[-1]
        watch = _watches(float(after.tipping), float(after.stable) if last else np.nan)
        solution = solve_ivp(
            flow,
            (start, segment.end_s),
            states[-1][:, -1],
            method="LSODA",
            t_eval=_points(start, segment.end_s, step_s),
            events=list(watch.values()),
            rtol=1e-6,
            atol=1e-3,
            max_step=60.0,
        )
        for name, seen in zip(watch, solution.t_events, strict=True):
            if len(seen):
                events.setdefault(name, float(seen[0]))
        times.append(solution.t)
        states.append(solution.y)
        rates.append([segment.rate] * len(solution.t))
    n, q = np.concatenate(states, axis=1)
    return Path(np.concatenate(times), n, q, np.concatenate(rates), events)


def _points(start: float, end: float, step: float) -> Array:
    return np.linspace(start, end, max(2, int(np.ceil((end - start) / step)) + 1))


def _watches(tipping: float, stable: float) -> dict[str, Callable[[float, Array], float]]:
    """Event functions for `solve_ivp`: zero where the event is, with the direction that counts."""

    def tipped(t: float, state: Array) -> float:
        return state[0] - tipping

    def drained(t: float, state: Array) -> float:
        return state[1] - 0.5

    def recovered(t: float, state: Array) -> float:
        return max(state[0] - 1.02 * stable, state[1] - 0.5)

    tipped.direction, drained.direction, recovered.direction = 1, -1, -1  # type: ignore[attr-defined]
    watch: dict[str, Callable[[float, Array], float]] = {"drained": drained}
    if np.isfinite(tipping):
        watch["tipped"] = tipped
    if np.isfinite(stable):
        watch["recovered"] = recovered
    return watch
