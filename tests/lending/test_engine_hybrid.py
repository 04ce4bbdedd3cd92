"""A hybrid gated-delta model, 1P1D: the recurrent state at the prompt's end travels with the unit (paper A §6.2).

The engine's kernels for it run in the Triton interpreter here, at a second a call and in float16: the aggregated engine
itself gives log-probabilities that differ by up to 0.01 between a cached and a computed prefix. The seeds are such that
no token of the reference hangs on less than three times that.
"""

import time

import pytest

pytestmark = pytest.mark.engine

FORTY = ((*range(1001, 1010), 1011), 4, 64)
DROPPED = (tuple(range(1003, 1009)), 2, 64)
TOKENS = 2


@pytest.fixture(scope="module")
def expected(references):
    (sessions,) = references("gated-delta", [FORTY], TOKENS, margin=0.03)
    return dict(zip(FORTY[0], sessions, strict=True))


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
    assert outputs == list(expected.values()) and fetched > 0


def test_without_the_recurrent_state_outputs_are_wrong(engines, pd, expected):
    pd.switch(drop_state=1)
    outputs, fetched = replay(engines, pd, DROPPED)
    pd.switch(drop_state=0)
    wrong = sum(found[-1] != expected[seed][1] for seed, found in zip(DROPPED[0], outputs, strict=True))
    print(f"{wrong} of {len(outputs)} second turns wrong")
    assert fetched > 0 and wrong >= 2


def test_neither_pages_nor_states_are_held_in_the_end(pd):
    pd.switch(lending=0)
    for metric in ("sglang:kv_used_tokens", "sglang:mamba_used_tokens", "basin_lent_tokens"):
        assert pd.empties(decode=metric), metric
    assert not any("leak" in e.text() for e in pd.engines)
