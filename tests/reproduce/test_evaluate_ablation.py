"""Figures 21 to 24 and Table 1: scenarios, evaluators, pictures and words on runs by hand."""

import matplotlib
import numpy as np
import pytest
from handmade import records, sample, session
from summaries import everywhere, summary

from artifact.control.parameters import BasinParameters
from artifact.reproduce.evaluate.policy_recovery import drained_after_min
from artifact.reproduce.evaluate.sensitivity import REST
from artifact.reproduce.findings_ablation import (
    ablation_findings,
    after_findings,
    sensitivity_findings,
    switch_findings,
)
from artifact.reproduce.mechanisms import engaged, principles, table_1, table_1_figure
from artifact.reproduce.plots.ablation import engaged as engaged_minutes
from artifact.reproduce.plots.ablation import figure_21, figure_22, figure_23, figure_24
from artifact.reproduce.registry import evaluate, evaluators
from artifact.reproduce.scenarios_ablation import (
    AFTER_POLICIES,
    AFTER_SURGES,
    AFTER_TIERS,
    FIVE,
    PARAMETERS,
    SENSITIVE,
    SHARES,
    SWITCHED_POLICIES,
    ablation_cells,
    after,
    after_runs,
    sensitivity_cells,
)
from artifact.reproduce.scenarios_policies import load, scenario

matplotlib.use("Agg")
SURGE = {"start_s": 900.0, "end_s": 2100.0}


@pytest.fixture(autouse=True)
def _closed():
    yield
    matplotlib.pyplot.close("all")


def value(claim_id, runs):
    return evaluate(evaluators()[claim_id], runs).obtained


# What is run ---------------------------------------------------------------------------------------------------------

AFTER = [
    f"{after(tier, surge, share)}/{policy}"
    for tier in AFTER_TIERS
    for surge in AFTER_SURGES
    for share in SHARES
    for policy in AFTER_POLICIES[tier]
]


def test_every_claim_finds_its_arms_at_the_full_profile():
    there = {"late/basin", "late/hicache", "late/continuum", "late/composition", *AFTER}
    there |= {*ablation_cells("full"), *sensitivity_cells("full")}
    ours = ("ablation", "sensitivity", "policy_recovery")
    found = [e for e in evaluators().values() if e.function.__module__.rsplit(".", 1)[-1] in ours]
    assert len(found) == 36
    assert {e.claim.id: set(e.arms) - there for e in found if set(e.arms) - there} == {}


def test_204_pairs_and_the_parameters_that_are_not_the_papers():
    assert len(PARAMETERS) * len(SENSITIVE) == 204 and len(SENSITIVE) == 6
    assert all(len(variant.parameters) == 1 for variant in PARAMETERS.values())
    assert PARAMETERS["budget_range:high"].parameters == {"budget_range": (0.25, 4.0)}
    fields = {name.split(":")[0] for name in REST}
    assert len(fields) == 9 and not fields & {"margin", "interval_s", "lend_cap", "priority_tokens_per_s"}


@pytest.mark.parametrize("plan", [ablation_cells, sensitivity_cells])
def test_a_smaller_profile_runs_a_part_of_the_larger(plan):
    smoke, quick, full = (plan(profile) for profile in ("smoke", "quick", "full"))
    assert smoke and set(smoke) <= set(quick) <= set(full)


def test_late_ones_are_late_under_every_variant_and_last_until_drained():
    found = ablation_cells("full") | sensitivity_cells("full")
    late = {name: cell for name, cell in found.items() if "late/" in name}
    assert len(late) == 2 * 6 + 34 + 4 and {cell.variant.from_min for cell in late.values()} == {45.0}
    assert {cell.setting.duration_s for cell in late.values()} == {180 * 60}
    assert {cell.variant.from_min for name, cell in found.items() if name not in late} == {0.0}


