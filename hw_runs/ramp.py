"""Load ramps on real engines: their steps, and the deployment profile that they give (paper A §6.5)."""

from collections.abc import Sequence

import numpy as np

from artifact.control.profile import DeploymentProfile
from artifact.metrics import cache_tokens, column
from artifact.metrics.run import counter_at
from artifact.records.schema import Records
from artifact.workload.load import Load
from artifact.workload.plan import Unloaded
from artifact.workload.trajectory import Trajectory
from hw_runs.experiment import Ramp
from hw_runs.replay import Switch
from sim.profile import COLLAPSED, COLLAPSED_STEPS, Step, mean_context, profile_of_steps
from sim.scenario import PolicyChoice

_ANYBODY = 10**9  # nobody stands aside at a turn; JSON has no infinity
_SUPPLY = 1.5
"""Arrivals over what the last step's population would take undisturbed, so that somebody always waits at the door."""


def populations(
    part: Ramp, trajectories: Sequence[Trajectory], unloaded: Unloaded, capacity_tokens: float
) -> list[int]:
    """Active sessions of each step, whose expected working sets are the steps' multiples of the capacity."""
    alone = np.array([unloaded(t, 0) for t in trajectories])
    context = mean_context(trajectories, alone)
    return [max(round(x * capacity_tokens / context), 1) for x in part.steps]


def supply(load: Load, counts: Sequence[int], trajectories: Sequence[Trajectory], unloaded: Unloaded) -> Load:
    """More arrivals than any step lets in."""
    alone = float(np.mean([unloaded(t, 0) for t in trajectories]))
    return load.model_copy(update={"rate_per_min": 60 * _SUPPLY * counts[-1] / alone, "warm_sessions": counts[0]})


def ladder(part: Ramp, choice: PolicyChoice, counts: Sequence[int]) -> tuple[Switch, ...]:
    """Step by step, how many sessions the gateway lets be active."""
    step_s = part.settle_s + part.measure_s
    return tuple(
        Switch(step_s * number, choice.name, {"admit": count, "park": _ANYBODY}) for number, count in enumerate(counts)
    )


def steps_of(run: Records, part: Ramp) -> list[Step]:
    """Means over the settled part of each step, up to the second collapsed one."""
    time_s, active = column(run.samples, "time_s"), column(run.samples, "active_sessions")
    context = column(run.samples, "working_set_tokens")
    calls = float(np.mean(column(run.sessions, "calls_planned")))
    found: list[Step] = []
    for number in range(len(part.steps)):
        start = number * (part.settle_s + part.measure_s) + part.settle_s
        inside = (time_s >= start) & (time_s < start + part.measure_s)
        edges = np.array([start, start + part.measure_s])
        gained = {
            n: float(np.diff(counter_at(run, f"{n}_total", edges))[0]) for n in ("prompt_tokens", "cached_tokens")
        }
        done = float(np.diff(counter_at(run, "calls_done_total", edges))[0])
        hit = gained["cached_tokens"] / gained["prompt_tokens"] if gained["prompt_tokens"] > 0 else 0.0
        sessions, tokens = round(float(active[inside].mean())), float(context[inside].mean())
        found.append(Step(sessions, tokens, hit, done / calls / (part.measure_s / 60)))
        if number and all(step.hit_rate < COLLAPSED for step in found[-COLLAPSED_STEPS:]):
            break
    return found


def profile_of(runs: Sequence[Records], part: Ramp) -> DeploymentProfile:
    """As `sim.profile.profile`: κ from every ramp, λ_c the highest departure rate of all.

    Raises `ValueError` where a ramp shows no cliff."""
    return profile_of_steps([steps_of(run, part) for run in runs], cache_tokens(runs[0]))
