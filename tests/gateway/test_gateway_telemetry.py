"""Readings of engines: names, roles, resets, gaps, and what the policy gets when an engine falls silent."""

import asyncio

import aiohttp
import pytest
from conftest import Door
from fake_upstream import respond, usage

from artifact.control.policy import Signals
from artifact.gateway.config import Engine
from artifact.gateway.engines import read_page
from artifact.gateway.telemetry import EngineWatch

PREFILL = """\
# HELP sglang:prompt_tokens_total Number of prefill tokens processed.
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{model_name="m",is_streaming="true"} 800.0
sglang:prompt_tokens_total{model_name="m",is_streaming="false"} 200.0
sglang:cached_tokens_total{cache_source="device",model_name="m"} 500.0
sglang:cached_tokens_total{cache_source="host",model_name="m"} 250.0
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{engine_type="prefill",tp_rank="0",dp_rank="0"} 3.0
sglang:num_queue_reqs{engine_type="prefill",tp_rank="1",dp_rank="0"} 3.0
sglang:num_queue_reqs{engine_type="prefill",tp_rank="0",dp_rank="1"} 4.0
sglang:num_running_reqs{engine_type="prefill"} 1.0
sglang:max_total_num_tokens{tp_rank="0"} 100000.0
sglang:hicache_host_total_tokens{tp_rank="0"} 200000.0
sglang:time_to_first_token_seconds_bucket{le="0.1"} 17.0
"""
DECODE = """\
sglang:num_running_reqs{engine_type="decode"} 12.0
sglang:num_queue_reqs{engine_type="decode"} 0.0
sglang:num_decode_prealloc_queue_reqs{engine_type="decode"} 5.0
sglang:num_decode_transfer_queue_reqs{engine_type="decode"} 2.0
sglang:num_retracted_reqs{engine_type="decode"} 1.0
sglang:kv_used_tokens{engine_type="decode"} 90000.0
sglang:max_total_num_tokens{engine_type="decode"} 150000.0
sglang:prompt_tokens_total{engine_type="decode"} 1000.0
sglang:cached_tokens_total{engine_type="decode",cache_source="device"} 900.0
"""
VLLM = """\
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 4000.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 1000.0
vllm:num_requests_running{engine="0"} 6.0
vllm:num_requests_waiting{engine="0"} 17.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:cache_config_info{block_size="32",num_gpu_blocks="2500",engine="0"} 1.0
"""


def test_sglang_prefill_page_sums_ranks_once_and_sources_all() -> None:
    reading = read_page(PREFILL, "prefill")
    assert (reading.prompt_tokens, reading.cached_tokens) == (1000, 750)
    assert (reading.waiting, reading.running) == (7, 1)  # tensor ranks repeat each other, data ranks add up
    assert (reading.kv_capacity_tokens, reading.host_capacity_tokens) == (100_000, 200_000)


def test_sglang_decode_page_counts_waits_for_memory() -> None:
    reading = read_page(DECODE, "decode")
    assert (reading.decode_waiting, reading.running) == (6, 12)
    assert (reading.kv_used_tokens, reading.kv_capacity_tokens) == (90_000, 150_000)


def test_vllm_page_gives_capacity_in_tokens() -> None:
    reading = read_page(VLLM, "unified")
    assert (reading.prompt_tokens, reading.cached_tokens) == (4000, 1000)
    assert (reading.waiting, reading.running, reading.decode_waiting) == (17, 6, 0)
    assert (reading.kv_capacity_tokens, reading.kv_used_tokens) == (80_000, 20_000)


def test_missing_metrics_are_none_and_a_cache_counter_without_a_hit_yet_is_zero() -> None:
    reading = read_page("sglang:prompt_tokens_total 10.0\n", "unified")
    assert reading.cached_tokens == 0
    assert reading.waiting is None and reading.kv_capacity_tokens is None and reading.host_capacity_tokens is None
    starting = read_page(
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0\nvllm:num_requests_running 0\n', "unified"
    )
    assert starting.kv_capacity_tokens is None


@pytest.mark.parametrize("page", ["", "# nothing\n", "<html></html>", "python_gc_objects_collected_total 3.0\n"])
def test_a_page_of_no_known_engine_is_an_error_that_says_what_to_do(page: str) -> None:
    with pytest.raises(ValueError, match="started with its metrics enabled"):
        read_page(page, "unified")


def test_the_hit_rate_is_a_difference_and_a_reset_counter_starts_anew() -> None:
    watch = EngineWatch(Engine(url="http://e", role="prefill"))
    pages = [(100, 90), (300, 190), (50, 20)]  # the last after a restart
    for prompt, cached in pages:
        page = f"sglang:prompt_tokens_total {prompt}\nsglang:cached_tokens_total {cached}\n"
        watch.take(read_page(page, "prefill"), 0.0)
    assert (watch.new_prompt_tokens, watch.new_cached_tokens) == (200 + 50, 100 + 20)


