"""A hybrid gated-delta model, 1P1D: the recurrent state at the prompt's end travels with the unit (paper A §6.2).

The engine's kernels for it run in the Triton interpreter here, at seconds a call.
"""

import time

import pytest

pytestmark = pytest.mark.engine

FORTY = (tuple(range(710, 720)), 4, 64)
DROPPED = (tuple(range(730, 736)), 2, 64)
TOKENS = 3


@pytest.fixture(scope="module")
def expected(references):
    return dict(zip(("forty", "dropped"), references("gated-delta", [FORTY, DROPPED], TOKENS), strict=True))


@pytest.fixture(scope="module")
def pd(engines):
    features = engines.features("order", "late", "lend", fetch_timeout_s=60.0)
    with engines.deploy("gated-delta", ["prefill", "decode"], engines.pools(300, 6000), features) as pair:
        yield pair


def replay(engines, deployment, case):
    """Outputs by session, and the tokens fetched for them: sessions that take turns push each other out of prefill."""
    before, began = deployment.total("prefill", "basin_fetched_tokens_total"), time.monotonic()
    played = engines.play_all(deployment, case[0], len(case[0]), *case[1:], tokens=TOKENS, lend=True)
    fetched = deployment.total("prefill", "basin_fetched_tokens_total") - before
    print(f"{len(case[0]) * case[1]} calls in {time.monotonic() - began:.0f} s, {fetched:.0f} tokens fetched")
    return [p.outputs for p in played], fetched


def test_forty_calls_equal_the_aggregated_engine(engines, pd, expected):
    outputs, fetched = replay(engines, pd, FORTY)
    assert outputs == expected["forty"] and fetched > 0


def test_without_the_recurrent_state_outputs_are_wrong(engines, pd, expected):
    pd.switch(drop_state=1)
    outputs, fetched = replay(engines, pd, DROPPED)
    pd.switch(drop_state=0)
    assert fetched > 0 and outputs != expected["dropped"]


def test_neither_pages_nor_states_are_held_in_the_end(pd):
    pd.switch(lending=0)
    for metric in ("sglang:kv_used_tokens", "sglang:mamba_used_tokens", "basin_lent_tokens"):
        assert pd.empties(decode=metric), metric
    assert not any("leak" in e.text() for e in pd.engines)
