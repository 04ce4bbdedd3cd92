"""The same scenario, policy and seed through the real gateway before a stub engine, and through the simulator.

Gateway, stub and clients run in one event loop whose clock leaps over waiting, so that an hour takes a minute and a
busy machine changes nothing; one run shows that three processes on the real clock, accelerated, come to the same.
"""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from side_by_side import MILD, in_three_processes, scenario, through_the_gateway

from artifact.baselines.registry import POLICIES as REGISTRY
from artifact.control.policy import Signals
from artifact.metrics.sessions import goodput
from artifact.metrics.states import EndState, end_state
from artifact.records.schema import Records
from sim.policies import scenario_policy
from sim.run import Simulation
from sim.scenario import Scenario

MOST_LATE_S = 0.25
"""Of the plan's time; every hop of a call is late like this. In the simulator, half a second more a call costs the
session cap, which is always full, 6% of its goodput."""


@lru_cache
def simulated(policy: str, seed: int, factor: float = MILD) -> Records:
    return Simulation(scenario(policy, seed, factor=factor)).finish()


@lru_cache
def trapping_factor() -> float:
    """The smallest surge of these that traps the pair without control and lets Basin out: the calibration decides."""
    for factor in (2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0):
        trapped = end_state(simulated("hicache", 1, factor)) is EndState.TRAPPED
        if trapped and end_state(simulated("basin", 1, factor)) in (EndState.HEALTHY, EndState.RECOVERING):
            return factor
    raise AssertionError("no surge traps the pair without control and lets Basin out: choose another load")


POLICIES = (
    "hicache",
    "basin",
    "session-cap",
    "thunderagent",
    "thunderagent-router",
    "continuum",
    "crossflow",
    "budgeter",
    "admission-only",
    "composition",
    "basin-suspend",
)
ON_AN_EDGE = (
    ("concur", MILD),
    ("latency-aimd", MILD),
    ("adaptive-cap", MILD),
    ("concur", None),
    ("basin", None),
)
"""Policies that act when a reading crosses a threshold, and the surge's factor; None: one that traps."""
SEEDS = (1, 2, 3)
PHASES = np.arange(0.25, 5.0, 0.25)
HOPS_S = (0.0, 0.01, 0.02)
"""What a call loses between client, gateway and engine, which the simulator does not have."""
SIZES = np.arange(-90, 91, 10)
"""Tokens; a gateway estimates a turn's prompt from the body's length, here mostly to within these."""


def test_every_policy_that_a_gateway_can_run_is_compared() -> None:
    """Basin's ablations and predictors are the same code with one part left out or another number put in."""
    variants = {name for name in REGISTRY if name.startswith("basin-") and name != "basin-suspend"}
    assert {*POLICIES, *(name for name, _ in ON_AN_EDGE)} == set(REGISTRY) - variants


def test_the_first_calls_come_when_the_simulator_says() -> None:
    """But for the engine's overhead, which for sessions already under way the simulator takes from their first gap."""
    of = scenario("hicache", 1, 24.0)
    overhead_s = Simulation(of).costs.overhead_s
    ours, real = (
        records.calls.to_pandas().dropna(subset="finished_s").set_index(["session_id", "call_index"])
        for records in (Simulation(of).finish(), through_the_gateway(of))
    )
    both = ours.index.intersection(real.index)
    assert len(both) >= 20
    for column in ("released_s", "first_token_s", "finished_s"):
        np.testing.assert_allclose(real.loc[both, column], ours.loc[both, column] + overhead_s, atol=0.03)
    assert (real.loc[both, "cached_tokens"] == ours.loc[both, "cached_tokens"]).all()


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_goodput_and_end_state_through_the_gateway_are_the_simulators(policy: str) -> None:
    records = through_the_gateway(scenario(policy, 1))
    print(f"{policy}: {goodput(records):.1f} through the gateway, {goodput(simulated(policy, 1)):.1f} simulated")
    assert goodput(records) == pytest.approx(goodput(simulated(policy, 1)), rel=0.08)
    assert end_state(records) == end_state(simulated(policy, 1))


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["hicache", "thunderagent"])
def test_where_a_surge_traps_the_uncontrolled_it_is_the_same(policy: str) -> None:
    """One load and as many ends: trapped without control, kept waiting at the door, and out with Basin (below)."""
    factor = trapping_factor()
    records, ours = through_the_gateway(scenario(policy, 1, factor=factor)), simulated(policy, 1, factor)
    print(f"x{factor:g} {policy}: {goodput(records):.1f} through the gateway, {goodput(ours):.1f} simulated")
    assert goodput(records) == pytest.approx(goodput(ours), rel=0.08)
    assert end_state(records) == end_state(ours)


