import numpy as np
import pytest

from artifact.workload.load import Load, RateChange, ShortBurst, Surge
from sim.fluid.dynamics import Segment, admission, integrate, resident_first, segments
from sim.fluid.equilibria import backlog_drain_s, crossing_time_s, landscape, operating_point
from sim.fluid.model import FluidDeployment

FIRST_PROMPT = 8000.0


def surge(rate: float, factor: float, minutes: float, total: float = 6000.0) -> list[Segment]:
    return [Segment(900, rate), Segment(900 + 60 * minutes, rate * factor), Segment(total, rate)]


def test_a_load_becomes_constant_pieces() -> None:
    load = Load(
        rate_per_min=3,
        duration_s=3000,
        surges=(Surge(start_s=900, end_s=1500, factor=2),),
        rate_change=RateChange(at_s=1200, factor=0.5),
    )
    assert segments(load) == [
        Segment(900, pytest.approx(3 / 60)),
        Segment(1200, pytest.approx(6 / 60)),
        Segment(1500, pytest.approx(4.5 / 60)),
        Segment(3000, pytest.approx(1.5 / 60)),
    ]


def test_a_burst_of_short_sessions_is_refused() -> None:
    burst = ShortBurst(start_s=1, end_s=2, rate_factor=4)
    with pytest.raises(ValueError, match=r"load\.burst"):
        segments(Load(rate_per_min=3, duration_s=100, burst=burst))


def test_the_equilibrium_stays_put(h100: FluidDeployment) -> None:
    path = integrate(h100, [Segment(3600, 3 / 60)])
    assert np.ptp(path.active) < 0.01
    assert path.queued.max() == 0


@pytest.mark.parametrize(("share", "traps"), [(0.97, False), (1.03, True)])
def test_the_tipping_point_divides_the_outcomes(h100: FluidDeployment, share: float, traps: bool) -> None:
    """§5.1: below N_u the population returns to N_s, beyond it it grows; same arrivals afterwards."""
    rate = 3 / 60
    minutes = share * float(crossing_time_s(h100, rate, 2.0)) / 60
    path = integrate(h100, surge(rate, 2.0, minutes, total=30_000))
    assert ("tipped" in path.events) is traps
    assert ("recovered" in path.events) is not traps
    stable = operating_point(h100, rate).stable
    assert bool(path.active[-1] > 1.5 * landscape(h100).peak_sessions) is traps
    assert bool(abs(path.active[-1] - stable) < 0.03 * stable) is not traps


def test_the_tipping_event_is_when_eq_1_says(h100: FluidDeployment) -> None:
    rate = 3 / 60
    path = integrate(h100, surge(rate, 2.0, 20))
    assert path.events["tipped"] == pytest.approx(900 + float(crossing_time_s(h100, rate, 2.0)), rel=1e-3)


def test_arrivals_below_the_low_reuse_rate_drain_a_trapped_population(h100: FluidDeployment) -> None:
    low = float(landscape(h100).low)
    assert "recovered" in integrate(h100, [Segment(60_000, 0.7 * low)], active=200).events
    assert "recovered" not in integrate(h100, [Segment(60_000, 1.2 * low)], active=200).events


@pytest.mark.parametrize("entry", [resident_first(FIRST_PROMPT), admission(1.5 * 1.09e6)])
def test_entry_control_keeps_sessions_out_of_the_trap_and_in_a_queue(h100: FluidDeployment, entry) -> None:
    """§5.3: the same surge that traps the open engine leaves a queue, which drains."""
    rate = 2.8 / 60
    assert "tipped" in integrate(h100, surge(rate, 3.0, 10)).events
    held = integrate(h100, surge(rate, 3.0, 10, total=30_000), entry)
    assert held.queued.max() > 5
    assert "drained" in held.events and "recovered" in held.events


def test_admission_holds_the_working_set_within_the_budget(h100: FluidDeployment) -> None:
    budget = 1.5 * 1.09e6
    path = integrate(h100, surge(2.8 / 60, 3.0, 10), admission(budget))
    assert path.active.max() * h100.context_tokens <= budget * 1.001


def test_resident_first_holds_the_population_near_the_peak(h100: FluidDeployment) -> None:
    """§5.3: 'ordering maintains the population near the departure peak, N ~ N*'."""
    path = integrate(h100, [Segment(7200, 2.5 / 60)], resident_first(FIRST_PROMPT), active=60, queued=80)
    busy = path.queued > 5
    np.testing.assert_allclose(path.active[busy], landscape(h100).peak_sessions, rtol=0.12)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7])
def test_drain_law(h100: FluidDeployment, share: float) -> None:
    """Claim A-drain-law (Eq. 4): S sessions drain in about S/(D(N*) - lambda); at 0.8 of the peak the model's
    smoothed peak already costs 0.4, since resident-first order settles a little beyond it."""
    marks = landscape(h100)
    rate = share * float(marks.peak)
    path = integrate(
        h100, [Segment(60_000, rate)], resident_first(FIRST_PROMPT), active=float(marks.peak_sessions), queued=80
    )
    assert path.events["drained"] / backlog_drain_s(80, marks.peak, rate) == pytest.approx(1.0, abs=0.3)


def test_sessions_are_conserved(h100: FluidDeployment) -> None:
    """Sum of Eq. 3: d(N + Q)/dt = lambda - D(N), whoever waits where."""
    arrivals = surge(2.8 / 60, 3.0, 10)
    for entry in (resident_first(FIRST_PROMPT), admission(1.2e6)):
        path = integrate(h100, arrivals, entry, step_s=2.0)
        total = path.active + path.queued
        arrived = np.interp(path.time_s, [0, 900, 1500, 6000], np.cumsum([0, 42, 84, 4500 * 2.8 / 60]))
        departed = np.concatenate([[0], np.cumsum(np.diff(path.time_s) * _mean(h100.departures(path.active)))])
        np.testing.assert_allclose(total - total[0], arrived - departed, atol=0.5)


def _mean(values: np.ndarray) -> np.ndarray:
    return (values[1:] + values[:-1]) / 2


def test_an_overloaded_start_needs_a_population(h100: FluidDeployment) -> None:
    with pytest.raises(ValueError, match="give `active`"):
        integrate(h100, [Segment(60, 1.0)])
