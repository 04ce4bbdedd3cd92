"""Lending, late reservation and ordering together on real SGLang, 1P2D over NIXL, against the aggregated engine.

The tests share one deployment and run in this order; the last one kills a decode instance.
"""

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

pytestmark = pytest.mark.engine

SESSIONS, TURNS, FIRST = tuple(range(100, 126)), 8, 200
ELSEWHERE = ((900,), 2, 300)
FEW = (tuple(range(300, 308)), 4, 200)
KILLED = ((901,), 3, 300)


@pytest.fixture(scope="module")
def expected(references):
    cases = [(SESSIONS, TURNS, FIRST), ELSEWHERE, FEW, KILLED]
    return dict(zip(("all", "elsewhere", "few", "killed"), references("llama", cases), strict=True))


@pytest.fixture(scope="module")
def pd(engines):
    roles, features = ["prefill", "decode", "decode"], engines.features("order", "late", "lend")
    with engines.deploy("llama", roles, engines.pools(1200, 12000), features) as deployment:
        yield deployment


def computed(deployment):
    return deployment.total("prefill", "sglang:realtime_tokens_total", 'mode="prefill_compute"')


def test_every_hook_applied_and_is_reported(pd):
    for engine in pd.engines:
        metrics = engine.metrics()
        assert metrics["basin_hooks_applied"] == metrics["basin_hooks_expected"] > 20
        assert "hooks applied; features: order, late, lend" in engine.text()


def test_a_process_of_its_own_applies_every_hook(engines):
    """As the engine spawns its scheduler: a fresh interpreter that imports it and then loads the plugins."""
    code = (
        "import basin_engine_support.torchvision_cpu, sglang.srt.managers.scheduler; "
        "from sglang.srt.plugins import load_plugins; load_plugins(); "
        "from artifact.lending.runtime import RUNTIME; print(RUNTIME.hooks_applied, RUNTIME.hooks_expected)"
    )
    environment = {**os.environ, **engines.KIND_ENV["llama"], **engines.features("order", "late", "lend", "pin")}
    answer = subprocess.run([engines.PYTHON, "-c", code], env=environment, capture_output=True, text=True, check=True)
    applied, expected = map(int, answer.stdout.split()[-2:])
    assert applied == expected > 30


def test_outputs_are_those_of_the_aggregated_engine_and_prefill_computes_half(pd, engines, expected):
    """208 calls, prefill's pool far smaller than the contexts, decode instances alternating by session."""

    def replay():
        began = computed(pd)
        played = engines.play_all(pd, SESSIONS, 6, TURNS, FIRST, lend=True, decode=lambda seed, turn: seed % 2)
        assert [p.outputs for p in played] == expected["all"]
        return computed(pd) - began

    lending = replay()
    fetched = pd.total("prefill", "basin_fetched_tokens_total")
    pd.switch(lending=0)
    without = replay()
    pd.switch(lending=1)
    print(f"{len(SESSIONS) * TURNS} calls: computed tokens {lending:.0f} with lending, {without:.0f} without")
    print(f"fetched {fetched:.0f} tokens")
    assert fetched > 0 and pd.total("prefill", "basin_fetched_bytes_total") > 0
    assert pd.total("prefill", "basin_fetch_seconds_total") > 0
    assert lending <= 0.5 * without


def test_a_unit_serves_a_turn_that_decodes_elsewhere(pd, engines, expected):
    before = pd.total("prefill", "basin_fetches_total")
    prompt, more = engines.conversation(900, 2, 300, (20, 60))
    hint = {"session": "elsewhere", "retain": True}
    first = pd.generate(prompt, 8, decode=0, basin=hint)["output_ids"]
    engines.play_all(pd, range(200, 206), 1, 1, 400)  # evicts the session from prefill
    second = pd.generate(prompt + first + more, 8, decode=1, basin=hint)["output_ids"]
    assert [first, second] == expected["elsewhere"][0]
    assert pd.total("prefill", "basin_fetches_total") == before + 1


