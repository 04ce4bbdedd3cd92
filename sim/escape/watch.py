"""Mean time to spontaneous collapse by plain simulation: many seeds, each watched to its collapse or a horizon."""

import json
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from scipy.stats import chi2

from artifact.records.store import RunStore
from artifact.reproduce.paths import repository_root
from sim.run import Simulation
from sim.scenario import Scenario
from sim.sweep import determinants

SETTLE_S = 600.0
"""Runs begin empty; what happens before this is not watched."""
STEP_S, WINDOW_S = 30.0, 300.0
COLLAPSED_HIT = 0.5
"""An engine has collapsed when the calls of the last five minutes hit less than this (paper B §3)."""


class Watched(NamedTuple):
    """One run: for how long it was watched, seconds, and whether that ended with its collapse."""

    seconds: float
    collapsed: bool


class EscapeTime(NamedTuple):
    """Mean time to collapse, seconds, with its 95% interval; escapes are taken to come at a constant rate."""

    mean_s: float
    low_s: float
    high_s: float
    collapses: int
    watched_s: float


class HitMeter:
    """The hit rate of the calls scheduled in the last five minutes of a simulation."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self._readings: deque[tuple[int, int]] = deque(maxlen=round(WINDOW_S / STEP_S) + 1)

    def collapsed(self) -> bool:
        """Take a reading, `STEP_S` after the last one; True once a whole window lies below `COLLAPSED_HIT`."""
        seen = self.simulation.engine.occupancy()
        self._readings.append((seen.prompt_tokens, seen.cached_tokens))
        prompt, cached = (now - then for now, then in zip(self._readings[-1], self._readings[0], strict=True))
        return len(self._readings) == self._readings.maxlen and prompt > 0 and cached < COLLAPSED_HIT * prompt


def watch(scenario: Scenario) -> Watched:
    """One run to its collapse, or to the end of its load."""
    simulation = Simulation(scenario)
    simulation.advance(SETTLE_S)
    meter, end = HitMeter(simulation), scenario.load.duration_s
    while simulation.env.now < end:
        simulation.advance(simulation.env.now + STEP_S)
        if meter.collapsed():
            return Watched(simulation.env.now - SETTLE_S, True)
    return Watched(end - SETTLE_S, False)


def escape_time(scenario: Scenario, seeds: Iterable[int], executor: Executor | None = None) -> EscapeTime:
    """The estimate from these seeds of a scenario, whose load has the horizon for its duration.

    Every finished seed is kept under `build/escapes`, so that an interrupted estimate goes on. Raises `ValueError` for
    a load with a trigger, or one no longer than `SETTLE_S`.
    """
    check_undisturbed(scenario)
    scenarios = [scenario.model_copy(update={"seed": seed}) for seed in seeds]
    spread = executor.map if executor is not None else map
    return estimate(list(spread(partial(_kept, repository_root() / "build" / "escapes"), scenarios)))


def estimate(runs: Sequence[Watched]) -> EscapeTime:
    """Collapses over time watched, with the exact interval of a Poisson count (Garwood); without a collapse the mean is
    infinite and only its lower bound is known. Raises `ValueError` without runs."""
    if not runs:
        raise ValueError("escape time: no runs were watched")
    count, total = sum(run.collapsed for run in runs), sum(run.seconds for run in runs)
    most = float(chi2.ppf(0.975, 2 * count + 2)) / 2
    least = float(chi2.ppf(0.025, 2 * count)) / 2 if count else 0.0
    mean, high = (total / count, total / least) if count else (float("inf"), float("inf"))
    return EscapeTime(mean, total / most, high, count, total)


def check_undisturbed(scenario: Scenario) -> None:
    """Raises `ValueError` naming what disturbs the load."""
    load = scenario.load
    given = {"surges": load.surges, "burst": load.burst, "rate_change": load.rate_change, "shift": load.shift}
    if named := [name for name, value in (given | {"flush": scenario.flush}).items() if value]:
        raise ValueError(f"escape time: the load must be undisturbed, leave out {', '.join(named)}")
    if load.duration_s <= SETTLE_S:
        raise ValueError(f"escape time: duration_s {load.duration_s:g} is within the first {SETTLE_S:g} s, unwatched")


def _kept(folder: Path, scenario: Scenario) -> Watched:
    path = folder / f"{RunStore.key(determinants(scenario))}.json"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text(json.dumps(watch(scenario)))
        unfinished.replace(path)
    return Watched(*json.loads(path.read_text()))
