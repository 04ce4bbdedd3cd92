import pytest
from handmade import call, records, session
from hypothesis import given, settings
from hypothesis import strategies as st

from artifact.metrics import EndState, degradation, end_state

TRIGGER = {"start_s": 900.0, "end_s": 1500.0}
END_S = 7200.0
BEFORE, LAST = (4800.0, 6000.0), (6000.0, 7200.0)


def course(ttft_s=(1.0, 1.0), hit=(0.3, 0.3), wait_s=(0.0, 0.0), never=(0.0, 0.0), hit_before=0.95, trigger=TRIGGER):
    """Four calls and eight sessions in each of the final windows, and calls before the trigger."""
    calls = [call(600.0 + i, prompt_tokens=100, cached_tokens=round(100 * hit_before)) for i in range(5)]
    sessions = []
    for k, start in enumerate((BEFORE[0], LAST[0])):
        calls += [call(start + i, ttft_s[k], cached_tokens=round(100 * hit[k])) for i in range(4)]
        for i in range(8):
            at = start + i
            lost = i < 8 * never[k]
            sessions.append(
                session(f"{k}.{i}", at, admitted_s=at + wait_s[k], started_s=None if lost else at + wait_s[k])
            )
    sessions.append(session("warm", 6500.0, group="warm", admitted_s=None, started_s=None))
    return records(calls, sessions, duration_s=END_S, trigger=trigger)


def test_degradation_measures_by_hand():
    found = degradation(course(ttft_s=(6, 7), hit=(0.5, 0.25), wait_s=(0, 301), never=(0, 0.25)), LAST)
    assert (found.ttft_p50_s, found.first_wait_p50_s, found.never_started, found.hit_rate) == (7, 301, 0.25, 0.25)
    assert found.broken == (True, True, True)


@pytest.mark.parametrize(
    ("measures", "degraded"),
    [
        ({"ttft_s": (1, 5.0)}, False),
        ({"ttft_s": (1, 5.01)}, True),
        ({"wait_s": (0, 300)}, False),
        ({"wait_s": (0, 301)}, True),
        ({"never": (0, 0.125)}, False),
        ({"never": (0, 0.25)}, True),  # "at least 25%"
    ],
)
def test_bounds_of_a_degraded_window(measures, degraded):
    assert degradation(course(**measures), LAST).degraded is degraded


@pytest.mark.parametrize(
    ("measures", "state"),
    [
        ({"ttft_s": (1, 1)}, EndState.HEALTHY),
        ({"ttft_s": (60, 60)}, EndState.TRAPPED),
        ({"ttft_s": (60, 50)}, EndState.TRAPPED),  # improves by a sixth
        ({"ttft_s": (60, 45)}, EndState.RECOVERING),  # by exactly a quarter
        ({"ttft_s": (60, 4)}, EndState.RECOVERING),
        ({"ttft_s": (4, 60)}, EndState.HEALTHY),  # not degraded in both
        ({"ttft_s": (60, 60), "hit": (0.9, 0.9)}, EndState.OVERLOADED),
        ({"ttft_s": (60, 60), "hit": (0.3, 0.9)}, EndState.OVERLOADED),  # both must have lost reuse
        ({"ttft_s": (60, 60), "hit": (0.85, 0.85)}, EndState.TRAPPED),  # exactly 0.10 below
        ({"ttft_s": (60, 60), "hit": (0.86, 0.86)}, EndState.OVERLOADED),
        ({"wait_s": (600, 600), "hit": (0.9, 0.9)}, EndState.OVERLOADED),
        ({"ttft_s": (60, 20), "wait_s": (400, 600)}, EndState.TRAPPED),  # the wait it breaks does not improve
        ({"ttft_s": (60, 4), "wait_s": (600, 400)}, EndState.RECOVERING),  # only the broken bound has to improve
        ({"never": (0.5, 0.5)}, EndState.TRAPPED),
        ({"never": (1.0, 0.5)}, EndState.RECOVERING),
    ],
)
def test_end_states(measures, state):
    assert end_state(course(**measures)) is state


def test_hit_threshold_and_control_reference():
    run = course(ttft_s=(60, 60), hit=(0.8, 0.8))
    assert end_state(run, hit_drop=0.15) is EndState.TRAPPED
    assert end_state(run, hit_drop=0.20) is EndState.OVERLOADED
    assert end_state(run, hit_before=0.85) is EndState.OVERLOADED
    with pytest.raises(ValueError, match="hit_drop"):
        end_state(run, hit_drop=10)


@settings(max_examples=30, deadline=None)
@given(st.floats(0, 0.95), st.floats(0, 0.95), st.floats(0.05, 0.5), st.floats(0.05, 0.5))
def test_a_larger_threshold_never_makes_a_trap_of_an_overload(hit_1, hit_2, one, other):
    run, (small, large) = course(ttft_s=(60, 60), hit=(hit_1, hit_2)), sorted((one, other))
    if end_state(run, hit_drop=large) is EndState.TRAPPED:
        assert end_state(run, hit_drop=small) is EndState.TRAPPED
    assert end_state(run, hit_drop=small) in (EndState.TRAPPED, EndState.OVERLOADED)


def test_windows_must_end_35_minutes_after_the_trigger():
    last_possible = END_S - 1200 - 35 * 60
    assert end_state(course(ttft_s=(60, 60), trigger={"start_s": 900, "end_s": last_possible})) is EndState.TRAPPED
    with pytest.raises(ValueError, match="asks for"):
        end_state(course(trigger={"start_s": 900, "end_s": last_possible + 1}))


def test_a_run_without_trigger_counts_from_minute_15():
    assert end_state(course(ttft_s=(60, 60), trigger=None)) is EndState.TRAPPED
