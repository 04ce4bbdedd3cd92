"""Ordering in every queue and TTL pins, on real SGLang 1P1D with early reservation and little memory."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def pd(engines):
    flags = {
        "prefill": ["--max-total-tokens", "1500"],
        "decode": ["--max-total-tokens", "1500", "--max-running-requests", "2", "--num-reserved-decode-tokens", "16"],
    }
    with engines.deploy("llama", ["prefill", "decode"], flags, {"BASIN_SGLANG": "order,pin"}) as deployment:
        yield deployment


@pytest.fixture(scope="module")
def ordered_by(pd, finish_order):
    """Prompts of 200 tokens in the order in which they were answered."""

    def submit(priorities, first_token):
        return finish_order(lambda i, p: pd.generate([first_token + i] * 200, 40, priority=p), priorities)

    return submit


def test_a_high_priority_call_overtakes_ten_in_front_of_it(pd, ordered_by):
    """Two run at a time and two are on their way to them; of those that wait elsewhere, the last to come goes first."""
    ordered, answered = ordered_by([9] * 10 + [1], 10)
    assert answered <= 5 and ordered.index(10) <= answered + 4, (answered, ordered)
    moved = {
        queue: sum(e.metrics(f'queue="{queue}"').get("basin_reordered_queues_total", 0) for e in pd.engines)
        for queue in ("prefill_bootstrap", "decode_prealloc", "decode_prebuilt")
    }
    print(ordered, moved)
    assert min(moved.values()) > 0, moved


def test_equal_priorities_keep_their_arrival_order(pd, ordered_by):
    equals, _ = ordered_by([5] * 8, 50)
    assert equals[-1] >= 6
    pd.switch(ordering=0)
    arrival, _ = ordered_by([9] * 10 + [1], 80)
    pd.switch(ordering=1)
    assert arrival.index(10) >= 8, arrival


def test_switching_on_sorts_what_already_waits(pd, ordered_by):
    pd.switch(ordering=0)
    with ThreadPoolExecutor(1) as pool:
        caller = pool.submit(ordered_by, [9] * 10 + [1], 120)
        time.sleep(0.3)  # all eleven have come
        pd.switch(ordering=1)
        finished, _ = caller.result()
    assert finished.index(10) <= 8, finished


def pinned_tokens(deployment):
    return deployment.prefills[0].metrics().get("basin_pinned_tokens", 0)


def test_a_pin_outlives_eviction_until_its_session_ends(pd, engines):
    def flood(first):
        for i in range(6):
            pd.generate([first + i] * 290, 1)

    (prompt,) = engines.conversation(41, 1, 300, (1, 1))
    hint = {"session": "pinned", "pin_s": 900.0}
    pd.generate(prompt, 2, basin=hint)
    flood(200)
    answer = pd.generate([*prompt, 7, 8, 9], 2, basin=hint)
    assert answer["meta_info"]["cached_tokens"] == 300 and pinned_tokens(pd) == 303
    pd.generate([*prompt, 7], 2, basin={"session": "pinned", "last": True})
    assert pinned_tokens(pd) == 0
    flood(300)
    assert pd.generate([*prompt, 7, 8, 10], 2)["meta_info"]["cached_tokens"] < 300


def test_a_pin_ends_at_its_deadline(pd, engines):
    pd.generate([9] * 100, 1, basin={"session": "short", "pin_s": 1.0})
    assert engines.eventually(lambda: pinned_tokens(pd) == 0, 30)
    assert pd.prefills[0].metrics('cause="deadline"')["basin_pins_ended_total"] == 1
