"""Session plans: pairing, eligibility of burst sessions, the warm population, scaling and cost."""

import time
from itertools import accumulate

import numpy as np
import pytest
from scipy.stats import kstest

from artifact.workload.catalog import workload
from artifact.workload.load import Group, Load, PlannedSession, RateChange, ShortBurst, Surge
from artifact.workload.plan import plan_sessions
from artifact.workload.trajectory import OUTPUT_LIMIT_TOKENS, Trajectory

CALL_S = 2.0
"""What each call takes on the idle engine of these tests."""


def made(id: str, gaps_s: tuple[float, ...]) -> Trajectory:
    n = len(gaps_s)
    return Trajectory(
        id, tuple(100 * (i + 1) for i in range(n)), (100,) * n, output_tokens=(10,) * n, gap_before_s=gaps_s
    )


def unloaded_s(trajectory: Trajectory, first_call: int) -> float:
    return CALL_S * (trajectory.n_calls - first_call) + sum(trajectory.gap_before_s[first_call + 1 :])


SHORT = made("short", (0.0, 1.0))  # 5 s
LONG = made("long", (0.0, 3.0, 90.0))  # 99 s
BOTH = [SHORT, LONG]


def plan(trajectories: list[Trajectory] = BOTH, seed: int = 0, **load) -> list[PlannedSession]:
    asked = Load(**{"rate_per_min": 10.0, "duration_s": 1800.0, "warm_sessions": 0} | load)
    return plan_sessions(asked, trajectories, seed, unloaded_s)


def of(group: Group, sessions: list[PlannedSession]) -> list[PlannedSession]:
    return [s for s in sessions if s.group == group]


def test_sessions_come_by_arrival_with_ids_of_their_own() -> None:
    sessions = plan(
        warm_sessions=5,
        surges=[{"start_s": 300, "end_s": 900, "factor": 3}, {"start_s": 600, "end_s": 900, "factor": 2}],
        burst=ShortBurst(start_s=0, end_s=600, rate_factor=1),
    )
    times = [s.arrival_s for s in sessions]
    assert times == sorted(times)
    assert len({s.id for s in sessions}) == len(sessions)
    assert {s.group for s in sessions} == {"warm", "base", "surge", "burst"}
    assert all((s.first_call, s.first_gap_s) == (0, 0.0) for s in sessions if s.group != "warm")


@pytest.mark.parametrize("process", ["poisson", "bailian-coder"])
def test_base_and_warm_sessions_are_the_same_with_and_without_surge_and_burst(process: str) -> None:
    plain = plan(process=process, warm_sessions=None)
    surged = plan(
        process=process,
        warm_sessions=None,
        surges=(Surge(start_s=300, end_s=900, factor=2),),
        burst=ShortBurst(start_s=0, end_s=600, rate_factor=4, max_unloaded_s=10),
    )
    assert of("surge", surged)
    assert of("burst", surged)
    assert [s for s in surged if s.group in ("base", "warm")] == plain


def test_a_rate_change_keeps_what_came_before_it() -> None:
    plain, changed = plan(), plan(rate_change=RateChange(at_s=900, factor=0.2))
    assert [s for s in plain if s.arrival_s < 900] == [s for s in changed if s.arrival_s < 900]
    assert {s.id for s in changed} < {s.id for s in plain}


def test_trajectories_are_drawn_uniformly() -> None:
    drawn = [s.trajectory.id for seed in range(20) for s in plan(seed=seed)]
    assert drawn.count("short") / len(drawn) == pytest.approx(0.5, abs=0.02)


def test_a_burst_takes_only_sessions_that_end_in_time() -> None:
    burst = of("burst", plan(burst=ShortBurst(start_s=0, end_s=900, rate_factor=4, max_unloaded_s=5)))
    assert {s.trajectory.id for s in burst} == {"short"}
    with pytest.raises(ValueError, match="max_unloaded_s=4"):
        plan(burst=ShortBurst(start_s=0, end_s=900, rate_factor=4, max_unloaded_s=4))


def test_the_warm_population_is_littles_law_of_the_unloaded_duration() -> None:
    """10 sessions/min x (5 s + 99 s) / 2."""
    assert len(of("warm", plan(warm_sessions=None))) == round(10 / 60 * 52)


