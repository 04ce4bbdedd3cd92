"""A hybrid gated-delta model: the recurrent state at the prompt's end travels with the unit (paper A §6.2).

The interpreter runs its kernels at ten seconds a call, so the default run is short and the long one is marked slow.
"""

import json

import pytest

pytestmark = pytest.mark.engine

SHORT = (tuple(range(700, 702)), 2, 100)
FULL = (tuple(range(710, 720)), 4, 100)
TOKENS = 3
LATE = ["--disaggregation-decode-allocation-policy", "prefill_complete"]
RADIX = ["--disaggregation-decode-enable-radix-cache", "--num-reserved-decode-tokens", "16"]


def deploy(engines, prefill_pool, **settings):
    values = {"features": ["order", "late", "lend"], "fetch_timeout_s": 60.0, **settings}
    flags = {
        "prefill": ["--max-total-tokens", str(prefill_pool), *LATE],
        "decode": ["--max-total-tokens", "6000", *RADIX, *LATE],
    }
    return engines.deploy("gated-delta", ["prefill", "decode"], flags, {"BASIN_SGLANG": json.dumps(values)})


def replay(engines, deployment, case):
    """The last turn of a session runs after the other sessions have taken its place in prefill's memory."""
    played = engines.play_all(deployment, case[0], 2, *case[1:], tokens=TOKENS, lend=True)
    return [p.outputs for p in played], deployment.prefills[0].metrics().get("basin_fetched_tokens_total", 0.0)


@pytest.fixture(scope="module")
def expected(references):
    return references("gated-delta", [SHORT], TOKENS)[0]


def test_outputs_equal_the_aggregated_engine(engines, expected):
    with deploy(engines, 180) as pd:
        outputs, fetched = replay(engines, pd, SHORT)
        assert outputs == expected and fetched > 0
        pd.switch(lending=0)
        for metric in ("sglang:kv_used_tokens", "sglang:mamba_used_tokens", "basin_lent_tokens"):
            assert engines.eventually(lambda m=metric: pd.decodes[0].metrics()[m] == 0, 60), metric


def test_without_the_recurrent_state_outputs_are_wrong(engines, expected):
    with deploy(engines, 180, drop_state=True) as pd:
        outputs, fetched = replay(engines, pd, SHORT)
    assert fetched > 0 and outputs != expected


@pytest.mark.slow
def test_forty_calls_equal_the_aggregated_engine(engines, references):
    expected = references("gated-delta", [FULL], TOKENS)[0]
    with deploy(engines, 360) as pd:
        outputs, fetched = replay(engines, pd, FULL)
        print(f"fetched {fetched:.0f} tokens; {pd.prefills[0].metrics('basin')}")
    assert outputs == expected and fetched > 0
