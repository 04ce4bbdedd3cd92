"""Workload statistics, worked out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifact.workload.stats import workload_stats
from artifact.workload.trajectory import Trajectory

A = Trajectory("a", (100, 150, 200), (100, 50, 60), (10, 90, 5), (0.0, 1.0, 3.0))
B = Trajectory("b", (40,), (40,), (7,), (9.0,))


def test_by_hand() -> None:
    found = workload_stats([A, B])
    assert (found.sessions, found.calls) == (2, 4)
    assert (found.calls_per_session_mean, found.calls_per_session_p50) == (2.0, 2.0)
    assert (found.prompt_p50, found.prompt_mean) == (125.0, 122.5)
    assert (found.output_p50, found.output_mean) == (8.5, 28.0)
    assert (found.gap_p50_s, found.gap_mean_s) == (2.0, 2.0)  # B's 9 s precede its first call
    assert (found.new_p50, found.new_mean) == (55.0, 55.0)
    assert (found.peak_p50, found.peak_max) == ((240 + 47) / 2, 240)
    # Of the 50 new tokens 10 are the output resent; of the 60, all, since the output of 90 can fill them.
    assert found.repeat_share == pytest.approx(1 - 40 / 350)
    assert found.repeat_share_with_first == pytest.approx(1 - (100 + 40 + 40) / 490)
    assert found.reuse_gain == pytest.approx(350 / 40)


def test_nothing_returns() -> None:
    found = workload_stats([B])
    assert math.isnan(found.gap_p50_s) and math.isnan(found.new_mean) and math.isnan(found.repeat_share)
    assert math.isnan(found.reuse_gain)
    assert found.repeat_share_with_first == 0.0


def test_no_trajectories() -> None:
    with pytest.raises(ValueError, match="no trajectories"):
        workload_stats([])


@given(st.permutations([A, B, Trajectory("c", (5, 9), (5, 4), (2, 2), (0.0, 0.5))]))
def test_order_does_not_matter(trajectories: list[Trajectory]) -> None:
    assert workload_stats(trajectories) == workload_stats(sorted(trajectories, key=lambda t: t.id))


def test_full_reuse_gains_without_bound() -> None:
    again = Trajectory("a", (100, 100), (100, 0), (0, 0), (0.0, 0.0))
    assert workload_stats([again]).reuse_gain == math.inf
    assert workload_stats([again]).repeat_share == 1.0
