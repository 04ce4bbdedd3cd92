"""What goes wrong on purpose: waits left out, a decode instance killed mid-fetch, too little decode memory."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytestmark = pytest.mark.engine

LATE = ["--disaggregation-decode-allocation-policy", "prefill_complete"]
RADIX = ["--disaggregation-decode-enable-radix-cache", "--num-reserved-decode-tokens", "16"]
FEW = (tuple(range(300, 308)), 4, 200)
LONG = ((900,), 3, 300)
MANY = (tuple(range(400, 424)), 3, 150)


def lending(**settings):
    return {"BASIN_SGLANG": json.dumps({"features": ["order", "late", "lend"], **settings})}


def flags(prefill_pool, decode_pool):
    return {
        "prefill": ["--max-total-tokens", str(prefill_pool), *LATE],
        "decode": ["--max-total-tokens", str(decode_pool), *RADIX, *LATE],
    }


@pytest.fixture(scope="module")
def expected(references):
    return dict(zip(("few", "long", "many"), references("llama", [FEW, LONG, MANY]), strict=True))


def total(deployment, role, name, *labels):
    return sum(e.metrics(*labels).get(name, 0.0) for e in deployment.engines if e.role == role and e.alive)


def test_without_the_waits_outputs_are_wrong(engines, expected):
    """The negative control: the test above would notice layers that run before their pages."""
    with engines.deploy(
        "llama", ["prefill", "decode"], flags(700, 8000), lending(drop_wait=True, layer_delay_s=0.05)
    ) as pd:
        played = engines.play_all(pd, FEW[0], 4, *FEW[1:], lend=True)
        fetches = total(pd, "prefill", "basin_fetches_total")
    wrong = sum(p.outputs != good for p, good in zip(played, expected["few"], strict=True))
    assert fetches > 0 and wrong > 0, (fetches, wrong)


def test_a_decode_instance_killed_mid_fetch_costs_no_request(engines, expected):
    settings = lending(layer_delay_s=1.5, fetch_timeout_s=3.0)
    with engines.deploy("llama", ["prefill", "decode", "decode"], flags(700, 8000), settings) as pd:
        context, outputs = [], []
        for turn, new in enumerate(engines.conversation(900, *LONG[1:], (20, 60))):
            context += new
            hint = {"session": "s", "retain": True}
            if turn == 0:
                answer = pd.generate(context, 8, decode=0, basin=hint)
                engines.play_all(pd, range(500, 503), 1, 1, 500, decode=1)  # evicts it from prefill
            elif turn == 1:
                with ThreadPoolExecutor(1) as pool:
                    call = pool.submit(pd.generate, context, 8, decode=1, basin=hint)
                    assert engines.eventually(lambda: total(pd, "prefill", "basin_fetches_total") >= 1, 20)
                    pd.decodes[0].kill()
                    answer = call.result(timeout=60)
            else:
                answer = pd.generate(context, 8, decode=1, basin=hint)
            outputs.append(answer["output_ids"])
            context += answer["output_ids"]
        assert outputs == expected["long"][0]
        assert total(pd, "prefill", "basin_fallbacks_total", 'cause="timed out"') == 1
        assert total(pd, "prefill", "basin_quarantined_tokens") > 0, "pages that a late write could still hit"
        pd.switch_one(pd.decodes[1], lending=0)
        assert engines.eventually(lambda: total(pd, "prefill", "basin_quarantined_tokens") == 0, 60)
        assert engines.eventually(lambda: total(pd, "prefill", "sglang:kv_used_tokens") == 0, 60)
        assert pd.generate(context[:50], 2, decode=1)["output_ids"]


def test_under_memory_pressure_units_go_before_running_requests(engines, expected):
    with engines.deploy("llama", ["prefill", "decode"], flags(4000, 2200), lending(phi=0.6)) as pd:
        began = time.monotonic()
        played = engines.play_all(pd, MANY[0], 12, *MANY[1:], lend=True)
        assert [p.outputs for p in played] == expected["many"]
        print(f"{len(played) * MANY[1]} calls in {time.monotonic() - began:.0f} s")
        assert total(pd, "decode", "basin_adopted_units_total") > 0
        assert total(pd, "decode", "basin_reclaimed_units_total") > 0
        assert total(pd, "decode", "basin_retractions_while_lent_total") == 0
        pd.switch(lending=0)
        assert engines.eventually(lambda: total(pd, "decode", "basin_lent_tokens") == 0, 10)
        assert engines.eventually(lambda: total(pd, "decode", "sglang:kv_used_tokens") == 0, 60)
        assert not any("leak" in e.text() for e in pd.engines)
