"""Simulated against real, run by run: what a calibration fitted to recorded runs predicts of others."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import yaml

from artifact.control.policy import Policy, Signals
from artifact.control.profile import DeploymentProfile, load_profile
from artifact.gateway.policies import NEUTRAL, PolicyMaker
from artifact.metrics import Interval, duration_s, goodput, hit_rate
from artifact.records.schema import Records
from hw_runs.experiment import PROFILE, results_root
from hw_runs.laptop import trajectories, workload_file
from sim.calibration.model import Calibration, ColocatedCalibration
from sim.engine.kinds import capacities_of
from sim.fit import with_values
from sim.run import Simulation
from sim.scenario import PolicyChoice, Scenario

HEALTHY, COLLAPSED = 0.8, 0.45
"""Hit rates of health (at least) and of collapse (at most), over `last_third`."""


class Compared(NamedTuple):
    """One run: hit rate, calls answered, goodput (sessions/h) and state at its end, measured and simulated."""

    run: str
    hit: float
    hit_sim: float
    calls: int
    calls_sim: int
    goodput: float
    goodput_sim: float
    end: str
    end_sim: str


def predicted(measured: Records, calibration: Calibration | ColocatedCalibration) -> Records:
    """The run's scenario on the simulator, with the capacities that its engines reported."""
    scenario = Scenario.model_validate(measured.meta["scenario"])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "calibration.yaml"
        path.write_text(yaml.safe_dump(_with_capacities(calibration, measured, scenario).model_dump(mode="json")))
        deployment = scenario.deployment.model_copy(update={"calibration": str(path)})
        load = scenario.load.model_copy(update={"workload": workload_file(scenario.load.workload)})
        same = scenario.model_copy(update={"deployment": deployment, "load": load, "policy": _known(scenario.policy)})
        simulation = Simulation(same, _at_the_gateway(scenario, same, measured.meta["deployment"]["name"]))
        simulation.driver.reorders = False
        return simulation.finish()


def _known(choice: PolicyChoice) -> PolicyChoice:
    """Its name is one that the simulator knows; the gateway's `none` controls nothing."""
    return choice if choice.name != NEUTRAL else PolicyChoice(from_s=choice.from_s)


def _at_the_gateway(scenario: Scenario, simulated: Scenario, deployment: str) -> Policy:
    """The run's policy with what a gateway has for it, which is less than what a simulation has: the deployment's
    profile where its ramps are recorded, else none, and the typical peak of the sessions that it has seen end."""
    path = results_root() / deployment / PROFILE
    peaks = [max(t.prompt_tokens) for t in trajectories(scenario.load.workload)]
    typical = float(np.exp(np.log(peaks).mean()))
    make = PolicyMaker(
        profile=load_profile(path) if path.is_file() else DeploymentProfile(),
        capacities=capacities_of(simulated.deployment),
        predict=lambda session: max(typical, session.first_prompt_tokens),
    )
    return make(scenario.policy.name, dict(scenario.policy.parameters), Signals())


def compare(runs: Sequence[tuple[Path, Records]], calibration: Calibration | ColocatedCalibration) -> pd.DataFrame:
    """A row a run, in the columns of `Compared`, with its errors: `hit_off`, `calls_off` (a share) and `end_right`."""
    table = pd.DataFrame([compared(path, measured, calibration) for path, measured in runs])
    return table.assign(
        hit_off=(table["hit_sim"] - table["hit"]).abs(),
        calls_off=(table["calls_sim"] / table["calls"] - 1).abs(),
        end_right=table["end"] == table["end_sim"],
    )


def compared(path: Path, measured: Records, calibration: Calibration | ColocatedCalibration) -> Compared:
    simulated = predicted(measured, calibration)
    return Compared(
        "/".join(path.parts[-3:]),
        hit_rate(measured),
        hit_rate(simulated),
        _answered(measured),
        _answered(simulated),
        goodput(measured),
        goodput(simulated),
        state(measured),
        state(simulated),
    )


def last_third(run: Records) -> Interval:
    """The part of a run by which it is judged, seconds."""
    end = duration_s(run)
    return end * 2 / 3, end


def state(run: Records) -> str:
    """By the hit rate of the last third: healthy, collapsed, or between."""
    hit = hit_rate(run, last_third(run))
    return "healthy" if hit >= HEALTHY else "collapsed" if hit <= COLLAPSED else "between"


def words(table: pd.DataFrame) -> str:
    """The worst and the mean errors of a comparison."""
    hit, calls, right = table["hit_off"], table["calls_off"], int(table["end_right"].sum())
    return (
        f"hit rate off by {hit.mean():.3f} on average and {hit.max():.3f} at most, calls answered by "
        f"{calls.mean():.1%} and {calls.max():.1%}; end state right in {right} of {len(table)}"
    )


def _answered(run: Records) -> int:
    """Calls with an answer; a simulated run also lists those under way."""
    return run.calls.num_rows - run.calls.column("finished_s").null_count


def _with_capacities(
    c: Calibration | ColocatedCalibration, measured: Records, scenario: Scenario
) -> Calibration | ColocatedCalibration:
    capacity = measured.meta["capacity"]
    if isinstance(c, ColocatedCalibration):
        pool = c.pool_tokens.model_copy(update={"value": float(capacity["prefill_cache_tokens"])})
        return c.model_copy(update={"pool_tokens": pool})
    deployment = scenario.deployment
    per_instance = {
        "prefill.cache_tokens": capacity["prefill_cache_tokens"] / deployment.prefill,
        "decode.kv_tokens": capacity["decode_kv_tokens"] / deployment.decode,
    }
    return with_values(c, per_instance)
