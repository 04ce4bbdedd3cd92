"""Figures 17 to 20, controls, evictions and open choices: evaluators, pictures and words on summaries by hand."""

import matplotlib
import pytest
from summaries import everywhere, summary

from artifact.reproduce.evaluate.policy_sweeps import HIGHEST
from artifact.reproduce.findings_sweeps import (
    bailian_findings,
    controls_findings,
    host_findings,
    open_findings,
    router_findings,
    sources_findings,
    steady_findings,
)
from artifact.reproduce.plots.sweeps import (
    controls_figure,
    evictions_figure,
    figure_17,
    figure_18,
    figure_19,
    figure_20,
    open_figure,
)
from artifact.reproduce.registry import evaluate, evaluators
from artifact.reproduce.scenarios_policies import BASELINES, POLICIES, load
from artifact.reproduce.scenarios_recovery import Profiled
from artifact.reproduce.scenarios_sweeps import (
    CODER,
    CONTROLS,
    HOSTS,
    HOSTS_STEADY,
    OPEN_SETTINGS,
    ROUTED,
    ROUTED_STEADY,
    STEADY,
    STEADY_RATES,
    SWEEPS,
    bailian_cells,
    control_cells,
    host_cells,
    open_cells,
    router_cells,
    source_cells,
    steady_cells,
)
from artifact.reproduce.summaries import frame

matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def _closed():
    yield
    matplotlib.pyplot.close("all")


def value(claim_id, runs):
    return evaluate(evaluators()[claim_id], runs).obtained


# What is run ---------------------------------------------------------------------------------------------------------


def test_every_claim_of_a_sweep_finds_its_arms_at_the_full_profile():
    there = {"profiles"}.union(*(plan("full") for plan, _ in SWEEPS.values()))
    swept = [e for e in evaluators().values() if e.function.__module__.endswith(".policy_sweeps")]
    assert len(swept) == 21
    assert {e.claim.id: set(e.arms) - there for e in swept if set(e.arms) - there} == {}


@pytest.mark.parametrize("name", SWEEPS)
def test_a_smaller_profile_runs_a_part_of_the_larger(name):
    plan, seeds = SWEEPS[name]
    smoke, quick, full = (plan(profile) for profile in ("smoke", "quick", "full"))
    assert smoke and set(smoke) <= set(quick) <= set(full) and seeds >= 2
    assert all(full[arm] == cell for arm, cell in quick.items())


def test_settings_offer_what_the_paper_says():
    steady = load(STEADY["steady-16.8"], 16.8)
    assert (steady.surges, steady.tool_time_scale, steady.duration_s) == ((), 3.0, 9000.0)
    assert load(CODER["coder-18.2"], 18.2).process == "bailian-coder"
    assert {setting.host_ratio for setting in HOSTS.values()} == {1, 2, 4, 8}
    assert {(s.prefill, s.gpus, s.router) for s in ROUTED.values()} == {
        (2, ("h200", 6), router) for router in ("cache_aware", "affinity", "least_loaded")
    }
    assert len(CONTROLS) == 15 and all(setting.factor == 1 for setting in CONTROLS.values())
    assert all(setting.factor == 1 for setting in (*HOSTS_STEADY.values(), *ROUTED_STEADY.values()))


def test_evictions_share_everything_but_the_order_with_lru():
    found = source_cells("full")
    oracle, lru = found["1p3d-x4-oracle/hicache"].setting, found["1p3d-x4/hicache"].setting
    assert oracle.eviction == "next-call-oracle" and oracle._replace(eviction="lru") == lru
    assert found["out3/crossflow-charged"].variant.parameters == {"chunk_charge_s": 0.02}


def test_every_open_choice_of_every_baseline_is_swept():
    labels = {arm.split("/")[1] for arm in open_cells("full")}
    assert {label.split(":")[0] for label in labels} == set(POLICIES)
    assert {"continuum:ttl=fixed", "concur:hit_threshold=0.2", "crossflow:revoke_s=2.0"} <= labels


# Figures 17 and 18 ---------------------------------------------------------------------------------------------------


