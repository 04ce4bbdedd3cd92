"""The comparisons of systems: their scenarios, and their evaluators against runs whose every figure is known."""

from dataclasses import replace

import numpy as np
import pytest
from handmade import call, records, sample, session

from artifact.reproduce.compare import by_arrival, good, table
from artifact.reproduce.evaluate.hardware_prototype import drained_min, hicache_collapse
from artifact.reproduce.figures import SYSTEMS
from artifact.reproduce.findings_policies import outputs_findings, six_findings
from artifact.reproduce.registry import evaluate, evaluators
from artifact.reproduce.scenarios_policies import (
    BASELINES,
    HARDWARE,
    OUTPUTS3,
    POLICIES,
    SIX,
    SIZES,
    SIZES_POLICIES,
    arm,
    compared,
    load,
)

MINUTES = 120
SURGE = {"start_s": 900.0, "end_s": 2100.0}


def run(good_per_10=10, lasts_s=200.0, waiting_until=0, wait_s=900.0, collapsed_from=MINUTES, slow_steps=0, seed=0):
    """A session (100 s unloaded) and a call a minute. `good_per_10` of ten sessions last `lasts_s`, the others never
    end; arrivals before minute `waiting_until` wait `wait_s` for their first call; from minute `collapsed_from` on the
    hit rate is 0.2 instead of 0.9 and TTFT 60 s instead of 1 s."""
    sessions, calls = [], []
    for minute in range(MINUTES):
        t, bad = 60.0 * minute, minute >= collapsed_from
        wait = wait_s if minute < waiting_until else 0.0
        sessions.append(
            session(
                str(minute),
                t,
                lasts_s if minute % 10 < good_per_10 else None,
                admitted_s=t + wait,
                started_s=t + wait,
                slow_steps=slow_steps,
            )
        )
        calls.append(call(t, 60.0 if bad else 1.0, cached_tokens=20 if bad else 90))
    samples = [sample(60.0 * minute) for minute in range(MINUTES + 1)]
    return records(calls, sessions, samples, 60.0 * MINUTES, trigger=SURGE, seed=seed)


BEST, HALF, TRAPPED = run(), run(good_per_10=5), run(good_per_10=2, collapsed_from=20)


def arms(settings, ours="basin", **others):
    """Every baseline as HALF but for `others`, and ours BEST unless it is among them."""
    given = {policy: others.get(policy, HALF) for policy in BASELINES}
    given[ours] = others.get(ours, BEST)
    return {arm(setting, policy): [one] for setting in settings for policy, one in given.items()}


def value(claim_id, runs):
    return evaluate(evaluators()[claim_id], runs).obtained


def test_the_systems_are_those_of_every_figure():
    assert tuple(name.lower() for name in SYSTEMS) == POLICIES


def test_goodput_is_that_of_the_first_90_minutes_arrivals():
    assert good(BEST) == 60.0 and good(HALF) == 30.0 and good(TRAPPED) == 12.0
    assert good(run(lasts_s=401.0)) == 0.0 and good(run(slow_steps=6)) == 0.0


@pytest.mark.parametrize(
    ("claim_id", "expected"),
    [
        ("A-sim-default", 2.0),
        ("A-sim-tools3", 2.0),
        ("A-sim-gpu", 2.0),
        ("A-sim-hicache", [5.0] * 3),
        ("A-sim-slow-default", {"hicache": 2.0, "basin": 2.0}),
        ("A-sim-slow-gpu", {"hicache": 2.0, "basin": 2.0}),
        ("A-sim-1p1d", [2.0] * 3),
        ("A-sim-1p1d-done", 1.0),
        ("A-sim-best", [2.0] * 6),
        ("A-sim-worst", False),  # 0.5 lies within 0.1 of 0.49, but see below for 0.6
        ("A-sim-worst-each", dict.fromkeys(BASELINES, 0.5) | {"hicache": 0.2}),
        ("A-sim-slow-best", True),
        ("A-sim-itl", [0.0] * 6),
        ("A-concur-signal", {"default": 0.5, "gpu": 0.5}),
        ("A-cross-1p1d", [0.5] * 3),
    ],
)
def test_claims_of_figure_14(claim_id, expected):
    runs = arms(SIX, hicache=TRAPPED)
    if claim_id == "A-sim-worst":
        assert value(claim_id, runs) is True
        runs |= {arm(setting, "concur"): [run(good_per_10=6)] for setting in SIX}
    found = value(claim_id, runs)
    assert found == (pytest.approx(expected) if not isinstance(expected, bool) else expected)


def test_basin_must_be_best_in_all_six():
    runs = arms(SIX) | {arm("1p1d", "basin"): [HALF]}
    assert value("A-sim-worst", runs) is False
    assert value("A-sim-best", runs)[3] == pytest.approx(1.0)


def test_a_ratio_over_nothing_is_infinite_and_a_table_shows_every_run():
    runs = arms(SIX, hicache=run(good_per_10=0))
    assert value("A-sim-hicache", runs) == [np.inf] * 3
    found = table(runs)
    assert len(found) == 42 and set(found.loc[found["policy"] == "basin", "state"]) == {"healthy"}


def test_waits_of_figure_14_and_16():
    runs = arms(SIX, composition=run(waiting_until=90, wait_s=1000.0), basin=run(waiting_until=90, wait_s=500.0))
    assert value("A-sim-1p1d-wait", runs) == pytest.approx(0.5)
    sizes = arms(SIZES, thunderagent=run(waiting_until=90, wait_s=2400.0), composition=run(waiting_until=60))
    assert value("A-size-wait", sizes) == pytest.approx([40.0, 0.0] * 4)


