"""Mean time to spontaneous collapse: counting, watching, keeping, splitting."""

import math
from pathlib import Path

import pytest

from artifact.workload.load import Load, RateChange, Surge
from sim.escape import splitting, watch
from sim.escape.splitting import split_escape_time
from sim.escape.watch import EscapeTime, Watched, escape_time, estimate
from sim.scenario import Deployment, Scenario


def scenario(per_s: float, hours: float = 1.0, **load) -> Scenario:
    given = {"workload": "paper-b", "rate_per_min": 60 * per_s, "duration_s": 3600 * hours, "warm_sessions": 0}
    deployment = Deployment(kind="colocated", calibration="mi300x-qwen3-8b")
    return Scenario(deployment=deployment, load=Load(**given | load))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(watch, "repository_root", lambda: tmp_path)
    return tmp_path / "build" / "escapes"


# Counting ----------------------------------------------------------------------------------------------------------


def test_collapses_over_time_watched() -> None:
    """Two in 400 s; the exact 95% interval of a Poisson count of two is 0.2422 to 7.2247."""
    found = estimate([Watched(150, True), Watched(200, False), Watched(50, True)])
    assert (found.mean_s, found.collapses, found.watched_s) == (200, 2, 400)
    assert (found.low_s, found.high_s) == pytest.approx((400 / 7.2247, 400 / 0.2422), rel=1e-3)


def test_without_a_collapse_only_a_lower_bound_is_known() -> None:
    """-ln 0.025 = 3.689 is the upper limit of a count of none."""
    found = estimate([Watched(1000, False)])
    assert found == EscapeTime(math.inf, pytest.approx(1000 / 3.6889, rel=1e-4), math.inf, 0, 1000)


def test_no_runs_are_no_estimate() -> None:
    with pytest.raises(ValueError, match="no runs were watched"):
        estimate([])


# Watching ----------------------------------------------------------------------------------------------------------


def test_an_overloaded_engine_collapses_and_an_idle_one_does_not() -> None:
    """Twice the capacity of about 0.05 sessions/s, and a fifth of it."""
    over, under = watch.watch(scenario(0.1)), watch.watch(scenario(0.01))
    assert over.collapsed and over.seconds < 1800
    assert under == Watched(3000.0, False), "from minute 10 on"


def test_what_was_watched_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = escape_time(scenario(0.1), range(2))
    assert len(list(folder.glob("*.json"))) == 2
    monkeypatch.setattr(watch, "watch", lambda scenario: pytest.fail("watched again"))
    assert escape_time(scenario(0.1), range(2)) == first
    assert (first.collapses, first.watched_s) == (2, pytest.approx(2 * first.mean_s))


@pytest.mark.parametrize(
    ("load", "named"),
    [
        ({"surges": (Surge(start_s=1, end_s=2, factor=2),)}, "surges"),
        ({"rate_change": RateChange(at_s=5, factor=0.5)}, "rate_change"),
        ({"duration_s": 500.0}, "duration_s 500"),
    ],
)
def test_a_disturbed_load_is_refused(load: dict, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        escape_time(scenario(0.03, **load), [0])
    with pytest.raises(ValueError, match=named):
        split_escape_time(scenario(0.03, **load), (0.5, 0.8))


# Splitting ---------------------------------------------------------------------------------------------------------


def test_the_rate_is_that_of_excursions_times_the_shares() -> None:
    """Ten in 1,000 s, of which a tenth in all collapses. Squared relative error: 1/10 + 1/100 + 4/100."""
    found = splitting._result(10, 1000.0, (0.5, 0.2), tries=100)
    error = 1.96 * math.sqrt(0.15)
    assert found.mean_s == pytest.approx(1000.0)
    assert (found.low_s, found.high_s) == pytest.approx((1000 * math.exp(-error), 1000 * math.exp(error)))


def test_a_level_that_none_reaches_gives_a_bound() -> None:
    """Of 60 branches none: less than 3/60 with 95% confidence, so more than 100 / 0.5 / 0.05 s."""
    found = splitting._result(10, 1000.0, (0.5, 0.0), tries=60)
    assert (found.mean_s, found.high_s) == (math.inf, math.inf)
    assert found.low_s == pytest.approx(4000.0)


def test_levels_must_ascend_and_be_reached() -> None:
    with pytest.raises(ValueError, match=r"levels \[0.8, 0.5\]"):
        split_escape_time(scenario(0.03), (0.8, 0.5))
    with pytest.raises(ValueError, match=r"no excursion from 0\.1 to 5 in"):
        split_escape_time(scenario(0.01, hours=0.3), (0.1, 5.0), seeds=[0])


def test_fresh_arrivals_leave_those_inside_alone() -> None:
    simulation = splitting.Simulation(scenario(0.05))
    simulation.advance(900.0)
    inside = {id for id, s in simulation.driver.sessions.items() if s.active}
    branches = [simulation.fork() for _ in range(2)]
    for seed, branch in enumerate(branches):
        splitting._refresh(branch, seed)
        assert {id for id, s in branch.driver.sessions.items() if s.active} == inside
        branch.advance(1500.0)
    one, other = (set(branch.driver.sessions) for branch in branches)
    assert one & other <= set(simulation.driver.sessions)
    assert one != other
    assert simulation.env.now == 900.0


@pytest.mark.slow
def test_splitting_agrees_with_plain_simulation(folder: Path) -> None:
    """At 0.04 sessions/s, where both are possible; their intervals overlap."""
    plain = escape_time(scenario(0.04, hours=6), range(16))
    split = split_escape_time(scenario(0.04, hours=3), (0.55, 0.8, 1.0), tries=80)
    assert split.low_s < plain.high_s and plain.low_s < split.high_s
    assert 0.3 < split.mean_s / plain.mean_s < 3
