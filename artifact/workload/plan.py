"""From a load to the concrete sessions it stands for: who arrives when, with which trajectory."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from artifact.workload.arrivals import Stream, base_stream, burst_stream, stream_rng, surge_stream
from artifact.workload.catalog import workload
from artifact.workload.load import Group, Load, PlannedSession
from artifact.workload.trajectory import Trajectory

Unloaded = Callable[[Trajectory, int], float]
"""Seconds from the release of a call (by index) to the session's end on an idle engine."""

_DECK = 1_000
"""Purpose number of the shuffles, apart from those of the arrival layers."""


def plan_sessions(
    load: Load, trajectories: Sequence[Trajectory], seed: int, unloaded_s: Unloaded
) -> list[PlannedSession]:
    """The sessions of a run, by arrival time.

    Every base session (id, time, trajectory) is the same with and without surges and burst, and up to its time also
    with and without a rate change or a shift. A stream plays its trajectories in shuffled passes over the set (each
    once before any repeats, as a replay driver does), a burst those that end within its limit on an idle engine.

    Raises `ValueError` when there are no trajectories, or none is short enough for the burst.
    """
    if not trajectories:
        raise ValueError("plan_sessions: no trajectories to draw sessions from")
    played = _scaled(tuple(trajectories), load.tool_time_scale, load.output_scale)
    planned = _warm(load, played, seed, unloaded_s)
    planned += _base(load, played, seed)
    for index in range(len(load.surges)):
        deck = stream_rng(seed, "surge", index, purpose=_DECK)
        planned += _sessions(surge_stream(load, seed, index), "surge", played, deck)
    if load.burst:
        short = _short(played, load.burst.max_unloaded_s, unloaded_s)
        planned += _sessions(burst_stream(load, seed), "burst", short, stream_rng(seed, "burst", purpose=_DECK))
    return sorted(planned, key=lambda session: session.arrival_s)


def _base(load: Load, played: Sequence[Trajectory], seed: int) -> list[PlannedSession]:
    stream = base_stream(load, seed)
    sessions = _sessions(stream, "base", played, stream_rng(seed, "base", purpose=_DECK))
    if load.shift is None:
        return sessions
    other = _scaled(tuple(workload(load.shift.workload)), load.tool_time_scale, load.output_scale)
    shifted = _sessions(stream, "base", other, stream_rng(seed, "base", index=1, purpose=_DECK))
    return [
        after if after.arrival_s >= load.shift.at_s else before for before, after in zip(sessions, shifted, strict=True)
    ]


def _sessions(
    stream: Stream, group: Group, trajectories: Sequence[Trajectory], rng: np.random.Generator
) -> list[PlannedSession]:
    size = len(trajectories)
    passes = -(-len(stream.ids) // size)
    deck = np.concatenate([rng.permutation(size) for _ in range(max(passes, 1))])
    return [
        PlannedSession(id, time, trajectories[card], group)
        for id, time, card in zip(stream.ids, stream.times_s.tolist(), deck.tolist(), strict=False)
    ]


def _short(trajectories: Sequence[Trajectory], limit_s: float, unloaded_s: Unloaded) -> list[Trajectory]:
    short = [t for t in trajectories if unloaded_s(t, 0) <= limit_s]
    if not short:
        raise ValueError(f"burst: no trajectory ends within max_unloaded_s={limit_s:g} on an idle engine; raise it")
    return short


def _warm(load: Load, trajectories: Sequence[Trajectory], seed: int, unloaded_s: Unloaded) -> list[PlannedSession]:
    """The steady population: a session is inside in proportion to its duration, at a moment uniform within it.

    Sampled systematically (one random offset, equal steps through the shuffled set), so that the starting working set
    is near its mean: the published runs start "from steady operation".
    """
    rng = stream_rng(seed, "warm")
    trajectories = [trajectories[i] for i in rng.permutation(len(trajectories))]
    durations = np.array([unloaded_s(t, 0) for t in trajectories])
    count = load.warm_sessions
    if count is None:
        count = round(load.rate_per_min / 60 * float(durations.mean()))
    ends = np.cumsum(durations)
    moments = (np.arange(count) + rng.random()) / max(count, 1) * ends[-1]
    rows = np.searchsorted(ends, moments, side="right")
    joining = [
        _joining(f"warm-{i:05d}", trajectories[row], ends[row] - moment, unloaded_s)
        for i, (row, moment) in enumerate(zip(rows.tolist(), moments.tolist(), strict=True))
    ]
    if load.warm_start == "cached":
        return [replace(session, cached=session.first_call > 0) for session in joining]
    return [replace(session, first_gap_s=0.0) for session in joining]


def _joining(id: str, trajectory: Trajectory, left_s: float, unloaded_s: Unloaded) -> PlannedSession:
    """A session with `left_s` of its unloaded duration ahead, from its next call on. Until then it waits, for the rest
    of its gap or (there is no joining a call half-way) of the call that would be running; in its last call it starts
    that over."""
    low, high = 1, trajectory.n_calls
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if unloaded_s(trajectory, middle) <= left_s else (middle + 1, high)
    if low == trajectory.n_calls:
        return PlannedSession(id, 0.0, trajectory, "warm", trajectory.n_calls - 1)
    return PlannedSession(id, 0.0, trajectory, "warm", low, left_s - unloaded_s(trajectory, low))


@lru_cache(maxsize=16)
def _scaled(trajectories: tuple[Trajectory, ...], tool_time: float, output: float) -> tuple[Trajectory, ...]:
    """Cached, so that equal trajectories stay one object over the runs of a sweep."""
    if tool_time == output == 1:
        return trajectories
    return tuple(t.scaled(tool_time, output) for t in trajectories)
