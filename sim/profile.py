"""Deployment profiles measured on the simulator (paper A §6.5): where the cache cliff lies, how fast sessions leave.

One ramp is one run in which the number of active sessions climbs in steps. New sessions stand at the door all the
time and as many are let in as the step allows, so that the population stays settled also where an open stream of
arrivals would tip over. Each step gives its working set, hit rate and departures.
"""

import fcntl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from artifact.control.policy import Decision, Policy
from artifact.control.profile import DeploymentProfile, RampPoint, load_profile, profile_from_ramps, save_profiles
from artifact.records.schema import SAMPLES
from artifact.records.store import RunStore
from artifact.reproduce.paths import repository_root
from artifact.workload.catalog import workload
from artifact.workload.load import Load
from artifact.workload.trajectory import Trajectory
from sim.engine.kinds import capacities_of, unloaded_of
from sim.run import Simulation
from sim.scenario import Deployment, Scenario

RAMPS = 3
"""Repeated ramps, each with its own seed; κ is their lower quartile."""
STEPS = tuple(np.round(np.geomspace(0.5, 3.2, 20), 3).tolist())
"""Expected working sets of the steps, over C: from well before the knee at 1.9 to well beyond it."""
SETTLE_S, MEASURE_S = 600.0, 1200.0
"""Of each step. A session of the default workload lasts about ten minutes on a healthy engine."""
COLLAPSED_STEPS = 2
"""The ramp ends after so many steps with a hit rate under `COLLAPSED`."""
COLLAPSED = 0.4


class Step(NamedTuple):
    """Means over a settled step. `departures_per_min`: call throughput over calls per session (paper A Eq. 1)."""

    sessions: int
    working_set_tokens: float
    hit_rate: float
    departures_per_min: float


class Staircase(Policy):
    """Keeps as many sessions active as the present step allows, on the engine that Basin comes with."""

    reserve_after_prefill = True

    def __init__(self, sessions: Sequence[int], step_s: float) -> None:
        super().__init__()
        self.sessions = sessions
        self.step_s = step_s

    def next(self, now: float) -> Decision | None:
        step = min(int(now / self.step_s), len(self.sessions) - 1)
        return super().next(now) if len(self._resident) < self.sessions[step] else None


def profile(
    deployment: Deployment,
    workload_name: str = "terminal-bench",
    tool_time_scale: float = 1.0,
    output_scale: float = 1.0,
    ramps: int = RAMPS,
    say: Callable[[Step], None] = lambda step: None,
) -> DeploymentProfile:
    """The profile of a deployment under a workload, measured once and kept on disk by what determines it.

    κ is the lower quartile over `ramps` ramps, λ_c the highest departure rate that any of them reached. `say`
    hears of every step while it is measured. Raises `ValueError` where a ramp shows no cliff, or for a deployment that
    cannot run the workload.
    """
    load = Load(
        workload=workload_name,
        rate_per_min=1,
        duration_s=1,
        tool_time_scale=tool_time_scale,
        output_scale=output_scale,
    )
    path = _place(deployment, load, ramps)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # processes of one sweep want the same profile at the same time
        if not path.is_file():
            measured = [ramp(deployment, load, seed, say) for seed in range(ramps)]
            capacity = capacities_of(deployment).cache_tokens
            save_profiles([profile_of_steps(measured, capacity, deployment.router)], path)
    return load_profile(path, deployment.router)


def ramp(deployment: Deployment, load: Load, seed: int, say: Callable[[Step], None] = lambda step: None) -> list[Step]:
    """One load ramp; of `load`, only the sessions count, not how they arrive."""
    trajectories = [t.scaled(load.tool_time_scale, load.output_scale) for t in workload(load.workload)]
    unloaded = unloaded_of(deployment)
    alone = np.array([unloaded(t, 0) for t in trajectories])
    context = mean_context(trajectories, alone)
    counts = [max(round(x * capacities_of(deployment).cache_tokens / context), 1) for x in STEPS]
    step_s = SETTLE_S + MEASURE_S
    supply = load.model_copy(
        update={
            "rate_per_min": 60 * 1.5 * counts[-1] / float(alone.mean()),
            "duration_s": step_s * len(counts),
            "warm_sessions": counts[0],
            "warm_start": "cold",
        }
    )
    scenario = Scenario(deployment=deployment, load=supply, seed=seed)
    simulation = Simulation(scenario, Staircase(counts, step_s))
    calls_per_session = sum(t.n_calls for t in trajectories) / len(trajectories)
    steps: list[Step] = []
    for number, sessions in enumerate(counts):
        steps.append(_measure(simulation, number * step_s, sessions, calls_per_session))
        say(steps[-1])
        if all(step.hit_rate < COLLAPSED for step in steps[-COLLAPSED_STEPS:]) and number:
            break
    return steps


def _measure(simulation: Simulation, start_s: float, sessions: int, calls_per_session: float) -> Step:
    """Let the step settle and take the means of the samples that follow."""
    simulation.advance(start_s + SETTLE_S)
    first = len(simulation.driver.samples)
    simulation.advance(start_s + SETTLE_S + MEASURE_S)
    samples = [dict(zip(SAMPLES.names, row, strict=False)) for row in simulation.driver.samples[first:]]
    gained = {name: samples[-1][name] - samples[0][name] for name in SAMPLES.names if name.endswith("_total")}
    prompt = gained["prompt_tokens_total"]
    return Step(
        sessions=sessions,
        working_set_tokens=float(np.mean([sample["working_set_tokens"] for sample in samples])),
        hit_rate=gained["cached_tokens_total"] / prompt if prompt else 0.0,
        departures_per_min=gained["calls_done_total"]
        / calls_per_session
        / ((samples[-1]["time_s"] - samples[0]["time_s"]) / 60),
    )


def profile_of_steps(
    ramps: Sequence[Sequence[Step]], cache_tokens: float, router: str = "default"
) -> DeploymentProfile:
    """The profile of repeated ramps on a deployment whose larger prefill tier holds `cache_tokens`. λ_c is the highest
    departure rate of all steps: each ramp peaks on the last step before its cliff, and not all on the same one."""
    critical = max(step.departures_per_min for steps in ramps for step in steps)
    points = [[RampPoint(s.working_set_tokens, s.hit_rate) for s in steps] for steps in ramps]
    return profile_from_ramps(points, cache_tokens, critical, router)


def mean_context(trajectories: Sequence[Trajectory], alone: np.ndarray) -> float:
    """Mean prompt of sessions in the middle of their lives: each session's mean, weighted by how long it stays."""
    means = np.array([sum(t.prompt_tokens) / t.n_calls for t in trajectories])
    return float((means * alone).sum() / alone.sum())


def _place(deployment: Deployment, load: Load, ramps: int) -> Path:
    from sim.sweep import determinants

    key = RunStore.key(determinants(Scenario(deployment=deployment, load=load)) | {"ramps": ramps})
    return repository_root() / "build" / "profiles" / f"{key}.json"