def resized(of: Scenario, tokens: int) -> Records:
    """The simulation with every prompt taken to be so much longer than it is when its turn is decided."""
    controller = scenario_policy(of)
    turn = controller.turn
    controller.turn = lambda session, prompt, now: turn(session, prompt + tokens, now)  # type: ignore[method-assign]
    return Simulation(of, controller).finish()


def shifted(of: Scenario, phase_s: float, hop_s: float) -> Records:
    """The simulation with the controller looking `phase_s` after the whole multiples of its interval, and every call
    `hop_s` longer under way."""
    controller = scenario_policy(of)
    interval_s, observe = controller.interval_s, controller.observe

    def observe_from_then_on(signals: Signals, now: float) -> None:
        controller.interval_s = interval_s
        observe(signals, now)
        controller.interval_s = controller.interval_s if now > 0 else phase_s

    controller.observe = observe_from_then_on  # type: ignore[method-assign]
    simulation = Simulation(of, controller)
    costs = simulation.engine.costs
    simulation.engine.costs = replace(costs, overhead_s=costs.overhead_s + hop_s)
    return simulation.finish()


def nearly(of: Scenario) -> list[Records]:
    """The simulation over what a gateway cannot have exactly as the simulator has it: the size of the next prompt for
    a cap that is a share of the mean size; for all others the moment of looking, and what a call's way takes."""
    if of.policy.name == "adaptive-cap":
        return [resized(of, int(tokens)) for tokens in SIZES]
    return [shifted(of, phase_s, hop_s) for hop_s in HOPS_S for phase_s in PHASES]


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "factor"), ON_AN_EDGE)
def test_on_an_edge_the_means_agree(policy: str, factor: float | None) -> None:
    """A reading taken seconds earlier, or calls that come milliseconds later, move a cut of the window or the start of
    an order; twenty tokens more in a prompt of 25,000 move the mean across the size at which one session more fits; and
    with that all that follows. So a single run says little: the simulator's own goodput spreads by more than the bar
    when only these change. Every run must end as one of the simulator's does and lie where they lie, give or take the
    bar, and the means over seeds must agree within it."""
    factor = factor or trapping_factor()
    through, means = [], []
    for seed in SEEDS:
        of = scenario(policy, seed, factor=factor)
        runs = nearly(of)
        simulated_goodputs = [goodput(run) for run in runs]
        ends = {end_state(run) for run in runs}
        records = through_the_gateway(of)
        found = f"{policy} x{factor:g}, seed {seed}: {goodput(records):.1f} {end_state(records)} through the gateway, "
        found += f"{min(simulated_goodputs):.1f} to {max(simulated_goodputs):.1f} {', '.join(sorted(ends))} simulated"
        print(found)
        assert end_state(records) in ends, found
        assert 0.92 * min(simulated_goodputs) <= goodput(records) <= 1.08 * max(simulated_goodputs), found
        through.append(goodput(records))
        means.append(np.mean(simulated_goodputs))
    print(f"{policy} x{factor:g}: {np.mean(through):.1f} through the gateway, {np.mean(means):.1f} simulated")
    assert np.mean(through) == pytest.approx(np.mean(means), rel=0.08)


@pytest.mark.slow
def test_accelerated_on_the_real_clock_it_is_the_same() -> None:
    records = in_three_processes(scenario("basin", 1))
    if (late_s := records.meta["late_s"]) > MOST_LATE_S:
        pytest.skip(f"clients woke {late_s:.2f} s late on average: busy machine, lower BASIN_STUB_SPEED")
    assert not records.meta["errors"]
    assert goodput(records) == pytest.approx(goodput(simulated("basin", 1)), rel=0.08)
    assert end_state(records) == end_state(simulated("basin", 1))