def test_overload_lasts_an_hour_well_above_the_critical_rate():
    cell = ablation_cells("full")["overload/basin"]
    one = scenario(*cell, 8.0, 0)  # half of a critical rate of 16
    (surge,) = one.load.surges
    assert (surge.start_s, surge.end_s, surge.factor * 8.0) == (900.0, 4500.0, pytest.approx(2 * 16))
    assert load(SENSITIVE["1p1d-x4"], 2.0).surges[0].factor == 4


# Figure 21 -----------------------------------------------------------------------------------------------------------


def timed(few_from_min, minutes=180, done=100, ordering_from=None, **meta):
    """A sample a minute: 100 sessions present, 20 of them parked, before minute `few_from_min`, 60 from then on."""
    samples = [
        sample(
            60.0 * m,
            active_sessions=80 if m < few_from_min else 55,
            parked_sessions=20 if m < few_from_min else 5,
            working_set_tokens=1500 if m >= 20 else 500,
            reference_budget_tokens=1000.0,
            ordering=ordering_from is not None and m >= ordering_from,
            lending=False,
            admitting=False,
            computed_tokens_total=0,
        )
        for m in range(minutes + 1)
    ]
    sessions = [session(str(i), 60.0 * i, 200.0 if i < done else None) for i in range(90)]
    sessions += [session("shed", 10.0, None, outcome="shed", started_s=None, admitted_s=None)]
    return records([], sessions, samples, 60.0 * minutes, trigger=SURGE, **meta)


def test_drained_counts_from_the_switch_and_parked_ones_too():
    assert drained_after_min(timed(150)) == 105.0
    assert drained_after_min(timed(10)) == 0.0
    assert drained_after_min(timed(500)) == np.inf


def test_claims_of_figure_21():
    policies = ("basin", "continuum", "composition", "hicache")
    runs = {f"late/{p}": [timed(150), timed(160, seed=1)] for p in policies}
    runs["late/hicache"] = [timed(500, done=30)] * 2
    assert value("A-late-drain", runs) == [105.0, 115.0]
    assert value("A-late", runs)["basin"] == 60.0 and value("A-late", runs)["hicache"] == 20.0
    assert value("A-late-done", runs) == {"basin": pytest.approx(90 / 91), "hicache": pytest.approx(30 / 91)}


def test_figure_21_shows_parked_sessions_and_when_basin_acts():
    runs = {f"{s}/{p}": [timed(150, ordering_from=60)] for s in ("1p3d", "late") for p in SWITCHED_POLICIES}
    fig, data = figure_21(runs)
    basin = data[(data["panel"] == "late") & (data["policy"] == "basin")].set_index("minute")["median"]
    assert basin.loc[101.0] == 100.0 and basin.loc[159.0] == 60.0
    on = engaged_minutes(runs["late/basin"], "ordering")
    assert not on[:60].any() and on[60:].all() and not engaged_minutes(runs["late/basin"], "lending").any()
    assert len(fig.axes) == 2
    words = switch_findings(runs)
    assert "- `basin`: 60 sessions/h, 0.989 completed, at most 60 sessions present after 105 min" in words


# Figure 22 -----------------------------------------------------------------------------------------------------------


def test_claims_of_figure_22():
    runs = everywhere(
        AFTER,
        thunderagent={"wait_p90_s": 300.0, "goodput": 80.0},
        basin_priority_only={"goodput": 60.0},
        continuum={"wait_p90_s": 1500.0},
    )
    runs["host-x6-0.9/basin"] = [summary(150.0)]
    assert value("A-postsurge-wait", runs) == {"thunderagent": [300.0] * 3, "basin": [10.0] * 5}
    assert value("A-postsurge-cont-wait", runs) == [1500.0] * 5
    found = value("A-postsurge-cont", runs)
    assert found["plus300"] == [2.0] * 10 and found["x6_gpu"] == [2.0] * 5
    assert found["x6_host"] == [2.0] * 4 + [3.0] and found["x6"] == [2.0] * 9 + [3.0]
    assert value("A-postsurge-ta", runs) == [1.25] * 9 + [1.875]
    assert value("A-prio-only", runs) == {"plus300": [1.2] * 10, "x6": [1.2] * 10}
    assert "- **host-x6**: over the later rates Basin has 1.25 to 1.88 times `thunderagent`" in after_findings(runs)


