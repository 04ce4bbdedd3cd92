"""Lending, late reservation and ordering together on real SGLang, 1P2D over NIXL, against the aggregated engine."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

pytestmark = pytest.mark.engine

SESSIONS, TURNS, FIRST = tuple(range(100, 126)), 8, 200
LONG = ((900,), 2, 300)
LATE = ["--disaggregation-decode-allocation-policy", "prefill_complete"]
RADIX = ["--disaggregation-decode-enable-radix-cache", "--num-reserved-decode-tokens", "32"]


def lending(**settings):
    return {"BASIN_SGLANG": json.dumps({"features": ["order", "late", "lend"], **settings})}


def flags(prefill_pool, decode_pool):
    return {
        "prefill": ["--max-total-tokens", str(prefill_pool), *LATE],
        "decode": ["--max-total-tokens", str(decode_pool), *RADIX, *LATE],
    }


@pytest.fixture(scope="module")
def expected(references):
    return references("llama", [(SESSIONS, TURNS, FIRST), LONG])


@pytest.fixture(scope="module")
def pd(engines):
    with engines.deploy("llama", ["prefill", "decode", "decode"], flags(1200, 12000), lending()) as deployment:
        yield deployment


def total(deployment, role, name, *labels):
    return sum(e.metrics(*labels).get(name, 0.0) for e in deployment.engines if e.role == role)


def computed(deployment):
    return total(deployment, "prefill", "sglang:realtime_tokens_total", 'mode="prefill_compute"')


def test_every_hook_applied_and_is_reported(pd):
    for engine in pd.engines:
        metrics = engine.metrics()
        assert metrics["basin_hooks_applied"] == metrics["basin_hooks_expected"] > 20
        assert "hooks applied; features: order, late, lend" in engine.text()


def test_outputs_are_those_of_the_aggregated_engine_and_prefill_computes_half(pd, engines, expected, record_property):
    """208 calls, each prefill pool far smaller than the contexts, decode instances alternating by session."""
    began = computed(pd)
    lent = engines.play_all(pd, SESSIONS, 6, TURNS, FIRST, lend=True, decode=lambda seed, turn: seed % 2)
    with_lending = computed(pd) - began
    assert [p.outputs for p in lent] == expected[0]
    fetched = total(pd, "prefill", "basin_fetched_tokens_total")
    assert fetched > 0 and total(pd, "prefill", "basin_fetched_bytes_total") > 0

    pd.switch(lending=0)
    began = computed(pd)
    plain = engines.play_all(pd, SESSIONS, 6, TURNS, FIRST, lend=True, decode=lambda seed, turn: seed % 2)
    without = computed(pd) - began
    assert [p.outputs for p in plain] == expected[0]
    pd.switch(lending=1)
    print(f"computed tokens {with_lending:.0f} with lending, {without:.0f} without; fetched {fetched:.0f}")
    assert with_lending <= 0.5 * without


def test_a_unit_serves_a_turn_that_decodes_elsewhere(pd, engines, expected):
    before = total(pd, "prefill", "basin_fetches_total")
    first = engines.play(pd, 900, 1, 300, lend=True, decode=0)
    engines.play_all(pd, range(200, 206), 1, 1, 400)  # evicts the session from prefill
    played = engines.play(pd, 900, 2, 300, lend=True, decode=1)
    assert played.outputs == expected[1][0] and first.outputs == played.outputs[:1]
    assert total(pd, "prefill", "basin_fetches_total") > before


def finish_order(deployment, priorities, length):
    """Submit prompts one after the other, and name them in the order in which they were answered."""
    finished = []

    def call(i):
        deployment.generate([5 + i] * length, 4, priority=priorities[i])
        finished.append(i)

    with ThreadPoolExecutor(len(priorities)) as pool:
        for i in range(len(priorities)):
            pool.submit(call, i)
            pool.submit(lambda: None).result()
    return finished


def test_a_high_priority_call_overtakes_ten_queued_misses(pd):
    """Each prompt fills most of prefill's memory, so they run one at a time; the eleventh is ahead of most."""
    finished = finish_order(pd, [9] * 10 + [1], 800)
    assert finished.index(10) <= 3, finished
    pd.switch(ordering=0)
    finished = finish_order(pd, [9] * 10 + [1], 801)
    assert finished.index(10) >= 7, finished
    pd.switch(ordering=1)
    assert total(pd, "prefill", "basin_order_switches_total") == 2


def test_nothing_is_held_in_the_end(pd, engines):
    pd.switch(lending=0)
    assert engines.eventually(lambda: total(pd, "decode", "basin_lent_tokens") == 0, 10)
    assert engines.eventually(lambda: total(pd, "decode", "sglang:kv_used_tokens") == 0, 45)
    assert engines.eventually(lambda: total(pd, "prefill", "sglang:kv_used_tokens") == 0, 45)
    assert total(pd, "decode", "basin_retractions_while_lent_total") == 0
    assert not any("leak" in e.text() for e in pd.engines)
