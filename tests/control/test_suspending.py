"""Basin with suspension, driven by hand: 1,000 cache tokens, every peak 300: B0 = 1,000 holds three residents."""

from dataclasses import replace

import pytest

from artifact.control.capacity import Capacities
from artifact.control.parameters import BasinParameters
from artifact.control.policy import Action, Decision, SessionFacts, Signals
from artifact.control.profile import DeploymentProfile
from artifact.control.suspending import SuspendingBasin

PROFILE = DeploymentProfile(kappa=1.0, critical_rate_per_min=6.0, plateau=0.95, floor=0.25)
COLLAPSED = Signals(hit_rate=0.2, prefill_queue=20, decode_waiting=0, decode_kv_used_tokens=900, lent_tokens=0)
NAMES = ("a", "b", "c", "d", "e")
CONTEXT = 200


def policy(hit_rate: float = 0.2, residents: int = 5) -> SuspendingBasin:
    """Residents a to e, in this order of arrival and so of priority, on an engine with this hit rate."""
    capacities = Capacities(prefill_cache_tokens=1000, decode_kv_tokens=2000)
    made = SuspendingBasin(lambda session: 300.0, PROFILE, capacities, BasinParameters(budget_range=(1.0, 1.0)))
    for i, name in enumerate(NAMES[:residents]):
        made.adopt(SessionFacts(name, float(i), 50), CONTEXT, 100.0)
    made.observe(replace(COLLAPSED, hit_rate=hit_rate), 100.0)
    return made


def drain(made: SuspendingBasin, now: float) -> list[Decision]:
    return list(iter(lambda: made.next(now), None))


def test_residents_beyond_the_budget_stand_aside_in_priority_order() -> None:
    """Five reserve 1,500 of a budget of 1,000: d and e are beyond it wherever they reach a boundary first."""
    made = policy()
    assert [name for name in "edcba" if not made.turn(name, CONTEXT, 101.0)] == ["e", "d"]
    state = made.state()
    assert (state.resident, state.suspended, state.parked) == (3, 2, 0)
    assert state.working_set_tokens == 3 * CONTEXT
    assert drain(made, 101.0) == [], "900 of 1,000 are reserved"


def test_who_is_first_in_line_comes_back_first_and_before_new_sessions() -> None:
    made = policy()
    for name in "ed":
        made.turn(name, 250, 101.0)
    made.arrive(SessionFacts("new", 102.0, 50), 102.0)
    made.depart("a", 103.0)
    assert drain(made, 103.0) == [Decision(Action.RESUME, "d")]
    made.depart("b", 104.0)
    assert drain(made, 104.0) == [Decision(Action.RESUME, "e")]
    made.depart("c", 105.0)
    assert drain(made, 105.0) == [Decision(Action.ADMIT, "new")]
    assert made.state().suspended == 0


@pytest.mark.parametrize(("hit_rate", "suspends"), [(0.84, True), (0.86, False), (0.95, False)])
def test_only_a_collapsed_hit_rate_suspends(hit_rate: float, suspends: bool) -> None:
    """Two slacks of 0.05 below the plateau of 0.95 are 0.85."""
    assert policy(hit_rate).turn("e", CONTEXT, 101.0) is not suspends


def test_nobody_is_suspended_within_the_budget_or_before_admission_engages() -> None:
    """Three residents hold 600 tokens, less than B0; admission is off whatever the hit rate."""
    made = policy(residents=3)
    assert not made.state().admitting
    assert all(made.turn(name, CONTEXT, 101.0) for name in "abc")


def test_a_suspended_session_may_be_abandoned() -> None:
    made = policy()
    made.turn("e", CONTEXT, 101.0)
    made.depart("e", 102.0)
    for name in "abcd":
        made.depart(name, 103.0)
    assert drain(made, 103.0) == []
    assert (made.state().resident, made.state().suspended, made.state().parked) == (0, 0, 0)


def test_shedding_spares_those_who_were_inside() -> None:
    """A session a second against a critical rate of one in ten, and a head that has waited for half an hour."""
    made = policy()
    made.turn("e", CONTEXT, 101.0)
    for second in range(101, 2000):
        made._arrivals.arrived(float(second))
    made.observe(COLLAPSED, 2000.0)
    assert made.next(2000.0) is None, "only e waits"
    made.arrive(SessionFacts("new", 2001.0, 50), 2001.0)
    made.observe(COLLAPSED, 2040.0)
    assert made.next(2040.0) == Decision(Action.SHED, "new")


def test_explain_says_that_it_stands_aside() -> None:
    made = policy()
    made.turn("e", CONTEXT, 101.0)
    assert made.explain("e").startswith("stands aside at a turn boundary")