def test_figure_22_marks_late_latency_in_every_seed_and_leaves_the_host_tier_out():
    runs = everywhere(AFTER, seeds=(0, 1), hicache={"late_ttft_s": 60.0}, crossflow={"late_ttft_s": 60.0})
    for share in SHARES:
        runs[f"gpu-x6-{share:g}/crossflow"][0] = summary(50.0, late_ttft_s=1.0)
    _, data = figure_22(runs)
    assert data["setting"].str.startswith("gpu-").all()
    x6 = data[(data["panel"] == "x6") & (data["metric"] == "goodput")]
    assert set(x6.loc[x6["state"] == "trapped", "policy"]) == {"hicache"}


# Figure 23 -----------------------------------------------------------------------------------------------------------


def test_claims_of_figure_23():
    runs = everywhere(
        ablation_cells("full"),
        basin={"active": 250.0, "queue": 10.0, "shed_sessions": 80},
        basin_no_admission={"goodput": 80.0, "active": 850.0, "queue": 600.0},
    )
    runs["gpu-late/basin-prior"] = [summary(95.0)]
    prior = value("A-abl-prior", runs)
    assert prior == {"large_1p3d": [0.5] * 5, "1p1d": [0.5], "late": [0.5, 0.95]}
    assert value("A-abl-order", runs)["overload"] == [0.5]
    assert value("A-abl-lend", runs) == {"host": [0.5] * 3, "gpu_late": [0.5] * 4}
    assert value("A-abl-lend-only", runs) == [0.5] * 8
    assert value("A-abl-admit", runs) == {"host": [0.8] * 3, "1p1d": [0.8], "gpu_late": [0.8] * 4}
    assert value("A-abl-cliff-bound", runs) == [0.5] * 3 and value("A-abl-nolent-bound", runs) == [0.5] * 2
    assert value("A-abl-always", runs) == {"two_largest": [0.5] * 2, "steady_overload": [0.5] * 2}
    assert value("A-abl-overload", runs) == {
        "active_without": 850.0,
        "active_with": 250.0,
        "queue_without": 600.0,
        "queue_with": 10.0,
    }
    assert value("A-abl-overload-gain", runs) == {"host": 1.25, "gpu": 1.25}
    assert value("A-abl-overload-shed", runs) == 80.0
    _, data = figure_23(runs)
    a = data[(data["panel"] == "a") & (data["policy"] == "basin-no-admission")]
    assert set(a["value"]) == {0.8} and len(a) == 10  # eight triggers, overload on both
    assert "**Removing a mechanism never gains more than 3%.**" in ablation_findings(runs)
    runs["x8/basin-no-lending"] = [summary(110.0)]
    assert "Removing one gains more than 3% here: `basin-no-lending` in x8 (1.10)." in ablation_findings(runs)


# Figure 24 -----------------------------------------------------------------------------------------------------------


def sensitive(**changed):
    """Every variant as the default but for `changed`, by arm: "x5/margin:low"."""
    runs = {name: [summary(100.0, 0), summary(100.0, 1)] for name in sensitivity_cells("full")}
    return runs | {name: [summary(seed=s, **fields) for s in (0, 1)] for name, fields in changed.items()}


