"""The same scenario, policy and seed through the real gateway before a stub engine, and through the simulator.

Gateway, stub and clients run in one event loop whose clock leaps over waiting, so that an hour takes a minute and a
busy machine changes nothing; one run shows that three processes on the real clock, accelerated, come to the same.
"""

import asyncio
import multiprocessing
import os
import socket
from collections.abc import Coroutine
from dataclasses import replace
from functools import lru_cache
from typing import Any

import aiohttp
import numpy as np
import pytest
import uvicorn
from fake_upstream import serving
from leaping_clock import LeapingLoop

from artifact.control.policy import Policy, SessionFacts, Signals
from artifact.gateway.app import Gateway
from artifact.gateway.config import Engine, EnginePriority, GatewayConfig
from artifact.gateway.policies import NEUTRAL
from artifact.gateway.server import GatewayServer
from artifact.metrics.sessions import goodput
from artifact.metrics.states import EndState, end_state
from artifact.records.schema import Records
from artifact.workload.load import Load, PlannedSession, Surge
from hw_runs.replay import Switch, Target, replaying
from hw_runs.replay_cli import provenance
from hw_runs.stub_engine import StubEngine
from hw_runs.stub_engine_model import SimulatedEngine
from sim.policies import scenario_policy
from sim.run import Simulation
from sim.scenario import Deployment, PolicyChoice, Scenario

SPEED = float(os.environ.get("BASIN_STUB_SPEED", "20"))  # a call's real milliseconds count this many times
MOST_LATE_S = 0.25
"""Of the plan's time; every hop of a call is late like this. In the simulator, half a second more a call costs the
session cap, which is always full, 6% of its goodput."""
BYTES_PER_TOKEN = 1  # keeps the loopback traffic small
HEAD = 7000
MILD = 2.0
"""A surge out of which the pair comes without control."""


def scenario(policy: str, seed: int, duration_s: float = 4200.0, factor: float = MILD) -> Scenario:
    """The H100 pair with a multiplied load from minute 5 to 15, and then as long as telling the end state takes."""
    load = Load(rate_per_min=2.6, duration_s=duration_s, surges=(Surge(start_s=300, end_s=900, factor=factor),))
    return Scenario(deployment=Deployment(calibration="h100"), load=load, policy=PolicyChoice(name=policy), seed=seed)


def plans(simulation: Simulation) -> list[PlannedSession]:
    return [session.plan for session in simulation.driver.sessions.values()]


def told_exactly(policy: Policy, of: Scenario) -> Policy:
    """Peaks are cross-fitted to trajectories, known by task and exact length, which the gateway can but estimate."""
    known = {plan.id: plan.trajectory for plan in plans(Simulation(of))}
    arrive, adopt = policy.arrive, policy.adopt

    def exact(facts: SessionFacts) -> SessionFacts:
        trajectory = known[facts.id]
        return replace(facts, first_prompt_tokens=trajectory.prompt_tokens[0], task_text=trajectory.task_text)

    policy.arrive = lambda facts, now: arrive(exact(facts), now)  # type: ignore[method-assign]
    policy.adopt = lambda facts, *rest: adopt(exact(facts), *rest)  # type: ignore[method-assign]
    return policy


def stub(late: bool, speed: float) -> StubEngine:
    deployment = Deployment(calibration="h100", reserve_at="prefill_end" if late else "arrival")
    return StubEngine(SimulatedEngine(deployment, HEAD), speed, BYTES_PER_TOKEN)


def gateway(upstream: str, of: Scenario, speed: float) -> Gateway:
    """Neutral until the replay client, whose clock then starts, puts the scenario's policy in charge."""
    config = GatewayConfig(
        upstream=upstream,
        engines=(Engine(url=upstream + "/prefill", role="prefill"), Engine(url=upstream + "/decode", role="decode")),
        priority=EnginePriority(dialect="sglang", hints=True),
        admin_token="t",
        tokens_per_byte=1 / BYTES_PER_TOKEN,
        time_scale=speed,
    )

    def made(name: str, options: dict[str, Any], latest: Signals) -> Policy:
        return Policy() if name == NEUTRAL else told_exactly(scenario_policy(of), of)

    return Gateway(config, made)


def replayed(simulation: Simulation, url: str, upstream: str, speed: float) -> Coroutine[Any, Any, Records]:
    of = simulation.scenario
    target = Target(
        url,
        speed=speed,
        bytes_per_token=BYTES_PER_TOKEN,
        admin_token="t",
        preload_url=upstream,
        switches=(Switch(0.0, of.policy.name),),
    )
    return replaying(
        plans(simulation),
        target,
        of.load.duration_s,
        meta={"source": "stub", **provenance(of)},
        unloaded_s=lambda p: simulation.unloaded(p.trajectory, p.first_call),
    )


