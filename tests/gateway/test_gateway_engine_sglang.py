"""The gateway before real SGLang 1P1D over NIXL and SGLang's router, all on this machine's CPU.

The tiny model has no tokenizer, so calls are SGLang's own `/generate` with token ids.
"""

import asyncio
import json
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from conftest import Door
from engine_load import LIMIT, PATIENCE_S, Tap, burst, concordant, until
from fake_upstream import serving

from artifact.control.policy import Policy
from artifact.gateway.app import Gateway
from artifact.gateway.config import Engine, EnginePriority, GatewayConfig
from hw_runs.commands import router_words
from hw_runs.deployment import Instance
from hw_runs.processes import Command, Probe, Process, free_port

sys.path.insert(0, str(Path(__file__).parents[1] / "engine_support"))
from basin_engine_support import serve

pytestmark = pytest.mark.engine
serve.START_TIMEOUT_S = PATIENCE_S

ORDERED = ["--enable-priority-scheduling"]
POOL = 4096
SMALL = {"prefill": ["--max-total-tokens", str(POOL)], "decode": ["--max-total-tokens", str(POOL)]}
ONE_AT_A_TIME = ["--max-running-requests", "1"]


@dataclass
class PD:
    deployment: serve.Deployment
    router_url: str
    router_metrics: str


@contextmanager
def router(deployment: serve.Deployment) -> Iterator[tuple[str, str]]:
    """SGLang's router before the pair; its URL and that of its metrics."""
    port, metrics = free_port(), free_port()
    workers = [
        Instance(role=engine.role, port=engine.port, bootstrap_port=engine.bootstrap_port)
        for engine in (*deployment.prefills, *deployment.decodes)
    ]
    words = [str(serve.PYTHON), "-m", "basin_engine_support.router", *router_words(workers)]
    words += ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics), "--policy", "round_robin"]
    words += ["--worker-startup-timeout-secs", f"{PATIENCE_S:.0f}", "--disable-retries"]
    url = f"http://127.0.0.1:{port}"
    command = Command("router", tuple(words), ready=Probe(url + "/generate", ask(prompt(0), 2)))
    process = Process(command, deployment.prefills[0].log.parent)
    try:
        process.wait_ready(PATIENCE_S)
        yield url, f"http://127.0.0.1:{metrics}"
    finally:
        process.stop()


@contextmanager
def pair(*flags: str, extension: str = "") -> Iterator[PD]:
    if not serve.PYTHON.exists():
        pytest.skip(f"no engine: {serve.PYTHON} is absent; `make setup-sglang-cpu` installs it")
    by_role = {role: [*SMALL[role], *flags] for role in SMALL}
    env = {"BASIN_SGLANG": extension}
    with serve.deploy("llama", ["prefill", "decode"], by_role, env) as deployment, router(deployment) as (url, metrics):
        yield PD(deployment, url, metrics)


@pytest.fixture(scope="module")
def pd() -> Iterator[PD]:
    with pair(*ORDERED, *ONE_AT_A_TIME) as running:
        yield running


def config(pd: PD, upstream: str | None = None, **more: object) -> GatewayConfig:
    (prefill,), (decode,) = pd.deployment.prefills, pd.deployment.decodes
    engines = (
        Engine(url=prefill.url, role="prefill"),
        Engine(url=decode.url, role="decode"),
        Engine(url=pd.router_metrics, role="router"),
    )
    priority = EnginePriority(dialect="sglang")
    fields = {"upstream": upstream or pd.router_url, "engines": engines, "priority": priority, "scrape_s": 1.0}
    return GatewayConfig.model_validate({**fields, **more})


def ask(prompt: list[int], tokens: int = 8, stream: bool = False) -> dict[str, object]:
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    return {"input_ids": prompt, "sampling_params": sampling, "stream": stream}


def prompt(seed: int, length: int = 120) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, 1024) for _ in range(length)]


async def generate(client: aiohttp.ClientSession, url: str, body: dict[str, object], session: str = "") -> bytes:
    headers = {"x-session-id": session} if session else {}
    async with client.post(url + "/generate", json=body, headers=headers) as response:
        content = await response.read()
        assert response.status == 200, content[:500]
        return content


async def test_a_stream_passes_byte_for_byte_and_says_what_the_router_says(pd: PD) -> None:
    tap = Tap(pd.router_url)
    server = await asyncio.start_server(tap.relay, "127.0.0.1", 0)
    upstream = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    gateway = Gateway(config(pd, upstream), lambda *made_of: Policy())
    body = ask(prompt(1), 24, stream=True)
    async with serving(gateway, "on") as url, aiohttp.ClientSession(timeout=LIMIT) as client:
        through = await generate(client, url, body, "s")
        assert through == bytes(tap.body)
        direct = await generate(client, pd.router_url, body)
        books = gateway.desk.books
        assert (books.prompt_tokens, books.output_tokens) == (120, 24)  # read from the stream as it passed
    server.close()
    assert through.count(b"data: ") >= 24
    assert _last_ids(through) == _last_ids(direct)