def test_claims_of_figure_17():
    runs = everywhere(steady_cells("full"), hicache={"goodput": 5.0}, thunderagent={"ttft_p90_s": 3.0})
    runs["steady-16.8/basin"] = [summary(900.0)]
    assert value("A-steady-peak", runs) == 900.0
    assert value("A-steady-19", runs) == {"basin": 100.0, "continuum": 50.0, "concur": 50.0, "thunderagent": 50.0}
    assert value("A-steady-hicache", runs) == [5.0] * 4  # 15.5, 16.8, 18.1 and 19.4
    assert value("A-steady-ttft", runs) == {"basin": 1.0, "continuum": 1.0, "crossflow": 1.0, "thunderagent": 3.0}
    words = steady_findings(runs)
    assert "**Basin peaks at 900 sessions/h, offered 16.8/min, and serves 100 at 19.4.**" in words
    assert "HiCache serves less than a tenth of what arrives at 11.6, 13.5, 15.5, 16.8, 18.1, 19.4." in words


def test_a_median_over_seeds_and_its_range_are_drawn():
    runs = everywhere(steady_cells("full"), seeds=(0, 1, 2))
    runs["steady-19.4/basin"] = [summary(g, seed, state="trapped") for seed, g in enumerate((100.0, 110.0, 150.0))]
    fig, data = figure_17(runs)
    basin = next(line for line in fig.axes[0].lines if line.get_label() == "Basin")
    assert list(basin.get_xdata()) == list(STEADY_RATES) and basin.get_ydata()[-1] == 110.0
    last = data[(data["panel"] == "a") & (data["policy"] == "basin") & (data["x"] == 19.4)]
    assert sorted(last["value"]) == [100.0, 110.0, 150.0]
    hollow = [line for line in fig.axes[0].lines if line.get_markerfacecolor() == "white"]
    assert [tuple(line.get_xydata()[0]) for line in hollow] == [(19.4, 110.0)]


def test_claims_of_figure_18():
    runs = everywhere(bailian_cells("full"), concur={"goodput": 25.0, "wait_p90_s": 1800.0})
    assert value("A-bailian-coder", runs) == {"continuum": 2.0, "thunderagent": 2.0, "concur": 4.0}
    high = value("A-bailian-high", runs)
    assert high["coder"] == {"basin": 100.0, "continuum": 50.0, "concur": 25.0}
    assert high["a"] == {"basin": 100.0, "continuum": 50.0}
    runs["coder-out3-9.2/crossflow"] = [summary(second_hour_s=180.0)]
    assert value("A-bailian-out3", runs) == {"basin": 0.5, "hicache": 0.5, "crossflow": 180.0}
    runs["coder-out3-7.7/concur"] = [summary(wait_p90_s=600.0)]
    found = evaluate(evaluators()["A-bailian-wait"], runs)
    assert found.obtained["concur"] == [10.0, 30.0] and "concur (30 to 30)" in found.note
    _, data = figure_18(runs)
    assert set(data.loc[data["panel"] == "b", "setting"]) == {"coder-out3-6.2", "coder-out3-7.7", "coder-out3-9.2"}
    assert "HiCache under bursts and, for it, under Poisson arrivals: 50 for 50 at 11.4/min" in bailian_findings(runs)


# Figures 19 and 20 ---------------------------------------------------------------------------------------------------


def test_claims_of_figure_19():
    runs = everywhere(
        host_cells("full"),
        basin={"in_time": 120.0, "in_time_over_itl": 0.35},
        basin_prior={"in_time": 100.0, "in_time_over_itl": 0.2},
        composition={"goodput": 80.0},
    )
    assert value("A-host-1x", runs) == {"thunderagent": 2.0, "composition": 1.25}
    assert value("A-host-48x", runs) == {"thunderagent": [2.0, 2.0], "composition": [1.25, 1.25]}
    assert value("A-host-8x-good", runs) == {"prior": 1.2, "thunderagent": 1.2}
    assert value("A-host-8x-itl", runs) == {"basin": 0.35, "prior": 0.2, "thunderagent": 0.0}
    _, data = figure_19(runs)
    assert set(data.loc[data["panel"] == "a", "x"]) == {1.0, 2.0, 4.0, 8.0}
    assert "- **host1**: `basin` 100 sessions/h, 2 times `thunderagent`, 1.25 times `composition`" in host_findings(
        runs
    )


def profiled(**kappa):
    return [Profiled(name, k, 20.0 if name == "least_loaded" else 40.0, {}) for name, k in kappa.items()]


