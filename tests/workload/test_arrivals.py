"""Arrival streams: pairing across surges, thinning, and the published burstiness."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest, poisson

from artifact.reproduce.evaluate.workload import burst
from artifact.workload.arrivals import base_stream, burst_stream, surge_stream
from artifact.workload.load import Load, RateChange, ShortBurst, Surge

HOURS2 = 7200.0


def points(stream) -> dict[str, tuple[float, float]]:
    """Time and pick by session id."""
    return dict(zip(stream.ids, zip(stream.times_s.tolist(), stream.picks.tolist(), strict=True), strict=True))


@pytest.mark.parametrize("process", ["poisson", "bailian-coder", "bailian-a"])
def test_base_arrivals_are_ordered_unique_and_within_the_run(process: str) -> None:
    stream = base_stream(Load(rate_per_min=10, duration_s=9000, process=process), seed=3)
    assert (np.diff(stream.times_s) > 0).all()
    assert stream.times_s[0] >= 0
    assert stream.times_s[-1] < 9000
    assert len(set(stream.ids)) == len(stream.ids) == len(stream.picks)


def test_poisson_gaps_are_exponential_and_counts_have_the_offered_mean() -> None:
    load = Load(rate_per_min=12, duration_s=3600)
    streams = [base_stream(load, seed) for seed in range(60)]
    gaps = np.concatenate([np.diff(s.times_s) for s in streams])
    assert kstest(gaps, "expon", args=(0, 5.0)).pvalue > 0.01
    counts = np.array([len(s.times_s) for s in streams])
    low, high = poisson.ppf([0.0005, 0.9995], 720 * 60)
    assert low <= counts.sum() <= high
    assert 0.5 < counts.var() / 720 < 1.7  # Poisson: 1


def test_a_stream_is_the_same_every_time_and_differs_between_seeds() -> None:
    load = Load(rate_per_min=5, duration_s=600)
    assert points(base_stream(load, 1)) == points(base_stream(load, 1))
    assert points(base_stream(load, 1)) != points(base_stream(load, 2))


@pytest.mark.parametrize("process", ["poisson", "bailian-a"])
def test_a_longer_run_begins_with_the_shorter_one(process: str) -> None:
    short = base_stream(Load(rate_per_min=7, duration_s=1800, process=process), 4)
    long = base_stream(Load(rate_per_min=7, duration_s=HOURS2, process=process), 4)
    assert points(short).items() <= points(long).items()
    assert len(short.ids) == (long.times_s < 1800).sum()


def test_rates_share_the_sequence_of_sessions() -> None:
    slow = base_stream(Load(rate_per_min=3, duration_s=3600), 0)
    fast = base_stream(Load(rate_per_min=6, duration_s=3600), 0)
    assert fast.times_s[: len(slow.ids)] == pytest.approx(slow.times_s / 2)
    assert fast.picks[: len(slow.ids)].tolist() == slow.picks.tolist()


@given(
    low=st.floats(1, 6),
    more=st.floats(0, 6),
    process=st.sampled_from(["poisson", "bailian-coder"]),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=25, deadline=None)
def test_a_larger_surge_only_adds_sessions(low: float, more: float, process: str, seed: int) -> None:
    small, large = (
        surge_stream(
            Load(
                rate_per_min=3.3,
                duration_s=3600,
                process=process,
                surges=(Surge(start_s=900, end_s=1500, factor=factor),),
            ),
            seed,
            0,
        )
        for factor in (low, low + more)
    )
    assert points(small).items() <= points(large).items()
    assert all(900 <= time < 1500 for time in large.times_s)


def test_a_surge_brings_factor_minus_one_times_the_base_rate_independently_of_it() -> None:
    load = Load(rate_per_min=10, duration_s=1800, surges=(Surge(start_s=600, end_s=1200, factor=2.5),) * 2)
    counts = np.array([[len(surge_stream(load, seed, i).ids) for i in (0, 1)] for seed in range(200)])
    assert counts.mean() == pytest.approx(150, rel=0.02)
    base = [(base_stream(load, seed).times_s // 600 == 1).sum() for seed in range(200)]
    together = np.corrcoef(np.column_stack([counts, base]).T)
    assert np.abs(together[np.triu_indices(3, 1)]).max() < 0.25


def test_a_surge_of_factor_one_adds_nothing() -> None:
    load = Load(rate_per_min=10, duration_s=600, surges=(Surge(start_s=0, end_s=600, factor=1),))
    assert surge_stream(load, 0, 0).ids == ()


@given(factor=st.floats(0, 3), seed=st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_a_rate_change_leaves_earlier_arrivals_and_thins_or_adds_later_ones(factor: float, seed: int) -> None:
    load = Load(rate_per_min=10, duration_s=3600)
    plain = points(base_stream(load, seed))
    changed = points(base_stream(load.model_copy(update={"rate_change": RateChange(at_s=1500, factor=factor)}), seed))
    before = {id: point for id, point in plain.items() if point[0] < 1500}
    assert before == {id: point for id, point in changed.items() if point[0] < 1500}
    assert changed.items() <= plain.items() if factor <= 1 else plain.items() <= changed.items()


def test_a_rate_change_has_its_factor() -> None:
    def later(factor: float) -> float:
        load = Load(rate_per_min=10, duration_s=3600, rate_change=RateChange(at_s=1800, factor=factor))
        return float(np.mean([(base_stream(load, seed).times_s >= 1800).sum() for seed in range(60)]))

    assert later(0) == 0
    assert later(0.3) == pytest.approx(90, rel=0.06)
    assert later(1.7) == pytest.approx(510, rel=0.03)


def test_a_burst_comes_at_its_own_rate_in_its_window() -> None:
    load = Load(rate_per_min=3, duration_s=3600, burst=ShortBurst(start_s=900, end_s=1500, rate_factor=4))
    streams = [burst_stream(load, seed) for seed in range(100)]
    assert np.mean([len(s.ids) for s in streams]) == pytest.approx(120, rel=0.03)
    assert all(((s.times_s >= 900) & (s.times_s < 1500)).all() for s in streams)
    assert burst_stream(load.model_copy(update={"burst": None}), 0).ids == ()


@pytest.mark.parametrize(("process", "excess"), [("bailian-coder", 0.16), ("bailian-a", 0.49)])
def test_bursty_processes_have_the_published_busiest_ten_minutes(process: str, excess: float) -> None:
    """Paper A §4.1, at a single deployment's rates and with their Poisson noise; the mean load is the offered one."""
    streams = [
        base_stream(Load(rate_per_min=rate, duration_s=HOURS2, process=process), seed).times_s
        for rate in (9, 14, 20)
        for seed in range(40)
    ]
    assert np.mean([burst(times) for times in streams]) == pytest.approx(excess, abs=0.02)
    assert np.mean([len(times) for times in streams]) == pytest.approx((9 + 14 + 20) / 3 * 120, rel=0.01)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A native trace whose 600 sessions arrive every six seconds from 100 s on, and a sub-agent in between."""
    rows = [{"session_id": f"s{i}", "arrival_s": 100 + 6 * i} for i in range(600)]
    rows.append({"session_id": "child", "arrival_s": 101, "parent_id": "s0"})
    path = tmp_path / "trace.jsonl"
    columns = {"prompt_tokens": [10], "new_tokens": [10], "output_tokens": [1]}
    path.write_text("\n".join(json.dumps(row | columns | {"task_text": row["session_id"]}) for row in rows))
    return path


def recorded(trace: Path, rate: float, **other) -> Load:
    return Load(rate_per_min=rate, duration_s=3600, process="recorded", arrivals_path=str(trace), **other)


def test_recorded_arrivals_are_the_traces_own_from_zero_on(trace: Path) -> None:
    assert base_stream(recorded(trace, 10), 0).times_s.tolist() == [6.0 * i for i in range(600)]


def test_recorded_arrivals_are_thinned_to_the_offered_rate(trace: Path) -> None:
    third, half = (points(base_stream(recorded(trace, rate), 5)) for rate in (10 / 3, 5))
    assert third.items() <= half.items()
    assert len(third) == pytest.approx(200, abs=45)  # 4 deviations of a binomial
    assert len(half) == pytest.approx(300, abs=50)


def test_a_recorded_rate_is_not_made_up(trace: Path) -> None:
    with pytest.raises(ValueError, match=r"10 arrivals/min .* cannot be thinned to 12/min: lower rate_per_min"):
        base_stream(recorded(trace, 12), 0)
    with pytest.raises(ValueError, match="cannot be thinned to 20/min"):
        base_stream(recorded(trace, 10, rate_change=RateChange(at_s=60, factor=2)), 0)


def test_recorded_arrivals_need_a_trace_that_has_them(tmp_path: Path) -> None:
    for half in ({"process": "recorded"}, {"arrivals_path": "trace.jsonl"}):
        with pytest.raises(ValueError, match="arrivals_path"):
            Load(rate_per_min=1, duration_s=60, **half)
    path = tmp_path / "untimed.jsonl"
    path.write_text('{"session_id":"a","prompt_tokens":[1],"new_tokens":[1],"output_tokens":[1]}\n')
    with pytest.raises(ValueError, match="without arrival times"):
        base_stream(recorded(path, 1), 0)