def through_the_gateway(of: Scenario) -> Records:
    """All in one loop with a leaping clock."""
    simulation = Simulation(of)

    async def run() -> Records:
        async with (
            serving(stub(simulation.engine.late, 1.0)) as upstream,
            serving(gateway(upstream, of, 1.0), "on") as url,
        ):
            return await replayed(simulation, url, upstream, 1.0)

    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        records = runner.run(run())
    assert not records.meta["errors"]
    return records


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
    "continuum",
    "budgeter",
    "adaptive-cap",
    "admission-only",
    "composition",
)
SEEDS = (1, 2, 3)
PHASES = np.arange(0.25, 5.0, 0.25)


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


def shifted(of: Scenario, phase_s: float) -> Records:
    """The simulation with the controller looking `phase_s` after the whole multiples of its interval."""
    controller = scenario_policy(of)
    interval_s, observe = controller.interval_s, controller.observe

    def observe_from_then_on(signals: Signals, now: float) -> None:
        controller.interval_s = interval_s
        observe(signals, now)
        controller.interval_s = controller.interval_s if now > 0 else phase_s

    controller.observe = observe_from_then_on  # type: ignore[method-assign]
    return Simulation(of, controller).finish()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "trapping"), [("concur", False), ("latency-aimd", False), ("concur", True), ("basin", True)]
)
def test_where_the_moment_of_looking_decides_the_means_agree(policy: str, trapping: bool) -> None:
    """A reading taken seconds earlier moves a cut of the window or the start of an order, and with it all that
    follows, so a single run says little: the simulator's own goodput spreads by more than the bar when only the phase
    of its controller changes. Every run must end as one of the simulator's does and lie where they lie, give or take
    the bar, and the means over seeds must agree within it."""
    factor = trapping_factor() if trapping else MILD
    through, means = [], []
    for seed in SEEDS:
        of = scenario(policy, seed, factor=factor)
        runs = [shifted(of, phase_s) for phase_s in PHASES]
        by_phase = [goodput(run) for run in runs]
        ends = {end_state(run) for run in runs}
        records = through_the_gateway(of)
        found = f"{policy} x{factor:g}, seed {seed}: {goodput(records):.1f} {end_state(records)} through the gateway, "
        found += f"{min(by_phase):.1f} to {max(by_phase):.1f} {', '.join(sorted(ends))} simulated"
        print(found)
        assert end_state(records) in ends, found
        assert 0.92 * min(by_phase) <= goodput(records) <= 1.08 * max(by_phase), found
        through.append(goodput(records))
        means.append(np.mean(by_phase))
    print(f"{policy} x{factor:g}: {np.mean(through):.1f} through the gateway, {np.mean(means):.1f} simulated")
    assert np.mean(through) == pytest.approx(np.mean(means), rel=0.08)


# On the real clock ---------------------------------------------------------------------------------------------
def run_stub(port: int, late: bool) -> None:
    uvicorn.run(stub(late, SPEED), host="127.0.0.1", port=port, lifespan="off", log_level="error", ws="none")


def run_gateway(port: int, upstream: str, of: Scenario) -> None:
    GatewayServer(gateway(upstream, of, SPEED), "127.0.0.1", port).run()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


async def answers(url: str) -> None:
    async with aiohttp.ClientSession() as client:
        for _ in range(600):
            try:
                async with client.get(url):
                    return
            except aiohttp.ClientError:
                await asyncio.sleep(0.1)
    raise AssertionError(f"{url} did not come up")


def in_three_processes(of: Scenario) -> Records:
    simulation = Simulation(of)
    stub_port, port = free_port(), free_port()
    upstream, url = f"http://127.0.0.1:{stub_port}", f"http://127.0.0.1:{port}"
    context = multiprocessing.get_context("spawn")
    servers = [
        context.Process(target=run_stub, args=(stub_port, simulation.engine.late), daemon=True),
        context.Process(target=run_gateway, args=(port, upstream, of), daemon=True),
    ]
    try:
        for server, base in zip(servers, (upstream, url), strict=True):
            server.start()
            asyncio.run(answers(base + "/health"))
        return asyncio.run(replayed(simulation, url, upstream, SPEED))
    finally:
        for server in servers:
            server.terminate()
            server.join(20)


@pytest.mark.slow
def test_accelerated_on_the_real_clock_it_is_the_same() -> None:
    records = in_three_processes(scenario("basin", 1))
    if (late_s := records.meta["late_s"]) > MOST_LATE_S:
        pytest.skip(f"clients woke {late_s:.2f} s late on average: busy machine, lower BASIN_STUB_SPEED")
    assert not records.meta["errors"]
    assert goodput(records) == pytest.approx(goodput(simulated("basin", 1)), rel=0.08)
    assert end_state(records) == end_state(simulated("basin", 1))