def test_a_high_priority_call_overtakes_ten_queued_misses(pd, finish_order):
    """Each prompt fills most of prefill's memory, so they run one at a time, and a few are on their way to decode."""

    def call(length):
        return lambda i, priority: pd.generate([5 + i] * length, 4, priority=priority)

    finished, answered = finish_order(call(800), [9] * 10 + [1], gap_s=0.005)
    assert answered <= 4 and finished.index(10) <= answered + 3, (answered, finished)
    assert pd.total("prefill", "basin_reordered_queues_total", 'queue="waiting"') > 0
    pd.switch(ordering=0)
    finished, answered = finish_order(call(801), [9] * 10 + [1], gap_s=0.005)
    assert answered <= 4 and finished.index(10) >= 8, (answered, finished)
    pd.switch(ordering=1)
    assert pd.total("prefill", "basin_order_switches_total") == 2


def test_without_the_waits_outputs_are_wrong(pd, engines, expected):
    """The negative control: the tests above would notice layers that run before their pages."""
    before = pd.total("prefill", "basin_fetches_total")
    pd.switch(drop_wait=1, layer_delay_s=0.05)
    played = engines.play_all(pd, FEW[0], 4, *FEW[1:], lend=True)
    pd.switch(drop_wait=0, layer_delay_s=0)
    fetches = pd.total("prefill", "basin_fetches_total") - before
    wrong = sum(p.outputs != good for p, good in zip(played, expected["few"], strict=True))
    print(f"{wrong} of {len(played)} sessions wrong, {fetches:.0f} fetches")
    assert fetches > 0 and wrong > 0


def test_every_metric_is_exported(pd):
    exported = {name for engine in pd.engines for name in engine.metrics("basin_")}
    units = {f"basin_{what}_{size}_total" for what in ("adopted", "reclaimed") for size in ("units", "tokens")}
    fetches = {f"basin_{name}_total" for name in ("fetches", "fetched_tokens", "fetched_bytes", "fetch_seconds")}
    assert exported >= {"basin_lent_tokens", "basin_order_switches_total"} | units | fetches
    causes = pd.decodes[0].metrics("basin_reclaimed", 'cause="superseded"')
    assert causes["basin_reclaimed_units_total"] > 0, "each turn's unit takes the place of the last"


def test_nothing_is_held_in_the_end(pd):
    pd.switch(lending=0)
    assert pd.empties(decode="basin_lent_tokens")
    assert pd.empties(decode="sglang:kv_used_tokens", prefill="sglang:kv_used_tokens")
    assert pd.total("decode", "basin_retractions_while_lent_total") == 0
    assert not any("leak" in e.text() for e in pd.engines)
    pd.switch(lending=1)


def test_a_decode_instance_killed_mid_fetch_costs_no_request(pd, engines, expected):
    pd.switch(layer_delay_s=1.5, fetch_timeout_s=3.0, quarantine_s=6.0)
    begun = pd.total("prefill", "basin_fetches_total")
    context, outputs = [], []
    for turn, new in enumerate(engines.conversation(901, *KILLED[1:], (20, 60))):
        context += new
        hint = {"session": "s", "retain": True}
        if turn == 0:
            answer = pd.generate(context, 8, decode=0, basin=hint)
            engines.play_all(pd, range(500, 503), 1, 1, 500, decode=1)  # evicts it from prefill
        elif turn == 1:
            with ThreadPoolExecutor(1) as pool:
                call = pool.submit(pd.generate, context, 8, decode=1, basin=hint)
                assert engines.eventually(lambda: pd.total("prefill", "basin_fetches_total") > begun, 20)
                pd.decodes[0].kill()
                answer = call.result(timeout=60)
        else:
            answer = pd.generate(context, 8, decode=1, basin=hint)
        outputs.append(answer["output_ids"])
        context += answer["output_ids"]
    assert outputs == expected["killed"][0]
    assert pd.total("prefill", "basin_fallbacks_total", 'cause="timed out"') == 1
    assert pd.total("prefill", "basin_quarantined_tokens") > 0, "pages that a late write could still hit"
    pd.switch(lending=0)
    assert pd.empties(prefill="basin_quarantined_tokens")
    assert pd.empties(prefill="sglang:kv_used_tokens", decode="sglang:kv_used_tokens")
    assert pd.generate(context[:50], 2, decode=1)["output_ids"]
