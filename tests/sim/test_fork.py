"""Branches of a run share its history, byte for byte, and go on as if they had run alone."""

import pytest

from artifact.control.profile import DeploymentProfile
from artifact.records.schema import TABLES, Records
from artifact.workload.load import Load, RateChange, Surge
from sim import policies
from sim.run import Simulation, run
from sim.scenario import Deployment, PolicyChoice, Scenario

BRANCH_S = 600.0
LOAD = Load(rate_per_min=3, duration_s=900, surges=(Surge(start_s=120, end_s=600, factor=5),))


@pytest.fixture(autouse=True)
def _no_ramp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "_profile", lambda scenario: DeploymentProfile())


def scenario(policy: str) -> Scenario:
    return Scenario(deployment=Deployment(calibration="h100"), load=LOAD, policy=PolicyChoice(name=policy))


def at_branch(policy: str) -> Simulation:
    simulation = Simulation(scenario(policy))
    simulation.advance(BRANCH_S)
    return simulation


def assert_same(one: Records, other: Records) -> None:
    for name in TABLES:
        assert getattr(one, name).equals(getattr(other, name)), name
    assert one.meta == other.meta


@pytest.mark.parametrize("policy", ["hicache", "composition", "basin"])
def test_an_unchanged_branch_ends_as_the_run_itself(policy: str) -> None:
    simulation = at_branch(policy)
    branch = simulation.fork()
    assert_same(branch.finish(), run(scenario(policy)))
    assert_same(simulation.finish(), branch.finish())


@pytest.mark.parametrize("factor", [0.0, 0.4, 2.0])
def test_changed_arrivals_give_what_a_run_with_that_change_gives(factor: float) -> None:
    changed = LOAD.model_copy(update={"rate_change": RateChange(at_s=BRANCH_S, factor=factor)})
    branch = at_branch("continuum").fork()
    branch.change_load(changed)
    assert_same(branch.finish(), run(scenario("continuum").model_copy(update={"load": changed})))


def test_siblings_do_not_touch_each_other() -> None:
    simulation = at_branch("basin")
    untouched, ended = simulation.fork(), simulation.fork()
    for session in [s for s in ended.driver.sessions.values() if s.active]:
        ended.driver.end(session)
    ended.finish()
    assert_same(untouched.finish(), run(scenario("basin")))


def test_a_changed_policy_is_one_that_takes_over_then() -> None:
    branch = at_branch("hicache").fork()
    branch.change_policy(PolicyChoice(name="concur"))
    late = scenario("concur").model_copy(update={"policy": PolicyChoice(name="concur", from_s=BRANCH_S)})
    assert_same(branch.finish(), run(late))


def test_a_load_with_another_past_is_refused() -> None:
    branch = at_branch("hicache").fork()
    with pytest.raises(ValueError, match="the loads differ before that"):
        branch.change_load(LOAD.model_copy(update={"surges": ()}))
