import math

import numpy as np
import pytest
from handmade import call, records, sample, session

from artifact.metrics import duration_ratio, hit_curve, knee, normal_band, time_to_normal


def test_duration_ratio_is_the_median_over_shared_sessions_by_arrival():
    paired = records(sessions=[session(str(i), 10.0 * i, 100) for i in range(5)] + [session("late", 700, 100)])
    surged = records(
        sessions=[
            session("0", 0, 200),
            session("1", 10, 300),
            session("2", 20, 900),
            session("3", 30, 100, group="warm"),
            session("extra", 40, 100),
            session("late", 700, None),
        ],
        duration_s=900.0,
    )
    bins = duration_ratio(surged, paired)
    assert bins["start_s"].tolist() == [0, 600] and bins["sessions"].tolist() == [3, 1]
    assert bins["ratio"].iloc[0] == 3.0
    assert duration_ratio(surged, paired, from_s=15)["start_s"].tolist() == [15, 615]
    assert np.isnan(bins["ratio"].iloc[1])  # nobody of that bin has finished: the median is not known


def test_duration_ratio_takes_the_runs_end_for_the_few_that_are_unfinished():
    paired = records(sessions=[session(str(i), 0, 100) for i in range(3)])
    surged = records(sessions=[session("0", 0, 150), session("1", 0, 200), session("2", 0, None)], duration_s=900.0)
    assert duration_ratio(surged, paired)["ratio"].tolist() == [2.0]


def calm(ttft_s=1.0, cached=90, disturbed=(), duration_s=1800.0):
    """A call every minute; those released within `disturbed` minutes have a TTFT of 30 s and no hit."""
    calls = [
        call(60.0 * m, 30.0, cached_tokens=0) if m in disturbed else call(60.0 * m, ttft_s, cached_tokens=cached)
        for m in range(int(duration_s / 60))
    ]
    return records(calls, duration_s=duration_s)


def test_normal_band_is_the_worst_window_with_a_quarter_of_slack():
    ttft_s, hit = normal_band([calm(disturbed=(0, 1))])  # the first five minutes do not count
    assert ttft_s == pytest.approx(1.25) and hit == pytest.approx(1 - 0.1 * 1.25)


def test_a_pair_that_degrades_by_itself_does_not_make_that_normal():
    assert normal_band([calm(disturbed=range(20, 30))]) == pytest.approx((5.0, 0.8))


def test_time_to_normal_is_the_end_of_the_last_window_outside_the_band():
    band = normal_band([calm()])
    assert time_to_normal(calm(disturbed=(15, 16, 20)), band, 15 * 60) == 6.0  # windows start at minute 15
    assert time_to_normal(calm(), band, 15 * 60) == 0.0
    assert math.isinf(time_to_normal(calm(disturbed=(15, 29, 28)), band, 14 * 60))
    with pytest.raises(ValueError, match="has no whole"):
        time_to_normal(calm(), band, 1800)


def test_time_to_normal_needs_the_hit_rate_too():
    assert time_to_normal(calm(cached=80), normal_band([calm()]), 15 * 60) == math.inf


def falling(hits_by_bin, repeats=3):
    """Windows whose W/C is the centre of each bin of width 0.1 from 1.0 on, with the given hit rates."""
    calls, samples = [], []
    places = [(k, hit) for k, hit in enumerate(hits_by_bin) for _ in range(repeats)]
    for i, (k, hit) in enumerate(places):
        calls.append(call(120.0 * i, prompt_tokens=1000, cached_tokens=round(1000 * hit)))
        samples.append(sample(120.0 * i, working_set_tokens=1050 + 100 * k))
    return records(calls, samples=samples, duration_s=120.0 * len(places))


def test_knee_is_the_steepest_step_and_the_drop_spans_its_steep_neighbours():
    curve = hit_curve([falling([0.95, 0.9, 0.8, 0.55, 0.32, 0.3])])
    assert curve.bins["w_over_c"].to_numpy() == pytest.approx([1.05, 1.15, 1.25, 1.35, 1.45, 1.55])
    found = knee(curve)
    assert found.w_over_c == pytest.approx(1.3)
    assert found.shoulder == pytest.approx(0.8) and found.floor == pytest.approx(0.32)


def test_hit_curve_pools_runs_and_leaves_thin_bins_out():
    runs = [falling([0.9, 0.5], repeats=2), falling([0.9], repeats=1)]
    curve = hit_curve(runs)
    assert len(curve.points) == 5 and curve.bins["windows"].tolist() == [3]
    with pytest.raises(ValueError, match="never falls"):
        knee(curve)
    with pytest.raises(ValueError, match="no runs"):
        hit_curve([])
