import pytest
from handmade import records, session

from artifact.metrics import (
    NotObserved,
    completion_fraction,
    evaluated,
    first_call_wait,
    goodput,
    over_itl_allowance,
    shed_fraction,
    slowdown,
)


def test_goodput_counts_completed_within_slowdown_4_and_itl_allowance_per_hour_of_the_interval():
    run = records(
        sessions=[
            session("good", 0, 400),  # slowdown exactly 4
            session("slow", 0, 401),
            session("itl at allowance", 0, 100, slow_steps=5),
            session("itl over", 0, 100, slow_steps=6),
            session("unfinished", 0, None),
            session("shed", 0, 1, outcome="shed"),
            session("warm", 0, 100, group="warm"),
            session("surge", 1799, 100, group="surge"),
            session("after", 1800, 100),
        ]
    )
    assert goodput(run, (0, 1800)) == 3 / 0.5
    assert goodput(run) == 4 / 1.0


def test_evaluated_interval_is_half_open_and_must_not_be_empty():
    run = records(sessions=[session("a", 10), session("b", 20)])
    assert list(evaluated(run, (10, 20))["session_id"]) == ["a"]
    with pytest.raises(ValueError, match="is empty"):
        evaluated(run, (20, 20))


def test_slowdown_runs_from_arrival_and_is_unknown_unless_completed():
    run = records(
        sessions=[session("a", 50, 250, unloaded_s=100.0, admitted_s=200.0), session("b", 0, 10, outcome="ended")]
    )
    assert slowdown(evaluated(run)).tolist()[0] == 2.5
    assert slowdown(evaluated(run)).isna().tolist() == [False, True]


def test_sessions_without_decode_steps_are_within_the_allowance():
    run = records(sessions=[session(decode_steps=0, slow_steps=0)])
    assert over_itl_allowance(evaluated(run)).tolist() == [False]


def test_first_call_wait_counts_until_admission_or_first_token_and_is_censored_at_the_end():
    run = records(
        sessions=[
            session("in", 100, 50, admitted_s=130.0, started_s=135.0),
            session("parked", 400, None, admitted_s=None, started_s=None),
            session("shed", 500, 10, outcome="shed", admitted_s=None, started_s=None),
        ],
        duration_s=1000.0,
    )
    sessions = evaluated(run)
    assert first_call_wait(sessions, 1000.0).tolist() == [30, 600, 500]
    assert first_call_wait(sessions, 1000.0, until="started_s").tolist() == [35, 600, 500]
    assert first_call_wait(sessions, 1000.0, censor=False).isna().tolist() == [False, True, True]


def test_completion_is_over_all_evaluated_arrivals():
    run = records(
        sessions=[session("a"), session("b", 0, 1, outcome="shed"), session("c", 0, None), session("w", group="warm")]
    )
    assert completion_fraction(run) == pytest.approx(1 / 3)
    assert shed_fraction(run) == pytest.approx(1 / 3)
    assert completion_fraction(records()) != completion_fraction(records())  # NaN: nobody arrived


def test_an_interval_beyond_the_run_is_not_observed():
    with pytest.raises(NotObserved, match="ends at 4000 s, the run at 3600"):
        goodput(records(duration_s=3600.0), (0, 4000))