def _last_ids(stream: bytes) -> list[int]:
    """All output tokens of an event stream."""
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith(b"data: {")]
    last = events[-1]["output_ids"]
    return last if len(last) > 1 else [token for event in events for token in event["output_ids"]]


async def test_parked_sessions_cost_the_engine_nothing_until_they_are_admitted(pd: PD) -> None:
    (prefill,) = pd.deployment.prefills
    door = Door(room=1)
    gateway = Gateway(config(pd), lambda *made_of: door)
    async with serving(gateway, "on") as url, aiohttp.ClientSession(timeout=LIMIT) as client:
        context = prompt(2)
        first = json.loads(await generate(client, url, ask(context), "a"))
        before = prefill.metrics()["sglang:prompt_tokens_total"]
        parked = asyncio.create_task(generate(client, url, ask(prompt(3)), "b"))
        await until(lambda: gateway.desk.waiting_calls == 1, "one parked call")
        context += first["output_ids"] + prompt(4, 30)
        second = json.loads(await generate(client, url, ask(context), "a"))
        assert second["meta_info"]["cached_tokens"] > 0  # the resident's prefix is there
        assert not parked.done()
        assert prefill.metrics()["sglang:prompt_tokens_total"] - before == len(context)
        async with client.delete(url + "/sessions/a") as response:
            assert response.status == 200
        assert json.loads(await parked)["meta_info"]["prompt_tokens"] == 120
    assert gateway.desk.books.cached_tokens >= second["meta_info"]["cached_tokens"]


async def test_signals_come_from_the_real_endpoints(pd: PD) -> None:
    gateway = Gateway(config(pd), lambda *made_of: Policy())
    async with serving(gateway, "on") as url, aiohttp.ClientSession(timeout=LIMIT) as client:
        await gateway.telemetry.scrape()
        context = prompt(5, 200)
        for _ in range(2):
            await generate(client, url, ask(context), "t")
        await gateway.telemetry.scrape()
        assert [watch.error for watch in gateway.telemetry.watches] == ["", "", ""]
        signals = gateway.telemetry.latest
        await until(lambda: gateway.telemetry.latest.decode_kv_capacity_tokens is not None, "a reading")
        signals = gateway.telemetry.latest
    assert not gateway.telemetry.own_accounting
    assert (signals.prefill_cache_capacity_tokens, signals.decode_kv_capacity_tokens) == (POOL, POOL)
    assert signals.decode_waiting is not None and signals.decode_kv_used_tokens is not None
    prompt_tokens, cached_tokens = gateway.telemetry.token_totals()
    assert prompt_tokens >= 400 and cached_tokens >= 190


async def send(client: aiohttp.ClientSession, url: str, key: int, session: str) -> bytes:
    return await generate(client, url, ask(prompt(1000 + key, 60), 12, stream=True), session)


async def test_the_engine_follows_the_gateways_order(pd: PD) -> None:
    gateway, finished = await burst(config(pd), send, 80, 1)
    print(f"concordant pairs {concordant(finished):.2f}; {gateway.order.followed} of {gateway.order.telling} followed")
    assert gateway.order.off_by_flag == () and gateway.order.sign == -1  # as /server_info says
    assert concordant(finished) > 0.75
    assert gateway.order.followed >= 0.8 * gateway.order.telling > 0
    assert not gateway.order.ignored


async def test_an_engine_that_ignores_the_order_is_found_out() -> None:
    with pair(*ONE_AT_A_TIME) as fifo:
        gateway, finished = await burst(config(fifo), send, 110, 2)
        print(f"concordant pairs {concordant(finished):.2f}; {gateway.order.followed} of {gateway.order.telling}")
        (prefill,), (decode,) = fifo.deployment.prefills, fifo.deployment.decodes
        assert set(gateway.order.off_by_flag) == {prefill.url, decode.url}
        gateway.order.off_by_flag = ()  # and now by what it does
        assert gateway.order.ignored is True
        assert concordant(finished) < 0.65


async def test_the_extension_that_orders_is_not_taken_for_an_engine_that_ignores() -> None:
    """Its feature `order` excludes the engine's own flag, and serves smaller values first."""
    with pair(*ONE_AT_A_TIME, extension="order") as extended:
        gateway, finished = await burst(config(extended), send, 80, 3)
        print(f"concordant pairs {concordant(finished):.2f}; {gateway.order.followed} of {gateway.order.telling}")
        (prefill,), (decode,) = extended.deployment.prefills, extended.deployment.decodes
    assert gateway.order.by_extension == {prefill.url, decode.url}
    assert gateway.order.off_by_flag == () and gateway.order.sign == 1
    assert concordant(finished) > 0.75
    assert gateway.order.followed >= 0.8 * gateway.order.telling > 0
    assert not gateway.order.ignored
