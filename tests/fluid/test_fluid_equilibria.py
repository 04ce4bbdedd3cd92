import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from sim.fluid.equilibria import (
    backlog_drain_s,
    crossing_time_s,
    equilibria,
    landscape,
    operating_point,
    tipping_factor,
)
from sim.fluid.model import FluidDeployment

PER_MIN = 1 / 60


def between(d: FluidDeployment, share: float) -> float:
    """A rate at `share` of the way from the low-reuse rate to the peak."""
    low, peak = float(d.low_reuse_departures), float(landscape(d).peak)
    return low + share * (peak - low)


def test_two_equilibria_between_low_and_peak_that_close_in(host_1p3d: FluidDeployment) -> None:
    """Claim A-fluid-equilibria (§5.1)."""
    found = [equilibria(host_1p3d, between(host_1p3d, share)) for share in (0.05, 0.3, 0.6, 0.9, 0.99)]
    assert all([e.stable for e in pair] == [True, False] for pair in found)
    widths = np.array([unstable.sessions - stable.sessions for stable, unstable in found])
    assert np.all(np.diff(widths) < 0)
    assert widths[-1] < 0.25 * widths[0]


def test_one_equilibrium_below_and_none_above(host_1p3d: FluidDeployment) -> None:
    marks = landscape(host_1p3d)
    assert [e.stable for e in equilibria(host_1p3d, 0.9 * float(marks.low))] == [True]
    assert equilibria(host_1p3d, 1.01 * float(marks.peak)) == []


def test_peak_stands_where_the_paper_draws_it(host_1p3d: FluidDeployment) -> None:
    """Fig. 9a, 1P3D with HiCache: the curve peaks near N = 100 and above 7.5 departures/min, then falls under 5."""
    marks = landscape(host_1p3d)
    assert 85 <= marks.peak_sessions <= 125
    assert 7.5 <= marks.peak / PER_MIN <= 9.5
    assert marks.low / PER_MIN < 5


def test_peak_is_the_highest_point(h100: FluidDeployment) -> None:
    marks = landscape(h100)
    n = np.linspace(1, 300, 30_000)
    assert float(marks.peak) == pytest.approx(h100.departures(n).max(), rel=1e-6)
    assert float(marks.low) == pytest.approx(h100.departures(n[n > marks.peak_sessions]).min(), rel=1e-3)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.2, 5), st.floats(0.3, 30), st.floats(0.3, 3), st.floats(0.02, 0.98))