def test_claims_of_figure_20():
    runs = everywhere(router_cells("full"), basin={"shed": 0.01})
    runs["least_loaded/basin"] = [summary(200.0)]
    assert value("A-2p6d", runs) == {"cache_aware": 2.0, "affinity": 2.0, "least_loaded": 4.0}
    assert value("A-2p6d-steady", runs) == {"basin": 100.0, "hicache": 50.0, "thunderagent": 50.0}
    assert value("A-2p6d-shed", runs) == [0.01, 0.01, 0.0]
    published = profiled(cache_aware=0.81, affinity=1.38, least_loaded=0.55)
    assert value("A-2p6d-order", runs | {"profiles": published}) is True
    swapped = profiled(cache_aware=1.38, affinity=0.81, least_loaded=0.55)
    assert value("A-2p6d-order", runs | {"profiles": swapped}) is False
    even = everywhere(router_cells("full"))
    even["affinity/basin"] = [summary(300.0)]
    assert value("A-2p6d-order", even | {"profiles": published}) is False  # the largest gain elsewhere
    _, data = figure_20(runs)
    assert len(data) == 27 and "- **least_loaded**, from 7 sessions/min: `basin` 200" in router_findings(runs)


# §7.3 and §7.5 -------------------------------------------------------------------------------------------------------


def test_a_control_is_judged_against_the_best_of_the_others():
    runs = everywhere(control_cells("full"), **{name: {"goodput": 90.0} for name in BASELINES})
    runs["1p3d-calm/concur"] = [summary(101.0)]
    found = value("A-sim-control", runs)
    assert len(found) == 15 and found[0] == pytest.approx(100 / 101) and found[1] == pytest.approx(100 / 90)
    words = controls_findings(runs)
    assert "**Basin falls short of 0.996 in 1 of 15**: 1p3d-calm (0.990)." in words
    _, data = controls_figure(runs)
    assert data.set_index("setting").loc["1p3d-calm", "value"] == pytest.approx(100 / 101)


def test_evictions_are_compared_with_lru_and_with_basin():
    runs = everywhere(source_cells("full"))
    for name in runs:
        if "-oracle/" in name:
            runs[name] = [summary(60.0)]
        if "-largest/" in name:
            runs[name] = [summary(10.0)]
    assert value("A-evict", runs) == {
        "oracle_over_lru": [1.2] * 4,
        "oracle_over_basin": [0.6] * 4,
        "pinning_over_lru": [1.0] * 4,
    }
    assert value("A-evict-largest", runs) == [0.2] * 5  # four surges and the control
    _, data = evictions_figure(runs)
    assert set(data["policy"]) == {"lru", "oracle", "pinning", "largest", "basin"} and len(data) == 20
    assert "- surge ×3: over LRU oracle 1.2, pinning 1, largest 0.2; the oracle has 0.6" in sources_findings(runs)


def test_a_charge_a_chunk_touches_crossflow_only():
    runs = everywhere(source_cells("full"), crossflow={"goodput": 80.0}, crossflow_charged={"goodput": 60.0})
    runs[f"{HIGHEST}/crossflow-charged"] = [summary(8.0)]
    assert value("A-cross-chunk", runs) == {"x3": 0.75, "tools3_high": 0.1}
    assert value("A-cross-basin-flat", runs) == 1.0
    from artifact.metrics import NotObserved

    with pytest.raises(NotObserved):
        value("A-cross-basin-flat", runs | {"out3/basin": [summary(elastic_calls=1)]})


def test_an_open_choice_that_decides_is_named():
    runs = everywhere(open_cells("full"), continuum={"goodput": 70.0})
    assert "**No open choice makes a baseline beat Basin.**" in open_findings(runs)
    runs["1p1d/continuum:ttl=fixed"] = [summary(110.0)]
    words = open_findings(runs)
    assert "**Basin is beaten by 1**: continuum:ttl=fixed on 1p1d (1.10)." in words
    fig, data = open_figure(runs)
    assert len(fig.axes) == len(OPEN_SETTINGS)
    assert data.loc[data["policy"] == "continuum:ttl=fixed", "value"].tolist() == [0.5, 1.1]


def test_a_frame_has_a_row_a_run():
    found = frame({"1p3d/basin": [summary(1.0, 0), summary(2.0, 1)]})
    assert found[["setting", "policy", "seed", "goodput"]].to_numpy().tolist() == [
        ["1p3d", "basin", 0, 1.0],
        ["1p3d", "basin", 1, 2.0],
    ]
