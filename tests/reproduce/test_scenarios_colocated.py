"""Paper B's experiments as scenarios: what their arms share, and which seeds run."""

import pytest
from test_evaluate_colocated import run, seeds

from artifact.baselines.registry import POLICIES
from artifact.reproduce import runs_colocated, scenarios_colocated
from artifact.reproduce.claims import load_claims
from artifact.reproduce.registry import evaluators
from artifact.reproduce.runs_colocated import arms_of, colocated_runs, fitted_claims, seeds_of, uncontrolled
from artifact.reproduce.scenarios_colocated import (
    CONTROL_S,
    CONTROLLERS,
    controller,
    experiments,
)


@pytest.fixture
def ran(monkeypatch):
    """Instead of the simulator: seeds 0 and 2 of every run are collapsed from minute 14 on."""
    asked = []

    def instead(arms, workers, scheduler, label):
        asked.append({name: [scenario.seed for scenario in scenarios] for name, scenarios in arms.items()})
        fate = {seed: run(60, bad=range(14, 60) if seed in (0, 2) else ()) for seed in range(16)}
        every = seeds(*fate.values())
        return {name: [every[scenario.seed] for scenario in scenarios] for name, scenarios in arms.items()}

    monkeypatch.setattr(runs_colocated, "run_arms", instead)
    return asked


def test_every_claim_of_paper_b_has_an_evaluator_and_every_arm_a_use():
    claims = [claim.id for claim in load_claims().values() if claim.group == "colocated"]
    used = {arm for claim_id in claims for arm in evaluators()[claim_id].arms}
    assert len(claims) == 69 and used == set(experiments()) - {"light/none"}


def test_arms_of_an_experiment_share_their_base_arrivals_up_to_the_trigger():
    for name in ("pairs/burst", "nocache/burst", "offload/burst", "sglang/burst"):
        burst, none = (experiments()[arm].make(3) for arm in (name, uncontrolled(name)))
        assert burst.load.model_copy(update={"surges": ()}) == none.load and burst.deployment == none.deployment
    added = experiments()["nocache/burst"].make(0).load
    assert (added.surges[0].factor - 1) * added.rate_per_min / 60 * 300 == pytest.approx(16)
    assert experiments()["cap/burst"].make(1).load == experiments()["pairs/burst"].make(1).load


def test_a_late_controller_is_the_uncontrolled_run_until_then():
    for name in (n for n, arm in experiments().items() if arm.collapsed_s and n != "32b03/cap"):
        late, free = experiments()[name].make(5), experiments()[uncontrolled(name)].make(5)
        assert late.policy.from_s > 0 and late.model_copy(update={"policy": free.policy}) == free, name


def test_published_settings():
    drain = experiments()["drain/0.010"].make(0).load
    assert drain.rate_per_min * drain.rate_change.factor / 60 == pytest.approx(0.010)
    budgeter = controller("low", CONTROL_S)
    assert budgeter.parameters == {"admit": 0.65, "park": 0.85, "output_tokens": 300} and budgeter.from_s == 1200
    assert CONTROLLERS["cap"] == ("session-cap", {"admit": 14, "park": 17})
    assert {name for name, _ in CONTROLLERS.values()} <= set(POLICIES)
    assert experiments()["mix/none"].make(0).load.shift.at_s == 1800
    assert experiments()["offload/none"].make(0).deployment.host_ratio * 400_000 == pytest.approx(900_000)


def test_seeds_of_a_profile():
    assert [len(seeds_of("pairs/none", profile)) for profile in ("smoke", "quick", "full")] == [1, 4, 12]
    assert [len(seeds_of("recovery/none", profile)) for profile in ("smoke", "quick", "full")] == [5, 5, 16]
    assert seeds_of("sglang/five", "quick") == [0, 1] and seeds_of("drain/0.006", "quick") == [0]


def test_controlled_arms_run_the_collapsed_seeds_only(ran):
    found = colocated_runs(["recovery/budgeter", "recovery/none", "pairs/none"], "sim", "quick")
    assert ran[0] == {"recovery/none": [0, 1, 2, 3, 4], "pairs/none": [0, 1, 2, 3]}
    assert ran[1] == {"recovery/budgeter": [0, 2]}
    assert list(found) == ["pairs/none", "recovery/none", "recovery/budgeter"]
    colocated_runs(["recovery/cap"], "sim", "quick", seeds=[2, 9])
    assert ran[2:] == [{"recovery/none": [2, 9]}, {"recovery/cap": [2]}]


def test_bad_requests_say_what_is_wrong(tmp_path):
    with pytest.raises(ValueError, match="no arm or experiment pairs/nothing; there are pairs/none"):
        colocated_runs(["pairs/nothing"], "sim", "quick")
    with pytest.raises(ValueError, match="none of sim, hw"):
        colocated_runs(["pairs/none"], "tape", "quick")
    assert colocated_runs(["pairs/none"], "hw", "quick") == {"pairs/none": []}


def test_the_cap_of_a_lighter_load_comes_from_its_sessions(monkeypatch):
    """One session's turns have 100 tokens, so its demand is 1,124 of the pool's 1,000,000: K = 0.75 M / 1,124."""
    from dataclasses import replace

    one = run(40)
    big = replace(one, meta=one.meta | {"capacity": one.meta["capacity"] | {"prefill_cache_tokens": 10**6}})
    monkeypatch.setattr(scenarios_colocated, "run_arms", lambda *_, **__: {"light/none": [big]})
    scenarios_colocated.light_cap.cache_clear()
    try:
        policy = experiments()["32b03/cap"].make(0).policy
    finally:
        scenarios_colocated.light_cap.cache_clear()
    assert policy.parameters == {"admit": 667, "park": 844} and policy.from_s == 1500


def test_arms_by_experiment_or_in_full():
    assert arms_of("sglang/five", "pairs") == ["pairs/none", "pairs/burst", "sglang/five"]
    assert "B-wl-shapes" in fitted_claims()
