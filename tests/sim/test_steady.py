"""The steady population that runs of paper A begin with, and how it joins."""

import numpy as np
import pytest

from artifact.reproduce import scenarios_maps, scenarios_policies
from artifact.reproduce.scenarios import trap_h100
from artifact.workload.catalog import workload
from artifact.workload.load import Load
from artifact.workload.plan import plan_sessions
from sim.engine.kinds import unloaded_of
from sim.fluid.calibrated import fluid_deployment
from sim.fluid.equilibria import landscape
from sim.scenario import Deployment
from sim.steady import replayed, steady_sessions

H100 = Deployment(calibration="h100")
H200_HOST = Deployment(calibration="h200", decode=3, host_ratio=2.0)


def steady(deployment: Deployment, rate: float, **more: float) -> int:
    return steady_sessions(deployment, Load(rate_per_min=rate, duration_s=60, **more))


def idle(deployment: Deployment, rate: float, tools: float = 1.0, outputs: float = 1.0) -> float:
    unloaded = unloaded_of(deployment)
    durations = [unloaded(t.scaled(tools, outputs), 0) for t in workload("terminal-bench")]
    return rate / 60 * float(np.mean(durations))


@pytest.mark.parametrize("deployment", [H100, H200_HOST])
def test_an_almost_idle_engine_holds_what_an_idle_one_would(deployment: Deployment):
    assert steady(deployment, 0.5) == pytest.approx(idle(deployment, 0.5), abs=0.6)


def test_a_loaded_engine_holds_more_since_its_sessions_slow_one_another_down():
    population = [steady(H100, rate) for rate in (1.0, 2.0, 3.0, 3.5)]
    assert population == sorted(population)
    assert population[-1] > 1.5 * idle(H100, 3.5)


def test_at_overload_it_is_the_population_of_the_peak():
    assert steady(H100, 6.0) == round(float(landscape(fluid_deployment(H100)).peak_sessions))


def test_long_tool_times_fill_an_engine_with_sessions_that_wait_for_tools():
    rate, tools = 9.0, 30.0
    assert steady(H200_HOST, rate, tool_time_scale=tools) >= idle(H200_HOST, rate, tools) - 1


def test_more_output_is_part_of_the_steady_state():
    assert steady(H200_HOST, 5.0, output_scale=3.0) >= idle(H200_HOST, 5.0, outputs=3.0) - 1
    assert steady(H200_HOST, 5.0, output_scale=3.0) > 1.3 * steady(H200_HOST, 5.0)


def test_a_replay_changes_nothing_but_the_start_and_its_sessions_all_call_at_once():
    load = Load(rate_per_min=3.0, duration_s=600)
    started = replayed(H100, load)
    assert started.model_copy(update={"warm_sessions": None, "warm_start": "cached"}) == load
    plans = plan_sessions(started, workload("terminal-bench"), 0, unloaded_of(H100))
    warm = [p for p in plans if p.group == "warm"]
    assert len(warm) == steady(H100, 3.0)
    assert all(p.arrival_s == p.first_gap_s == 0 and not p.cached for p in warm)


def test_every_figure_of_paper_a_starts_so():
    trap = trap_h100([0], ["none"])["none"][0].load
    map_cell = scenarios_maps.scenario(H100, 3.0, 0, surge=1.0).load
    setting = scenarios_policies.SIX["1p1d"]
    policy = scenarios_policies.scenario(setting, scenarios_policies.Variant("hicache"), 3.0, 0).load
    assert {trap.warm_start, map_cell.warm_start, policy.warm_start} == {"cold"}
    assert map_cell.warm_sessions == policy.warm_sessions == steady(H100, 3.0)


def test_what_a_load_does_by_itself_is_asked_from_an_idle_engines_population():
    alone = scenarios_maps.scenario(H100, 3.0, 0).load
    assert alone.warm_start == "cold" and alone.warm_sessions is None
