"""Workload A, on which simulators are compared: 1,500 closed-loop sessions of 33 calls with growing contexts.

Arrivals and gaps are whole milliseconds, which every reader of the exported trace takes.
"""

from pathlib import Path

import numpy as np

from artifact.workload.formats import native
from artifact.workload.load import Load
from artifact.workload.trajectory import Trajectory
from sim.scenario import Deployment, Scenario

SESSIONS = 1_500
CALLS = 33
SHARED_HEAD = 7_000
FIRST_PROMPT = 9_500
GROWTH = 1_000
"""Mean new tokens a call, so that the mean prompt is 25,500 and 49,500 calls bring 1.26G prompt tokens."""
MEAN_GAP_S = 5.0
MEAN_OUTPUT = 200
"""Near the median call of Terminal-Bench (160). More would cost a simulator with an event a token more, ours not."""
ARRIVALS_S = 3_600.0
"""Sessions arrive over an hour: 2P2D stays healthy."""
DRAINED_S = 7_200.0


def trajectories(sessions: int = SESSIONS, seed: int = 0) -> list[Trajectory]:
    """The sessions, from a fixed seed."""
    rng = np.random.default_rng(seed)
    return [_session(f"a-{i:05d}", rng) for i in range(sessions)]


def _session(id: str, rng: np.random.Generator) -> Trajectory:
    output = 1 + rng.geometric(1 / MEAN_OUTPUT, CALLS)
    result = 1 + rng.geometric(1 / (GROWTH - MEAN_OUTPUT), CALLS)  # what the tool returned
    new = np.concatenate([[FIRST_PROMPT], output[:-1] + result[1:]])
    gaps_ms = np.concatenate([[0], rng.exponential(1000 * MEAN_GAP_S, CALLS - 1).round()])
    return Trajectory(
        id,
        prompt_tokens=tuple(new.cumsum().tolist()),
        new_tokens=tuple(new.tolist()),
        output_tokens=tuple(output.tolist()),
        gap_before_s=tuple((gaps_ms / 1000).tolist()),
        shared_head_tokens=SHARED_HEAD,
    )


def write(path: Path, sessions: int = SESSIONS, arrivals_s: float = ARRIVALS_S) -> None:
    """The workload as a native trace with its arrivals, evenly spread in whole milliseconds."""
    made = trajectories(sessions)
    every_ms = round(1000 * arrivals_s / sessions)
    native.write(path, made, {t.id: i * every_ms / 1000 for i, t in enumerate(made)})


def scenario(path: Path, sessions: int = SESSIONS, arrivals_s: float = ARRIVALS_S) -> Scenario:
    """Two prefill and two decode H200 instances under the trace at `path`, until all is drained."""
    duration_s = arrivals_s + DRAINED_S - ARRIVALS_S
    load = Load(
        workload=str(path),
        rate_per_min=60 * sessions / duration_s,
        duration_s=duration_s,
        process="recorded",
        arrivals_path=str(path),
        warm_sessions=0,
    )
    return Scenario(deployment=Deployment(calibration="h200", prefill=2, decode=2), load=load)
