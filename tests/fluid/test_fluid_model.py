import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sim.fluid.hits import HitCurve
from sim.fluid.model import FluidDeployment


@st.composite
def deployments(draw: st.DrawFn) -> FluidDeployment:
    prompt = draw(st.floats(2e3, 2e5))
    return FluidDeployment(
        cache_tokens=draw(st.floats(1e5, 1e9)),
        decode_kv_tokens=draw(st.floats(1e5, 1e8)),
        prefill_tokens_per_s=draw(st.floats(1e3, 1e6)),
        context_tokens=draw(st.floats(1e3, 2e5)),
        prompt_tokens=prompt,
        new_tokens=prompt * draw(st.floats(0.001, 1)),
        calls_per_session=draw(st.floats(1, 200)),
        gap_s=draw(st.floats(0, 300)),
        unloaded_latency_s=draw(st.floats(0.05, 60)),
        latency_s_per_request=draw(st.sampled_from([0.0]) | st.floats(1e-4, 2)),
        hits=HitCurve(kappa=draw(st.floats(0.3, 2))),
    )


populations = st.floats(1e-2, 1e5)


def test_hit_curve_goes_through_the_published_points() -> None:
    h = HitCurve()
    assert h(0.5) == pytest.approx(0.95)  # healthy (§3.2)
    assert h(1.9) == pytest.approx(0.80, abs=0.02)  # before the sharp drop (§3.3)
    assert h(4.0) == pytest.approx(0.27)  # trapped (§3.2)
    assert 0.81 - 0.01 <= h(1.7) <= h(1.6) <= 0.93  # runs that never collapsed (§5.2)
    assert h.cliff == pytest.approx(1.9)


@given(st.lists(st.floats(0, 20), min_size=2, max_size=20), st.floats(0.3, 3))
def test_hit_curve_never_rises_with_the_working_set(x: list[float], kappa: float) -> None:
    h = HitCurve(kappa=kappa)(np.sort(x))
    assert np.all(np.diff(h) <= 0)
    assert np.all((h >= 0.27 - 1e-12) & (h <= 0.95))


def test_kappa_scales_the_cliff() -> None:
    assert HitCurve(kappa=0.5)(0.95) == pytest.approx(HitCurve()(1.9))


def test_closed_loop_is_n_over_gap_plus_latency_when_calls_do_not_slow_each_other(h100: FluidDeployment) -> None:
    d = h100.replace(latency_s_per_request=0.0)
    assert d.closed_loop([10, 100]) == pytest.approx([10 / 12.5, 100 / 12.5])  # N/(g + L0), §5.1


def test_closed_loop_tends_to_n_over_gap_plus_latency_at_small_n(h100: FluidDeployment) -> None:
    assert h100.closed_loop(0.01) * 12.5 / 0.01 == pytest.approx(1, rel=1e-3)


@given(deployments(), populations)
def test_closed_loop_satisfies_littles_law(d: FluidDeployment, n: float) -> None:
    busy, rate = d.in_service(n), d.closed_loop(n)
    assert busy + d.gap_s * rate == pytest.approx(n, rel=1e-6)
    assert rate * (d.unloaded_latency_s + d.latency_s_per_request * busy) == pytest.approx(busy, rel=1e-6)


def test_prefill_bound_by_hand(h100: FluidDeployment) -> None:
    small, huge = 1, 1000  # h = 0.95 and 0.27
    assert h100.uncached(small) == pytest.approx(0.05 * 31e3)  # above n_new = 1350
    assert h100.uncached(huge) == pytest.approx(0.73 * 31e3)
    assert h100.prefill_bound(huge) == pytest.approx(31e3 / (0.73 * 31e3))
    assert h100.replace(new_tokens=2000).uncached(small) == 2000


def test_decode_bound_by_hand(h100: FluidDeployment) -> None:
    requests = 1.66e6 / 33.6e3
    assert h100.memory_limit == pytest.approx(requests)
    assert h100.decode_bound == pytest.approx(requests / (5 + 0.38 * requests))


def test_nobody_departs_from_an_empty_engine(h100: FluidDeployment) -> None:
    assert h100.departures(0) == 0


def test_smooth_minimum_of_equal_bounds_is_within_eight_percent(h100: FluidDeployment) -> None:
    assert h100.smooth_min(3.0, 3.0) == pytest.approx(3 * 2 ** (-1 / 8))
    assert h100.smooth_min(3.0, 300.0) == pytest.approx(3.0)


@given(deployments(), populations)
def test_departures_are_within_every_bound_and_near_the_least(d: FluidDeployment, n: float) -> None:
    least = min(float(d.closed_loop(n)), float(d.prefill_bound(n)), d.decode_bound)
    calls = float(d.departures(n)) * d.calls_per_session
    assert calls <= least * (1 + 1e-9)
    assert calls >= least * 3 ** (-1 / 8) * (1 - 1e-9)


@given(deployments())
def test_departures_tend_to_the_low_reuse_rate(d: FluidDeployment) -> None:
    assert float(d.departures(1e15)) == pytest.approx(float(d.low_reuse_departures), rel=1e-3)


def test_numbers_broadcast(h100: FluidDeployment) -> None:
    sweep = h100.scaled(cache=np.array([1.0, 2.0])[:, None, None], tool_time=np.array([1.0, 3.0, 10.0])[:, None])
    n = np.array([10.0, 60.0, 100.0, 200.0])
    assert sweep.departures(n).shape == (2, 3, 4)
    one = h100.scaled(cache=2.0, tool_time=10.0)
    np.testing.assert_allclose(sweep.departures(n)[1, 2], one.departures(n))


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("cache_tokens", 0, "above 0"),
        ("decode_kv_tokens", -1, "above 0"),
        ("gap_s", -0.1, "not be negative"),
        ("prompt_tokens", float("nan"), "finite"),
        ("calls_per_session", "many", "not a number"),
        ("calls_per_session", None, "not a number"),
        ("new_tokens", 50e3, "exceed prompt_tokens"),
    ],
)
def test_bad_numbers_are_named(h100: FluidDeployment, field: str, value: object, says: str) -> None:
    with pytest.raises(ValidationError, match=says) as error:
        h100.replace(**{field: value})
    assert field in str(error.value)


def test_a_floor_above_the_plateau_is_refused() -> None:
    with pytest.raises(ValidationError, match="floor < plateau"):
        HitCurve(plateau=0.2, floor=0.3)