class Listener(Door):
    """Keeps the signals it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Signals] = []

    def observe(self, signals: Signals, now: float) -> None:
        self.heard.append(signals)


async def engine_pages(stand, pages: dict[str, str], **config):
    """A gateway whose engine serves these pages by path; the pages can be changed."""

    async def answer(request, send):
        page = pages.get(request.target)
        if page is not None:
            await respond(send, page.encode(), content_type=b"text/plain")
        elif request.body:
            await respond(send, str({"usage": usage(100, 10, 40)}).replace("'", '"').encode())
        else:
            await respond(send, b"", 404)

    return await stand(answer, policy=Listener(), scrape_s=0.05, **config)


async def test_signals_of_a_pd_engine_reach_the_policy(stand) -> None:
    pages = {"/p/metrics": PREFILL, "/d/metrics": DECODE}
    s = await engine_pages(stand, pages)
    base = s.gateway.config.upstream
    telemetry = s.gateway.telemetry
    telemetry.watches = [
        EngineWatch(Engine(url=f"{base}/p", role="prefill")),
        EngineWatch(Engine(url=f"{base}/d/metrics", role="decode")),
    ]
    await telemetry.scrape()
    pages["/p/metrics"] = PREFILL.replace("} 800.0", "} 1300.0").replace("} 500.0", "} 900.0")
    pages["/d/metrics"] = DECODE.replace("} 900.0", "} 99999.0")  # relayed by decode, not to be counted again
    await telemetry.scrape()
    signals = telemetry.signals()
    assert signals.hit_rate == pytest.approx(400 / 500)
    assert (signals.prefill_queue, signals.decode_waiting, signals.decode_running) == (8, 6, 12)
    assert (signals.decode_kv_used_tokens, signals.decode_kv_capacity_tokens) == (90_000, 150_000)
    assert (signals.prefill_cache_capacity_tokens, signals.host_cache_capacity_tokens) == (100_000, 200_000)
    assert telemetry.signals().hit_rate is None  # nothing since
    assert not telemetry.own_accounting


async def test_a_dead_endpoint_keeps_the_last_values_then_own_accounting_takes_over(stand) -> None:
    pages = {"/metrics": VLLM}
    s = await engine_pages(stand, pages)
    telemetry = s.gateway.telemetry
    await s.until(lambda: telemetry.age_s() is not None)
    assert telemetry.signals().prefill_queue == 17
    del pages["/metrics"]
    await s.until(lambda: not telemetry.watches[0].up, "noticing the dead endpoint")
    assert telemetry.signals().prefill_queue == 17  # the last safe value
    assert not telemetry.own_accounting
    telemetry.watches[0].read_s -= s.gateway.config.stale_s + 1  # as if that long ago
    assert await s.status("a") == 200
    signals = telemetry.signals()
    assert telemetry.own_accounting
    assert signals.hit_rate == pytest.approx(0.4)  # from the call's usage
    assert signals.prefill_queue == 0
    assert signals.prefill_cache_capacity_tokens == 80_000  # capacities are kept
    text = s.gateway.metrics.page().decode()
    assert "basin_own_accounting 1.0" in text and 'basin_engine_up{role="unified"' in text
    pages["/metrics"] = VLLM
    await s.until(lambda: telemetry.watches[0].up, "the endpoint's return")
    assert telemetry.signals().prefill_queue == 17 and not telemetry.own_accounting


async def test_calls_pass_though_no_metrics_were_ever_seen(stand) -> None:
    s = await engine_pages(stand, {})
    assert [await s.status("a") for _ in range(3)] == [200] * 3
    assert s.gateway.telemetry.signals().hit_rate == pytest.approx(0.4)


async def test_a_hanging_endpoint_does_not_hold_up_the_others_or_the_calls(stand, monkeypatch) -> None:
    async def answer(request, send):
        if request.target == "/slow/metrics":
            await asyncio.Event().wait()
        await respond(send, VLLM.encode() if request.target == "/metrics" else b"{}")

    monkeypatch.setattr("artifact.gateway.telemetry._PAGE_TIMEOUT", aiohttp.ClientTimeout(total=0.1))
    s = await stand(answer, policy=Listener(), scrape_s=0.05)
    base = s.gateway.config.upstream
    slow = EngineWatch(Engine(url=f"{base}/slow", role="decode"))
    s.gateway.telemetry.watches.append(slow)
    await s.until(lambda: "Timeout" in slow.error)
    await s.until(lambda: s.gateway.telemetry.watches[0].up)
    assert await s.status("a") == 200


async def test_a_policy_put_in_charge_looks_at_once_not_an_interval_later(stand) -> None:
    """As in the simulator: an engine that is already trapped must not wait for the controller's first look."""
    policy = Listener()
    policy.interval_s = 3600.0
    s = await stand(policy=policy, scrape_s=3600.0)
    await s.until(lambda: len(policy.heard) == 1, "the first look")
    for looks in (2, 3):
        s.gateway.set_policy("none", {})
        await s.until(lambda looks=looks: len(policy.heard) == looks, "the next policy's first look")
    assert await s.status("a") == 200
    assert len(policy.heard) == 3
