"""A scenario through the real gateway before the stub engine: in one loop whose clock leaps, or on the real clock."""

import asyncio
import multiprocessing
import os
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import aiohttp
import uvicorn
from fake_upstream import serving
from leaping_clock import LeapingLoop

from artifact.control.policy import Policy, SessionFacts, Signals
from artifact.gateway.app import Gateway
from artifact.gateway.config import Engine, EnginePriority, GatewayConfig
from artifact.gateway.policies import NEUTRAL
from artifact.gateway.server import GatewayServer
from artifact.records.schema import Records
from artifact.workload.load import Load, PlannedSession, Surge
from hw_runs.processes import free_port
from hw_runs.replay import Switch, Target, replaying
from hw_runs.replay_cli import provenance
from hw_runs.stub_engine import StubEngine
from hw_runs.stub_engine_model import SimulatedEngine
from sim.policies import scenario_policy
from sim.run import Simulation
from sim.scenario import Deployment, PolicyChoice, Scenario

SPEED = float(os.environ.get("BASIN_STUB_SPEED", "20"))  # a call's real milliseconds count this many times
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


def stub(of: Scenario, speed: float) -> StubEngine:
    """Decode's leases are the extension's business on a real engine, so here they are the stub's."""
    late = Simulation(of).engine.late
    deployment = Deployment(calibration="h100", reserve_at="prefill_end" if late else "arrival")
    model = SimulatedEngine(deployment, HEAD)
    model.engine.lend_compute(scenario_policy(of).lease)
    return StubEngine(model, speed, BYTES_PER_TOKEN)


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
            serving(stub(of, 1.0)) as upstream,
            serving(gateway(upstream, of, 1.0), "on") as url,
        ):
            return await replayed(simulation, url, upstream, 1.0)

    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        records = runner.run(run())
    assert not records.meta["errors"]
    return records


# On the real clock -------------------------------------------------------------------------------------------------
def run_stub(port: int, of: Scenario) -> None:
    uvicorn.run(stub(of, SPEED), host="127.0.0.1", port=port, lifespan="off", log_level="error", ws="none")


def run_gateway(port: int, upstream: str, of: Scenario) -> None:
    GatewayServer(gateway(upstream, of, SPEED), "127.0.0.1", port).run()


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
        context.Process(target=run_stub, args=(stub_port, of), daemon=True),
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
