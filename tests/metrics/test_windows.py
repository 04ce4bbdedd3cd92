import time

import numpy as np
import pytest
from handmade import call, records, sample, session
from hypothesis import given
from hypothesis import strategies as st

from artifact.metrics import cache_tokens, hit_rate, late_latency, rate, reserve_wait, sampled, ttft, windows


def test_calls_fall_into_windows_by_release_schedule_and_finish():
    run = records(
        calls=[
            call(0, 2.0, cached_tokens=90),
            call(119.9, 4.0, cached_tokens=50, scheduled_s=121.0, finished_s=125.0),
            call(130, 6.0, cached_tokens=10, prompt_tokens=300),
        ],
        duration_s=250.0,
    )
    course = windows(run)
    assert course["start_s"].tolist() == [0, 120]  # the remaining 10 s are no whole window
    assert course["ttft_p50_s"].tolist() == [3, 6]
    assert course["hit_rate"].tolist() == [0.9, pytest.approx(60 / 400)]
    assert course["uncached_tokens_per_s"].tolist() == [pytest.approx(10 / 120), pytest.approx(340 / 120)]
    assert course["calls_per_min"].tolist() == [0.5, 1.0]


def test_ttft_of_a_call_still_waiting_is_bounded_by_the_runs_end():
    run = records(calls=[call(100, None, scheduled_s=None, finished_s=None), call(10, 3.0)], duration_s=400.0)
    assert ttft(run).tolist() == [300, 3]


def test_ttft_of_a_call_whose_session_was_ended_is_bounded_by_that_end():
    calls = [
        call(100, None, session_id="ended"),
        call(100, None, session_id="open"),
        call(100, 2.0, session_id="ended"),
    ]
    sessions = [session("ended", 0, 150, outcome="ended"), session("open", 0, None)]
    assert ttft(records(calls, sessions, duration_s=400.0)).tolist() == [50, 300, 2]


def test_samples_give_time_means_shares_of_capacity_and_counter_rates():
    run = records(
        samples=[
            sample(
                t,
                active_sessions=10 + i,
                active_extra_sessions=4,
                working_set_tokens=1500 + 1000 * i,
                computed_tokens_total=1200 * (i + 1),
                decode_kv_running_tokens=500,
                decode_kv_idle_tokens=1000,
            )
            for i, t in enumerate((60.0, 119.0))
        ],
        duration_s=240.0,
    )
    row, after = (windows(run).iloc[i] for i in range(2))
    assert row["active_sessions"] == 10.5 and row["active_base_sessions"] == 6.5
    assert row["w_over_c"] == 2.0
    assert (row["decode_kv_running"], row["decode_kv_idle"], row["decode_kv_used"]) == (0.25, 0.5, 0.75)
    assert row["computed_tokens_per_s"] == pytest.approx((2400 + 1200 / 59) / 120)  # a second beyond the last sample
    assert row["prefill_use"] == pytest.approx(row["computed_tokens_per_s"] / 100)
    assert np.isnan(after["computed_tokens_per_s"]) and np.isnan(after["active_sessions"])
    assert np.isnan(row["parked_sessions"])  # never measured
    assert rate(run, "computed_tokens_total", (0, 60)) == 20.0
    assert rate(run, "computed_tokens_total", (60, 119)) == pytest.approx(1200 / 59)
    assert sampled(run, "active_sessions", (100, 120)) == 11


def test_windows_without_anything_are_nan_not_zero():
    row = windows(records(duration_s=120.0)).iloc[0]
    assert np.isnan(row["ttft_p50_s"]) and np.isnan(row["hit_rate"]) and np.isnan(row["prefill_use"])
    assert row["calls_per_min"] == 0 and row["uncached_tokens_per_s"] == 0


def test_cache_is_the_larger_tier_and_a_missing_capacity_is_named():
    tiers = {"prefill_cache_tokens": 1000, "host_cache_tokens": 2000}
    assert cache_tokens(records(capacity=tiers)) == 2000
    with pytest.raises(ValueError, match="decode_kv_tokens"):
        windows(records(capacity=tiers | {"saturated_prefill_tokens_per_s": 1.0}))


def test_late_latency_is_the_worst_window_of_the_last_half_hour():
    calls = [call(1700, 50.0), call(2000, 8.0), call(3500, 12.0)]
    assert late_latency(records(calls=calls, duration_s=3600.0)) == 12.0


def test_reserve_wait_is_the_median_of_calls_released_in_the_interval():
    calls = [call(0, reserve_wait_s=9.0), call(60, reserve_wait_s=1.0), call(70, reserve_wait_s=3.0), call(80)]
    assert reserve_wait(records(calls=calls), (60, 100)) == 2.0


@given(
    st.lists(
        st.tuples(st.floats(0, 999), st.integers(1, 500), st.floats(0, 1)),
        min_size=1,
        max_size=40,
    )
)
def test_window_hit_rates_weighted_by_prompts_give_the_runs_hit_rate(rows):
    run = records(
        calls=[call(t, prompt_tokens=p, cached_tokens=int(p * share)) for t, p, share in rows], duration_s=1000.0
    )
    course = windows(run, 100.0)
    hits = (course["hit_rate"].fillna(0) * course["prompt_tokens"]).sum()
    assert hits / course["prompt_tokens"].sum() == pytest.approx(hit_rate(run))


def test_sixty_thousand_calls_take_well_under_a_second():
    rng = np.random.default_rng(0)
    calls = [call(float(t), 1.0) for t in rng.uniform(0, 7200, 60_000)]
    run = records(
        calls, [session(str(i), float(i)) for i in range(2000)], [sample(float(t)) for t in range(0, 7200, 5)]
    )
    began = time.process_time()
    windows(run)
    assert time.process_time() - began < 0.5