def test_warm_sessions_are_inside_in_proportion_to_their_duration() -> None:
    warm = of("warm", plan(warm_sessions=4000))
    assert {s.arrival_s for s in warm} == {0.0}
    share = sum(s.trajectory is LONG for s in warm) / len(warm)
    assert share == pytest.approx(99 / 104, abs=0.012)


def test_where_a_warm_session_joins_and_for_how_long_it_waits() -> None:
    """The long session is in its calls during [0, 2), [5, 7) and [97, 99), and between them in its gaps."""
    warm = of("warm", plan([LONG], warm_sessions=4000, warm_start="cached"))
    assert all(s.cached for s in warm)
    joins = {s.first_call: [] for s in warm}
    for s in warm:
        joins[s.first_call].append(s.first_gap_s)
    at_call_1 = np.array(joins[1])
    at_call_2 = np.array([wait for wait in joins[2] if wait > 0])
    restarted = len(joins[2]) - len(at_call_2)  # in its last call at time 0
    assert sorted(joins) == [1, 2]
    assert len(at_call_1) / 4000 == pytest.approx(5 / 99, abs=0.012)
    assert restarted / 4000 == pytest.approx(2 / 99, abs=0.008)
    assert at_call_1.max() <= 5
    assert kstest(at_call_2, "uniform", args=(0, 92)).pvalue > 0.01


def test_a_cold_start_joins_the_same_sessions_at_the_same_calls_all_at_once() -> None:
    cold, cached = (of("warm", plan(warm_sessions=400, warm_start=start)) for start in ("cold", "cached"))
    assert [(s.id, s.trajectory, s.first_call) for s in cold] == [(s.id, s.trajectory, s.first_call) for s in cached]
    assert {(s.first_gap_s, s.cached) for s in cold} == {(0.0, False)}
    assert cached == of("warm", plan(warm_sessions=400))  # what a load does that says nothing


def test_a_session_of_one_call_joins_at_that_call() -> None:
    warm = of("warm", plan([made("single", (0.0,))], warm_sessions=3, warm_start="cached"))
    assert [(s.first_call, s.first_gap_s, s.cached) for s in warm] == [(0, 0.0, False)] * 3


def test_scaling_reaches_durations_and_keeps_one_object_a_trajectory() -> None:
    scaled = plan(tool_time_scale=3.0, output_scale=2.0, warm_sessions=None)
    again = plan(tool_time_scale=3.0, output_scale=2.0, warm_sessions=None)
    assert {t.id: t.gap_before_s for t in {s.trajectory for s in scaled}} == {
        "short": (0.0, 3.0),
        "long": (0.0, 9.0, 270.0),
    }
    assert scaled[0].trajectory.output_tokens[0] == 20
    assert len({id(s.trajectory) for s in scaled + again}) == 2
    assert len(of("warm", scaled)) == round(10 / 60 * (7 + 285) / 2)
    assert [s.arrival_s for s in of("base", scaled)] == [s.arrival_s for s in of("base", plan())]


def test_there_must_be_trajectories() -> None:
    with pytest.raises(ValueError, match="no trajectories"):
        plan([])


def test_planning_is_cheap() -> None:
    """Two hours at 16/min, some 2,200 sessions; the bound is several times what it takes alone."""
    trajectories = workload("terminal-bench")
    left = {}
    for t in trajectories:
        later = zip(t.gap_before_s[:0:-1], t.output_tokens[-2::-1], strict=True)
        steps = accumulate(
            later, lambda total, step: total + step[0] + 0.01 * step[1], initial=0.01 * t.output_tokens[-1]
        )
        left[id(t)] = list(steps)[::-1]
    load = Load(rate_per_min=16, duration_s=7200, surges=(Surge(start_s=900, end_s=1500, factor=2),))
    costs = []
    for seed in range(5):
        start = time.process_time()
        sessions = plan_sessions(load, trajectories, seed, lambda t, call: left[id(t)][call])
        costs.append(time.process_time() - start)
        assert len(sessions) > 2000
    assert min(costs) < 0.03


def test_a_scaled_output_ends_at_the_limit_and_a_longer_one_stays() -> None:
    session = Trajectory("s", (10,) * 5, (10, 0, 0, 0, 0), (0, 100, 2000, 4096, 9000), (0.0,) * 5)
    assert session.scaled(output=3.0).output_tokens == (0, 300, OUTPUT_LIMIT_TOKENS, 4096, 9000)
    assert session.scaled(output=0.5).output_tokens == (0, 50, 1000, 2048, 4500)
    assert session.scaled().output_tokens == session.output_tokens