def test_claims_of_figure_16():
    runs = arms(SIZES, hicache=TRAPPED, crossflow=TRAPPED)
    assert value("A-size-hicache", runs) == pytest.approx([5.0] * 8)
    assert value("A-size-best", runs) == pytest.approx([2.0] * 8)
    assert value("A-size-hicache-done", runs) == pytest.approx([0.2] * 8)
    assert value("A-size-done", runs) == [1.0] * 8 and value("A-size-shed", runs) == [0.0] * 8
    assert value("A-size-state", runs) is True
    assert value("A-size-state", arms(SIZES)) is False  # Crossflow healthy


def test_claims_of_figure_15():
    runs = arms(OUTPUTS3, crossflow=TRAPPED)
    assert value("A-sim-out3", runs) == {"basin": 60.0, "hicache": 30.0, "continuum": 30.0}
    assert value("A-sim-out3-parity", runs) == {"hicache": 2.0, "continuum": 2.0}
    assert value("A-sim-out3-wait", runs) == 0.0


@pytest.mark.parametrize(
    ("claim_id", "expected"),
    [
        ("A-hw-basin-cont", [2.0] * 4),
        ("A-hw-basin-hicache", [5.0] * 4),
        ("A-hw-tb-cont", [2.0] * 3),
        ("A-fid-ratio", [2.0] * 3),
        ("A-hw-hicache-trap", ["trapped"] * 4),
        ("A-hw-hicache-done", [0.2] * 4),
        ("A-hw-hicache-hit", [0.2] * 3),
        ("A-hw-hicache-speed", 5.0),
        ("A-hw-crossflow", [0.5] * 4),
        ("A-hw-cont-hit", [0.0] * 3),
        ("A-hw-cont-state", True),
        ("A-hw-swe", {"basin": 60.0, "continuum": 30.0, "concur": 30.0}),
        ("A-hw-swe-trap", ["healthy"] * 2),
        ("A-hw-h100-gain", {"continuum": 2.0, "composition": 2.0}),
        ("A-hw-concur-hit", 0.9),
        ("A-hw-gap-gpu", False),  # the same everywhere: the first
        ("A-hw-drain", 35.0),
    ],
)
def test_claims_of_the_prototype(claim_id, expected):
    found = value(claim_id, arms(HARDWARE, "basin-prior", hicache=TRAPPED))
    plain = isinstance(expected, bool) or (isinstance(expected, list) and isinstance(expected[0], str))
    assert found == (expected if plain else pytest.approx(expected))


def test_waits_of_the_prototype_and_its_rivals():
    runs = arms(HARDWARE, "basin-prior", thunderagent=run(waiting_until=90, wait_s=1800.0), composition=HALF)
    assert value("A-hw-ta-wait", runs) == pytest.approx([30.0, 0.0] * 3)


def test_drained_is_the_first_bin_from_which_nobody_waits_long():
    assert drained_min(run(waiting_until=72)) == 70.0  # minutes 70 and 71 wait, most of their bin does not
    assert drained_min(run(waiting_until=73, wait_s=11.0)) == 75.0
    assert drained_min(run(waiting_until=73, wait_s=9.0)) == 35.0
    assert drained_min(run(waiting_until=MINUTES)) == np.inf
    assert hicache_collapse(BEST) == np.inf


def test_bins_are_by_arrival():
    bins = by_arrival(run(waiting_until=10, wait_s=60.0, collapsed_from=5))
    assert list(bins["wait_p50_s"][:3]) == [60.0, 60.0, 0.0]
    assert list(bins["hit_rate"][:2]) == pytest.approx([0.9, 0.2])


def test_words_name_the_best_of_the_others_and_who_is_trapped():
    words = six_findings(arms(SIX, hicache=TRAPPED, concur=run(good_per_10=8)) | {arm("1p3d", "basin"): [TRAPPED]})
    assert "best of the others `concur` 48" in words and "1.25 times" in words
    assert "Trapped: `hicache` 1 of 1, `basin` 1 of 1." in words and "Trapped: `hicache` 1 of 1." in words
    assert "**`basin` is beaten in 1 of 6**: 1p3d (0.25)." in words
    assert "**Nothing beats `basin` in any of these 1**: 2.00 to 2.00 times" in outputs_findings(arms(OUTPUTS3))


def test_words_give_the_base_load_beside_the_published_one():
    one = replace(BEST, meta=BEST.meta | {"scenario": {"load": {"rate_per_min": 2.5}}})
    words = outputs_findings(arms(OUTPUTS3) | {arm("out3", "basin"): [one]})
    assert "from 2.5 sessions/min (published: 4.95)" in words


def test_all_systems_of_a_setting_see_the_same_arrivals_at_the_published_surge():
    found = compared(SIX, POLICIES, (0, 1), [7.0, 7.0, 6.0, 2.0, 2.0, 2.0])
    assert len(found) == 42 and all(len(scenarios) == 2 for scenarios in found.values())
    offered = {scenario.load for policy in POLICIES for scenario in found[arm("1p3d-tools3", policy)]}
    (tools3,) = offered
    assert (tools3.rate_per_min, tools3.duration_s, tools3.tool_time_scale) == (7.0, 9000.0, 3.0)
    assert [(s.start_s, s.end_s, s.factor) for s in tools3.surges] == [(900.0, 2100.0, 5.0)]
    assert load(SIX["1p1d"], 2.0).duration_s == 7200.0
    assert found["1p3d/basin"][0].policy.name == "basin" and found["1p3d/basin"][0].deployment.host_ratio == 2


def test_the_surges_of_figure_16_start_from_their_share_and_leave_concur_out():
    assert [s.factor for s in SIZES.values()] == [3, 4, 5, 6] * 2
    assert {s.share for n, s in SIZES.items() if "tools3" in n} == {0.66} and "concur" not in SIZES_POLICIES
