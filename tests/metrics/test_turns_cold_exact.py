"""Paper B's endpoints, its regression and its tests, against values worked out by hand or published."""

import numpy as np
import pandas as pd
import pytest
from handmade import call, records, session
from hypothesis import given
from hypothesis import strategies as st

from artifact.metrics import (
    NotObserved,
    collapsed_at,
    degraded_from,
    fit_cold_cost,
    gateway_waits,
    in_system,
    in_system_at,
    mean_running,
    missed,
    paired_test,
    recovered_after_s,
    remaining_cold_work,
    share_interval,
    turn_hit_ratio,
    turn_rate,
    turn_windows,
)


def course(bad_minutes, minutes=60, empty=()):
    """A turn finishes in the middle of each minute, with 10 of its 100 tokens cached in bad ones and 95 otherwise."""
    calls = [
        call(60.0 * m, 30.0, cached_tokens=10 if m in bad_minutes else 95) for m in range(minutes) if m not in empty
    ]
    return records(calls, duration_s=60.0 * minutes)


def test_a_turn_counts_where_it_finishes_and_by_its_tokens():
    turns = [(10.0, 100, 90), (20.0, 300, 0), (400.0, 100, 100), (None, 100, 0)]
    run = records([call(0.0, ttft, prompt_tokens=prompt, cached_tokens=hit) for ttft, prompt, hit in turns])
    assert turn_hit_ratio(run, (0.0, 300.0)) == pytest.approx(90 / 400)
    assert turn_rate(run, (0.0, 300.0)) == pytest.approx(2 / 300)
    windows = turn_windows(run)
    assert windows["hit_ratio"][:2].tolist() == pytest.approx([0.225, 1.0]) and np.isnan(windows["hit_ratio"][2])
    assert windows["mean_context_tokens"][0] == 200 and windows["recomputed_per_s"][0] == pytest.approx(310 / 300)


def test_sessions_are_in_the_system_from_arrival_to_their_end_and_the_unfinished_stay():
    run = records(sessions=[session("a", 0.0, 60.0), session("b", 30.0, None), session("late", 4000.0, None)])
    assert in_system(run, (0.0, 60.0)) == pytest.approx(1.5)
    assert in_system_at(run, np.array([0.0, 59.0, 60.0, 3600.0])).tolist() == [1, 2, 1, 1]


@pytest.mark.parametrize(
    ("bad", "start_min"),
    [
        (range(30, 60), 30.0),
        (range(32, 60), 30.0),  # three of the five turns of the window from minute 30 on are bad
        ((), float("inf")),
        (range(20, 55), float("inf")),  # it ends
        ((*range(20, 25), *range(40, 60)), float("inf")),  # the first degraded window is followed by healthy ones
    ],
)
def test_persistent_degradation_runs_from_the_first_degraded_window_to_the_end(bad, start_min):
    assert degraded_from(course(bad), 20 * 60.0) == 60 * start_min


def test_a_window_in_which_nothing_completes_is_degraded():
    assert degraded_from(course((), empty=range(40, 60)), 20 * 60.0) == 2400.0
    assert collapsed_at(course(range(15, 20)), 1200.0) and not collapsed_at(course(range(10, 15)), 1200.0)


def test_recovery_is_the_start_of_the_first_window_from_which_all_hold():
    # the last bad turn is that of minute 29; a window with one bad turn of five has (10 + 4 * 95) / 500 = 0.78
    assert recovered_after_s(course(range(20, 30)), 20 * 60.0) == 10 * 60.0
    assert recovered_after_s(course(()), 20 * 60.0) == 0.0
    assert recovered_after_s(course(range(20, 50)), 20 * 60.0) == 30 * 60.0
    assert recovered_after_s(course(range(20, 51)), 20 * 60.0) == np.inf, "fewer than ten minutes follow"
    assert recovered_after_s(course(range(20, 60)), 20 * 60.0) == np.inf
    with pytest.raises(NotObserved):
        turn_windows(course((), minutes=4))


@given(st.sets(st.integers(20, 59)))
def test_more_bad_turns_never_recover_earlier(bad):
    later = recovered_after_s(course(bad), 1200.0)
    assert recovered_after_s(course(bad - {max(bad)} if bad else bad), 1200.0) <= later