@example(3.359375, 20.125, 1.875, 0.875)  # a fall of 4%: the load lies above every point of a grid without the peak
@example(0.296875, 0.3125, 1.5625, 0.03125)  # departures dip below the load and rise above it before they fall
def test_equilibria_lie_on_the_curve_and_on_their_side_of_the_peak(
    cache: float, tool_time: float, output: float, share: float
) -> None:
    d = BASE.scaled(cache=cache, tool_time=tool_time, output=output)
    marks, rate = landscape(d), between(d, share)
    assume(np.isfinite(marks.peak_sessions) and rate > marks.low)
    point = operating_point(d, rate)
    assert d.departures(point.stable) == pytest.approx(rate, rel=1e-6)
    assert d.departures(point.tipping) == pytest.approx(rate, rel=1e-6)
    assert point.stable < marks.peak_sessions < point.tipping
    assert d.departures(point.stable * 0.99) < rate  # fewer: the population grows back
    assert d.departures(point.tipping * 1.001) < rate  # beyond: it grows away
    found = [e for e in equilibria(d, rate) if e.sessions <= marks.trough_sessions]
    assert [e.stable for e in found] == [True, False] * (len(found) // 2)
    assert [found[0].sessions, found[-1].sessions] == pytest.approx(
        [float(point.stable), float(point.tipping)], rel=1e-6
    )
    if len(found) == 2:
        assert d.departures((point.stable + point.tipping) / 2) > rate  # more, but short of tipping: it shrinks back


@settings(max_examples=40, deadline=None)
@given(st.floats(0.05, 50), st.floats(0.1, 50), st.floats(0.2, 5), st.floats(1.0001, 3))
def test_no_equilibrium_above_the_peak(cache: float, tool_time: float, output: float, over: float) -> None:
    d = BASE.scaled(cache=cache, tool_time=tool_time, output=output)
    rate = over * float(landscape(d).peak)
    assert equilibria(d, rate) == []
    assert np.isnan(operating_point(d, rate).stable)


def test_a_deployment_whose_prefill_can_recompute_everything_has_nothing_to_fall_to(h100: FluidDeployment) -> None:
    marks = landscape(h100.replace(prefill_tokens_per_s=31e6))
    assert marks.peak_sessions == np.inf
    assert marks.low == marks.peak
    point = operating_point(h100.replace(prefill_tokens_per_s=31e6), 0.9 * float(marks.peak))
    assert np.isfinite(point.stable) and np.isnan(point.tipping)


def test_sweeps_agree_with_single_deployments(h100: FluidDeployment) -> None:
    tools = np.array([1.0, 2.0, 4.0])
    sweep = landscape(h100.scaled(tool_time=tools))
    alone = [landscape(h100.scaled(tool_time=float(t))) for t in tools]
    np.testing.assert_allclose(sweep.peak, [a.peak for a in alone])
    np.testing.assert_allclose(sweep.peak_sessions, [a.peak_sessions for a in alone], rtol=1e-4)
    points = operating_point(h100.scaled(tool_time=tools), np.array([[2.2], [2.6]]) * PER_MIN)
    assert points.stable.shape == (2, 3)


def test_crossing_time_is_the_integral_of_eq_1(h100: FluidDeployment) -> None:
    rate = 3 * PER_MIN
    point = operating_point(h100, rate)
    expected, _ = quad(lambda n: 1 / (2 * rate - float(h100.departures(n))), float(point.stable), float(point.tipping))
    assert crossing_time_s(h100, rate, 2.0) == pytest.approx(expected, rel=1e-3)


def test_crossing_time_falls_with_the_surge_and_needs_more_than_the_peak(h100: FluidDeployment) -> None:
    rate = 3 * PER_MIN
    within = float(landscape(h100).peak) / rate
    times = crossing_time_s(h100, rate, [0.99 * within, 1.3, 2, 3, 5])
    assert times[0] == np.inf
    assert np.all(np.diff(times) < 0)


def test_the_published_surges_on_h100(h100: FluidDeployment) -> None:
    """§3.2: ten minutes of +33% recover, ten minutes of +100% do not, from 3.3 sessions/min on an engine whose
    highest recoverable load is 3.25 (Fig. 8a); here from as close to this model's peak."""
    rate = 0.95 * float(landscape(h100).peak)
    plus_33, plus_100 = crossing_time_s(h100, rate, [1.33, 2.0]) / 60
    assert plus_100 < 10 < plus_33


def test_tipping_factor_inverts_crossing_time(h100: FluidDeployment) -> None:
    rate = 2.8 * PER_MIN
    minutes = np.array([3.0, 10.0, 40.0])
    factors = tipping_factor(h100, rate, 60 * minutes)
    np.testing.assert_allclose(crossing_time_s(h100, rate, factors) / 60, minutes, rtol=1e-3)


def test_nothing_tips_below_the_low_reuse_rate(h100: FluidDeployment) -> None:
    rate = 0.9 * float(landscape(h100).low)
    assert np.all(np.isinf(crossing_time_s(h100, rate, [2, 10])))
    assert np.all(np.isinf(tipping_factor(h100, rate, [600])))


def test_a_smaller_surge_tips_at_a_higher_load(h100: FluidDeployment) -> None:
    """Observation 2 and Fig. 7: the surge needed shrinks as base load nears overload."""
    factors = [float(tipping_factor(h100, between(h100, share), 600.0)) for share in (0.2, 0.5, 0.8, 0.95)]
    assert factors == sorted(factors, reverse=True)


def test_backlog_drains_at_the_surplus() -> None:
    assert backlog_drain_s(60, 0.05, 0.03) == pytest.approx(60 / 0.02)  # Eq. 4
    assert list(backlog_drain_s(60, 0.05, [0.05, 0.06])) == [np.inf, np.inf]


BASE = FluidDeployment(
    cache_tokens=1.09e6,
    decode_kv_tokens=3 * 1.66e6,
    prefill_tokens_per_s=31e3,
    context_tokens=33.6e3,
    prompt_tokens=31e3,
    new_tokens=1350,
    calls_per_session=33,
    gap_s=7.5,
    unloaded_latency_s=5.0,
    latency_s_per_request=0.13,
)
