"""Mean time to spontaneous collapse where plain simulation would take too long: multilevel splitting with fixed effort.

The working set over the cache, x = W/C, is cut into levels. Excursions from the base level to the first are counted in
undisturbed runs; from each level's crossings, branches with fresh arrivals either reach the next level or fall back to
the base. The rate of collapse is the rate of excursions times the shares that go on; the last level is collapse itself.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from artifact.workload.plan import plan_sessions
from sim.escape.watch import SETTLE_S, STEP_S, HitMeter, check_undisturbed
from sim.run import Simulation
from sim.scenario import Scenario

AHEAD_S = 7200.0
"""Fresh arrivals of a branch; one that is neither back nor on by then has not gone on."""


class Split(NamedTuple):
    """Mean time to collapse, seconds, with a 95% interval by the delta method; `excursions` from the base to the first
    level in `watched_s`, and of each level's branches the share that reached the next."""

    mean_s: float
    low_s: float
    high_s: float
    excursions: int
    watched_s: float
    shares: tuple[float, ...]


def split_escape_time(
    scenario: Scenario, levels: Sequence[float], tries: int = 200, seeds: Sequence[int] = range(4)
) -> Split:
    """The estimate for a scenario, whose load's duration is how long each seed is watched for excursions.

    `levels`: x of the base, of the excursions, and of further levels, ascending; `tries`: branches a level. Raises
    `ValueError` for levels that do not ascend, a load with a trigger, or if no excursion was seen.
    """
    check_undisturbed(scenario)
    if len(levels) < 2 or any(low >= high for low, high in pairwise(levels)):
        raise ValueError(f"splitting: levels {list(levels)} are not two or more ascending numbers")
    base, first, *further = levels
    watched, states = 0.0, list[Simulation]()
    for seed in seeds:
        seconds, found = _excursions(scenario.model_copy(update={"seed": seed}), base, first)
        watched, states = watched + seconds, states + found
    if not states:
        raise ValueError(f"splitting: no excursion from {base:g} to {first:g} in {watched:g} s; lower the first level")
    excursions, shares = len(states), list[float]()
    rng = np.random.default_rng(np.random.SeedSequence(scenario.seed, spawn_key=(len(levels),)))
    for level in (*further, None):
        reached = [branch for _ in range(tries) if (branch := _try(states, base, level, rng)) is not None]
        shares.append(len(reached) / tries)
        if not reached:
            break
        states = reached
    return _result(excursions, watched, shares, tries)


def position(simulation: Simulation) -> float:
    """x: whole contexts of the active sessions over the capacity of the prefix cache."""
    return simulation.driver.working_set / simulation.engine.capacities.prefill_cache_tokens


def _excursions(scenario: Scenario, base: float, first: float) -> tuple[float, list[Simulation]]:
    """Branches taken when x reaches the first level, each time after having been at the base, and the time watched; a
    run ends with its collapse."""
    simulation = Simulation(scenario)
    simulation.advance(SETTLE_S)
    meter, found, ready = HitMeter(simulation), [], False
    while simulation.env.now < scenario.load.duration_s:
        simulation.advance(simulation.env.now + STEP_S)
        x = position(simulation)
        if ready and x >= first:
            found.append(_light(simulation.fork()))
        ready = x < first and (ready or x <= base)
        if meter.collapsed():
            break
    return simulation.env.now - SETTLE_S, found


def _try(states: Sequence[Simulation], base: float, level: float | None, rng: np.random.Generator) -> Simulation | None:
    """A branch of one of the states that has reached the level (None: collapse), or None if it fell back first."""
    branch = states[int(rng.integers(len(states)))].fork()
    _refresh(branch, int(rng.integers(2**31)))
    meter, end = HitMeter(branch), branch.env.now + AHEAD_S
    while branch.env.now < end:
        branch.advance(branch.env.now + STEP_S)
        if meter.collapsed() or (level is not None and position(branch) >= level):
            return _light(branch)
        if position(branch) <= base:
            return None
    return None


def _refresh(branch: Simulation, seed: int) -> None:
    """Other arrivals from now on: Poisson arrivals have no memory, so any stretch of them will do."""
    now = branch.env.now
    load = branch.scenario.load.model_copy(update={"duration_s": AHEAD_S, "warm_sessions": 0})
    plans = plan_sessions(load, branch.trajectories, seed, branch.unloaded)
    branch.driver.replace_arrivals(
        [replace(plan, id=f"{now:g}-{seed}-{plan.id}", arrival_s=now + plan.arrival_s) for plan in plans]
    )


def _light(branch: Simulation) -> Simulation:
    """Without its past, which a branch to be branched again would copy every time."""
    driver = branch.driver
    driver.calls.clear()
    driver.samples.clear()
    driver.sessions = {id: s for id, s in driver.sessions.items() if s.ended_s is None}
    return branch


def _result(excursions: int, watched_s: float, shares: Sequence[float], tries: int) -> Split:
    """Squared relative errors of independent counts add up."""
    reach = math.prod(shares)
    if not reach:
        most = (
            excursions / watched_s * math.prod(shares[:-1]) * 3.0 / tries
        )  # 95% bound of a share of which none was seen
        return Split(math.inf, 1 / most, math.inf, excursions, watched_s, tuple(shares))
    mean = watched_s / excursions / reach
    error = math.sqrt(1 / excursions + sum((1 - share) / (share * tries) for share in shares))
    return Split(
        mean, mean * math.exp(-1.96 * error), mean * math.exp(1.96 * error), excursions, watched_s, tuple(shares)
    )