def busy(n_turns, prompt, cached=0, minute=0):
    """So many turns in a two-minute window, all in the engine throughout."""
    start = 120.0 * minute
    rows = {"scheduled_s": start, "prompt_tokens": prompt, "cached_tokens": cached}
    return [call(start, 110.0, **rows) for _ in range(n_turns)]


def test_the_regression_finds_the_cost_that_made_the_windows():
    # a = 1 s, b = 0.01 s: 5 turns of 2,300 take 120 s, 8 of 1,400 too, and 6 of 1,900
    calls = busy(5, 2300) + busy(8, 1400, minute=1) + busy(6, 1900, minute=2)
    found = fit_cold_cost([records(calls, duration_s=360.0)])
    assert found[:2] == pytest.approx((1.0, 0.01)) and found.windows == 3
    assert found([1000, 2000]) == pytest.approx(2 + 30)
    calls += busy(3, 9999, minute=3) + busy(9, 1400, cached=1300, minute=4)  # too few running; turns that hit
    assert fit_cold_cost([records(calls, duration_s=600.0)], only_misses=True)[:2] == pytest.approx((1.0, 0.01))
    with pytest.raises(NotObserved, match="2 busy windows"):
        fit_cold_cost([records(calls[:13], duration_s=240.0)])


def test_running_and_missed():
    run = records([call(0.0, 10.0), call(5.0, 10.0, scheduled_s=10.0), call(6.0, None, scheduled_s=None)])
    assert mean_running(run, 0.0, 20.0) == pytest.approx(15 / 20)
    frame = pd.DataFrame({"prompt_tokens": [100, 100, 100], "cached_tokens": [49.0, 50.0, np.nan]})
    assert missed(frame).tolist() == [True, False, False]


def test_remaining_work_is_that_of_the_turns_not_done_by_sessions_inside():
    cost = fit_cold_cost([records(busy(5, 2300) + busy(8, 1400, minute=1) + busy(6, 1900, minute=2), duration_s=360.0)])
    sessions = [session("a", 0.0, None, trajectory_id="t"), session("b", 0.0, 30.0, trajectory_id="t")]
    calls = [call(0.0, 20.0, session_id="a"), call(0.0, 30.0, session_id="b")]
    work = remaining_cold_work(records(calls, sessions), {"t": (100, 200)}, cost, np.array([0.0, 25.0, 100.0]))
    # a turn of 100 tokens costs 2 s, one of 200 costs 3 s
    assert work == pytest.approx([10.0, 3.0 + 5.0, 3.0])


def test_published_p_values():
    """Paper B: 9 of 12 pairs one way and none the other (Table 2); 7 of 7 against 1 of 7 (§6)."""
    burst, twin = [True] * 11 + [False], [False] * 9 + [True, True, False]
    found = paired_test(burst, twin)
    assert found[:4] == (9, 0, 2, 1) and found.p == pytest.approx(0.00391, abs=5e-6)
    assert paired_test([True] * 7, [True] + [False] * 6).p == pytest.approx(0.031, abs=5e-4)
    assert paired_test([True], [True]).p == 1.0
    with pytest.raises(ValueError, match="no pairs"):
        paired_test([], [])
    assert share_interval(7, 7) == pytest.approx((0.025 ** (1 / 7), 1.0))


def test_a_session_is_held_at_the_door_and_at_turn_boundaries():
    planned = {"calls_planned": 3}
    sessions = [
        session("a", 10.0, 90.0, **planned),
        session("stood aside", 0.0, None, **planned),
        session("running", 0.0, None, **planned),
        session("at its tools", 0.0, None, **planned),
        session("door", 3000.0, None, admitted_s=None, **planned),
        session("warm", 0.0, group="warm"),
    ]
    calls = [
        call(40.0, 1.0, session_id="a"),  # 30 s at the door
        call(44.0, 1.0, session_id="a", call_index=1),  # 41 + gap 3: let through at once
        call(55.0, 1.0, session_id="a", call_index=2),  # 45 + gap 5: held 5 s
        call(0.0, 1.0, session_id="stood aside"),  # ready at 4, not let through by 3,600
        call(0.0, None, session_id="running"),
        call(0.0, 3598.0, session_id="at its tools"),  # ready after the end
    ]
    held = gateway_waits(records(calls, sessions), {"t": (0.0, 3.0, 5.0)})
    assert held.to_dict() == {"a": 35.0, "stood aside": 3596.0, "running": 0.0, "at its tools": 0.0, "door": 600.0}
