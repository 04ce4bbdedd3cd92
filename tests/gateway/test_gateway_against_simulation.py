"""The same scenario, policy and seed through the real gateway before a stub engine, and through the simulator."""

import asyncio
import multiprocessing
import socket
import time

import aiohttp
import pytest
import uvicorn

from artifact.gateway.app import Gateway
from artifact.gateway.config import Engine, EnginePriority, GatewayConfig
from artifact.gateway.server import GatewayServer
from artifact.metrics.sessions import goodput
from artifact.records.schema import Records
from artifact.workload.load import Load, Surge
from hw_runs.replay import Target, replay
from hw_runs.stub_engine import StubEngine
from hw_runs.stub_engine_model import SimulatedEngine
from sim.policies import scenario_policy
from sim.run import Simulation
from sim.scenario import Deployment, PolicyChoice, Scenario

SPEED = 20.0
BYTES_PER_TOKEN = 1  # keeps the loopback traffic small
HEAD = 7000


def scenario(policy: str) -> Scenario:
    """Forty minutes of the H100 pair with a tripled load between minutes 5 and 15: enough to fill its cache."""
    load = Load(rate_per_min=2.6, duration_s=2400.0, surges=(Surge(start_s=300, end_s=900, factor=3),))
    return Scenario(deployment=Deployment(calibration="h100"), load=load, policy=PolicyChoice(name=policy), seed=1)


def run_stub(port: int, late: bool) -> None:
    deployment = Deployment(calibration="h100", reserve_at="prefill_end" if late else "arrival")
    stub = StubEngine(SimulatedEngine(deployment, HEAD), SPEED, BYTES_PER_TOKEN)
    uvicorn.run(stub, host="127.0.0.1", port=port, lifespan="off", log_level="error", ws="none")


def run_gateway(port: int, upstream: str, policy: str) -> None:
    config = GatewayConfig(
        upstream=upstream,
        policy=policy,
        engines=(Engine(url=upstream + "/prefill", role="prefill"), Engine(url=upstream + "/decode", role="decode")),
        priority=EnginePriority(dialect="sglang", hints=True),
        admin_token="t",
        tokens_per_byte=1 / BYTES_PER_TOKEN,
        time_scale=SPEED,
    )
    gateway = Gateway(config, lambda name, options, latest: scenario_policy(scenario(name)))
    GatewayServer(gateway, "127.0.0.1", port).run()


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


def through_the_gateway(simulation: Simulation, policy: str, late: bool) -> Records:
    stub_port, port = free_port(), free_port()
    upstream, url = f"http://127.0.0.1:{stub_port}", f"http://127.0.0.1:{port}"
    context = multiprocessing.get_context("spawn")
    servers = [
        context.Process(target=run_stub, args=(stub_port, late), daemon=True),
        context.Process(target=run_gateway, args=(port, upstream, policy), daemon=True),
    ]
    try:
        servers[0].start()
        asyncio.run(answers(upstream + "/health"))
        servers[1].start()
        asyncio.run(answers(url + "/health"))
        target = Target(url, speed=SPEED, bytes_per_token=BYTES_PER_TOKEN, admin_token="t", preload_url=upstream)
        plans = [session.plan for session in simulation.driver.sessions.values()]
        return replay(
            plans,
            target,
            simulation.scenario.load.duration_s,
            meta={"source": "stub"},
            unloaded_s=lambda p: simulation.unloaded(p.trajectory, p.first_call),
        )
    finally:
        for server in servers:
            server.terminate()
            server.join()


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["hicache", "basin", "session-cap", "thunderagent", "concur", "continuum"])
def test_goodput_through_the_gateway_is_the_simulators(policy: str) -> None:
    simulation = Simulation(scenario(policy))
    late = simulation.engine.late
    simulated = simulation.finish()
    began = time.process_time()
    replayed = through_the_gateway(simulation, policy, late)
    assert time.process_time() - began < 60, "the replay client itself could not keep pace: lower SPEED"
    assert not replayed.meta["errors"]
    assert goodput(replayed) == pytest.approx(goodput(simulated), rel=0.08)
