"""The lent tier by hand: a unit of 100 tokens on an engine of round numbers."""

from dataclasses import replace

import pytest
from engine_rig import COSTS, Rig, call, session
from hypothesis import given, settings
from hypothesis import strategies as st

from artifact.control.parameters import BasinParameters
from artifact.control.profile import DeploymentProfile
from artifact.metrics import column
from artifact.workload.load import Load, Surge
from sim import policies
from sim.engine.call import EngineCall
from sim.run import Simulation
from sim.scenario import Deployment, PolicyChoice, Scenario


def lending(**costs: float) -> Rig:
    """An engine that lends; a link moves 64 tokens a second."""
    rig = Rig(costs=replace(COSTS, **({"link_token_s": 1 / 64} | costs)))  # type: ignore[arg-type]
    rig.engine.lent.adopting = True
    return rig


def forget_in_prefill(rig: Rig, key: str) -> None:
    """As if its line had been evicted."""
    while key in rig.prefill.cache.lines:
        rig.prefill.cache._evict(key, 10**6)


def test_a_finished_prompt_stays_until_its_session_ends() -> None:
    rig = lending()
    a = session("a", 100, output=3)
    rig.submit(EngineCall(a, 0, 0.0))
    rig.run()
    assert rig.decode.lent == 100, "the prompt, not what it generated"
    rig.engine.forget(a)
    assert (rig.decode.lent, rig.engine.lent.units) == (0, {})


def test_without_lending_nothing_stays() -> None:
    rig = Rig()
    rig.submit(call("a", 100, output=3))
    rig.run()
    assert rig.decode.lent == 0


@pytest.mark.parametrize(("link", "step_s"), [(1 / 32, 3.125), (1 / 640, 2.216796875)])
def test_prefill_fetches_what_it_lacks_beside_its_compute(link: float, step_s: float) -> None:
    """128 tokens, 100 in the unit: 100 over the link, or 1 s + 28 tokens at 1/64 s + 28 x 114 positions at 1/4096 s."""
    rig = lending(link_token_s=link)
    a = session("a", 100, 128)
    rig.submit(EngineCall(a, 0, 0.0))
    rig.run()
    forget_in_prefill(rig, "a")
    begun = rig.env.now
    second = rig.submit(EngineCall(a, 1, begun))
    rig.run()
    assert (second.cached, second.cached_lent, second.cached_host) == (100, 100, 0)
    assert rig.first_token["a"] - begun == pytest.approx(step_s + COSTS.transfer_s)
    assert rig.decode.lent == 128, "the latest unit replaces the one before"


def test_no_fetch_when_prefill_still_covers_as_much() -> None:
    rig = lending()
    a = session("a", 100, 128)
    rig.submit(EngineCall(a, 0, 0.0))
    rig.run()
    second = rig.submit(EngineCall(a, 1, rig.env.now))
    rig.run()
    assert (second.cached, second.cached_lent) == (100, 0)


@pytest.mark.parametrize(("hybrid", "lent"), [(False, 60), (True, 0)])
def test_a_hybrid_unit_is_usable_whole_or_not_at_all(hybrid: bool, lent: int) -> None:
    """The second prompt repeats 60 of the unit's 100 tokens."""
    rig = lending(hybrid=hybrid)
    a = session("a", 100, 90, new=(100, 30))
    rig.submit(EngineCall(a, 0, 0.0))
    rig.run()
    forget_in_prefill(rig, "a")
    second = rig.submit(EngineCall(a, 1, rig.env.now))
    rig.run()
    assert second.cached_lent == lent


def test_the_cap_holds_and_units_that_prefill_also_has_go_first() -> None:
    """φ = 0.5 of 1,000 tokens: four units of 120 fit; the fifth takes the place of the oldest that prefill holds."""
    rig = lending()
    for name in "abcd":
        rig.submit(call(name, 120))
        rig.run()
    assert (rig.decode.lent, set(rig.engine.lent.units)) == (480, set("abcd"))
    forget_in_prefill(rig, "a")
    rig.submit(call("e", 120))
    rig.run()
    assert set(rig.engine.lent.units) == set("acde"), "b is the least recently used of those held twice"
    assert rig.decode.lent == 480


def test_nothing_is_adopted_without_headroom() -> None:
    """A request of 500 tokens grows by 4 a second from second 47 on; a tenth of the memory is to stay free.

    A unit of 120 fits beside its 540 tokens in second 56, but not beside 790 in second 123.
    """
    rig = lending()
    rig.submit(call("long", 500, output=400))
    rig.submit(call("a", 120), 50.0)
    rig.run(until=60.0)
    assert set(rig.engine.lent.units) == {"a"}
    rig.submit(call("b", 120), 117.0)
    rig.run(until=130.0)
    assert rig.finished.keys() == {"a", "b"}
    assert not rig.engine.lent.units, "a made way for the reservation of b, which found no headroom itself"


def test_units_make_way_for_a_reservation_and_for_growth_before_anybody_is_retracted() -> None:
    rig = lending()
    for name in "abcd":
        rig.submit(call(name, 120))
        rig.run()
    big = rig.submit(call("big", 700, output=250))
    rig.run(until=rig.env.now + 0.1)
    assert big.reserve_wait == 0.0
    assert rig.decode.lent <= 300
    rig.run()
    assert rig.decode.retractions == 0
    assert "big" in rig.finished


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 1000), cap=st.sampled_from([0.1, 0.3, 0.5]), headroom=st.sampled_from([0.05, 0.2]))
def test_lent_tokens_stay_within_the_cap_and_end_with_the_sessions(seed: int, cap: float, headroom: float) -> None:
    """Real sessions, lending from the start; after arrivals end every unit's session leaves, and its unit with it."""
    choice = PolicyChoice(name="basin", parameters={"lend_cap": cap, "lending_headroom": headroom})
    load = Load(rate_per_min=3, duration_s=600, warm_sessions=20, surges=(Surge(start_s=60, end_s=300, factor=8),))
    scenario = Scenario(deployment=Deployment(calibration="h100"), load=load, policy=choice, seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policies, "_profile", lambda scenario: DeploymentProfile())
        simulation = Simulation(scenario)
    engine = simulation.engine
    assert engine.lent.rules == BasinParameters(lend_cap=cap, lending_headroom=headroom)
    simulation.driver.policy.lending = lambda: True  # type: ignore[method-assign]
    records = simulation.finish()
    lent = column(records.samples, "lent_tokens")
    assert 0 < lent.max() <= cap * engine.capacities.decode_kv_tokens
    assert sum(unit.tokens for unit in engine.lent.units.values()) == lent_now(simulation)
    while live := [s for s in simulation.driver.sessions.values() if s.active]:
        for one in live:  # as they leave, parked ones enter
            simulation.driver.end(one)
    assert lent_now(simulation) == 0


def lent_now(simulation: Simulation) -> int:
    return sum(decode.lent for decode in simulation.engine.decodes)