def test_claims_about_parameters():
    runs = sensitive(
        **{
            "overload/interval_s:low": {"goodput": 117.0},
            "x8/interval_s:low": {"goodput": 94.0},
            "late/interval_s:high": {"goodput": 96.0},
            "gpu-x5/lend_cap:high": {"goodput": 107.0, "wait_p90_s": 8.0},
            "overload/shed_after_s:high": {"goodput": 93.0},
            "x5/priority_tokens_per_s:low": {"goodput": 130.0, "wait_p99_s": 25.0},
            "overload/budget_range:high": {"goodput": 84.0},
            "x5/cooldown_s:low": {"goodput": 102.0},
            "x5/alpha_order:high": {"goodput": 95.0},
            "1p1d-x4/cliff-2": {"goodput": 99.0},
        }
    )
    assert value("A-sens-3pct", runs) == pytest.approx(1 - 8 / 204)
    assert value("A-sens-all", runs) == [0.84, 1.3] and value("A-sens-median", runs) == 0.0
    assert value("A-sens-delta", runs) == {"d15_overload_max": 1.17, "d15_x8_min": 0.94, "d60_min": 0.96}
    assert value("A-sens-phi", runs) == [1.0, 1.07] and value("A-sens-phi-wait", runs) == 0.8
    assert value("A-sens-ts", runs) == {"short": 1.0, "long": 0.93}
    assert value("A-sens-r", runs) == {"r10": [1.0, 1.3], "r100": [1.0, 1.0]}
    assert value("A-sens-r-wait", runs) == [1.0, 1.25]
    assert value("A-sens-impl", runs)["wide_budget_overload"] == 0.84
    assert value("A-sens-impl-rest", runs) == [1.0, 1.02]
    assert value("A-sens-alpha", runs) == pytest.approx([0.0, 0.05])
    assert value("A-sens-m", runs) == [0.0, 0.0] and value("A-sens-cliff", runs) == pytest.approx([0.0, 0.01])
    words = sensitivity_findings(runs)
    assert "34 variants, 6 triggers, 2 seeds: 96% of the pairs stay within 3%" in words
    assert "all within 0.84 to 1.30 of it" in words


def test_a_variant_is_its_mean_over_seeds():
    runs = sensitive() | {"x5/margin:low": [summary(90.0, 0), summary(106.0, 1)]}
    assert value("A-sens-m", runs) == pytest.approx([0.0, 0.02])


def test_claims_about_estimates():
    better = {f"{trigger}/basin-true-peaks": {"goodput": 130.0} for trigger in FIVE}
    runs = sensitive(**(better | {"late/basin-true-peaks": {"goodput": 150.0}, "x5/basin-prior": {"goodput": 80.0}}))
    found = value("A-sens-peaks", runs)
    assert found == {"true": [1.3] * 3, "sigma1": [1.0] * 3, "across": [1.3, 1.3, 1.3, 1.3, 1.5]}
    assert value("A-sens-prior", runs) == {"plotted": [0.8, 1.0, 1.0], "triggers": [0.8, 1.0, 1.0, 1.0, 1.0]}
    assert value("A-sens-est-overload", runs) == [1.0] * 4
    assert "Exact peaks do not gain in 1 of 6." in sensitivity_findings(runs)
    _, data = figure_24(runs)
    true = data[(data["panel"] == "b") & (data["policy"] == "basin-true-peaks")]
    assert set(true["setting"]) == {"x5", "gpu-x5", "1p1d-x4"} and set(true["value"]) == {1.3}


# Table 1 -------------------------------------------------------------------------------------------------------------


def test_table_1_says_when_a_mechanism_engaged():
    run = timed(150, ordering_from=30)
    assert engaged(run, "ordering") == (30.0, pytest.approx(151 / 181), 1.5)
    assert np.isnan(engaged(run, "lending").from_min)
    found = table_1({"1p3d/basin": [run, run]})
    assert found["1p3d"].tolist() == ["from minute 30, 83% of the run; W = 1.5 B0", "never", "never", "1 sessions"]
    assert "W ≥ 0.9 B0" in found["engaged when"].iloc[0]
    changed = principles(BasinParameters(alpha_order=0.7))
    assert "W ≥ 0.7 B0" in changed[0].engaged
    fig, data = table_1_figure({"1p3d/basin": [run], "1p1d/basin": [run]})
    assert len(fig.axes) == 2
    assert data.loc[data["on"], "control"].unique().tolist() == ["ordering"]


def test_an_unknown_profile_is_named_with_those_there_are():
    with pytest.raises(ValueError, match="profile 'fulll' is none of smoke, quick, full"):
        after_runs("sim", "fulll")
