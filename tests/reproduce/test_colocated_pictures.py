"""Paper B's pictures and words against runs whose every figure is known."""

import matplotlib
import pytest
from test_evaluate_colocated import (
    HEALTHY,
    LOST,
    PAIRS,
    RECOVERY,
    arriving,
    cold_run,
    controlled,
    draining,
    run,
    seeds,
)

from artifact.reproduce import findings_colocated as words
from artifact.reproduce.plots.colocated import (
    figure_b1,
    figure_b2,
    figure_b3,
    figure_b4,
    figure_b5,
    figure_b7,
    typical_pair,
)
from artifact.reproduce.plots.colocated_ends import (
    arrival_cohorts,
    figure_b6,
    figure_b8,
    figure_controls,
    figure_prevention,
    pairs_table,
    recovery_table,
    table_b2,
    table_b3,
)
from artifact.reproduce.scenarios_colocated import DRAIN_RATES, MIX_CAPS, TRACE_ARMS

matplotlib.use("Agg")

DRAINS = {f"drain/{rate}": [draining(change)] for rate, change in zip(DRAIN_RATES, (-0.4, 0, 0.4, 0.8), strict=True)}
COLD = {name: [cold_run()] for name in ("nocache/none", "nocache/small")} | {"nocache/loaded": [LOST]}
FATES = {"none": None, "admission": None, "cap": None, "adaptive": 12, "budgeter": 1}
TRACES = {
    f"32b03/{arm}": seeds(controlled(at, 90, 25, sessions=arriving(90, 10 if at else None)))
    for arm, at in FATES.items()
}
LONG = {f"32b025/{arm}": seeds(controlled(FATES[arm], 100, 25, sessions=arriving(100, None))) for arm in TRACE_ARMS}
MIX = {f"mix/{arm}": seeds(run(80, sessions=arriving(80, 5))) for arm in ("budgeter", "adaptive")}
MIX |= {f"mix/cap{k}": seeds(run(80, sessions=arriving(80, 5, admitted_min=2.0))) for k in MIX_CAPS}
MIX |= {"mix/none": seeds(run(80, bad=range(35, 80), sessions=arriving(80, 5)))}


def series(data, panel, name, at):
    rows = data[(data["panel"] == panel) & (data["series"] == name)]
    return float(rows.loc[(rows["x"] - at).abs().idxmin(), "y"])


def test_figure_1_shows_a_pair_that_the_burst_decided():
    assert typical_pair(PAIRS)["burst"].meta["seed"] == 0
    swapped = {"pairs/none": seeds(HEALTHY, HEALTHY), "pairs/burst": seeds(HEALTHY, LOST)}
    assert typical_pair(swapped)["burst"].meta["seed"] == 1
    fig, data = figure_b1(PAIRS)
    assert [series(data, "a", arm, 61) for arm in ("none", "burst")] == pytest.approx([0.95, 0.1])
    assert series(data, "c", "none", 61) == pytest.approx(5.0)
    assert [text.get_text() for text in fig.legends[0].get_texts()] == ["no burst", "burst"]


def test_figure_2_shows_the_worst_burst_run_and_leaves_out_arms_without_that_seed():
    runs = {"traces/none": seeds(run(40), run(40)), "traces/budgeter": seeds(run(40))}
    runs["traces/burst"] = seeds(run(40), run(40, bad=range(20, 40)))
    _, data = figure_b2(runs)
    assert set(data["series"]) == {"none", "burst"} and series(data, "a", "burst", 31) == pytest.approx(0.1)


def test_figures_3_and_4():
    runs = {"sglang/small": seeds(run(60)), "sglang/five": seeds(run(60, bad=range(18, 60)))}
    _, data = figure_b3(runs | {"sglang/ten": seeds(run(60, bad=range(18, 60)))})
    assert [series(data, "a", arm, 41) for arm in ("small", "five")] == pytest.approx([0.95, 0.1])
    fig, data = figure_b4(PAIRS | DRAINS)
    assert series(data, "a", "burst", 80.5) == pytest.approx(6.1, abs=0.06)  # 61 sessions of 100 tokens on 1,000
    assert [series(data, "d", rate, 120) for rate in DRAIN_RATES] == [61, 100, 140, 180]
    assert len(fig.axes[3].get_legend().get_texts()) == 4


def test_figures_5_and_7_show_the_seed_that_takes_longest():
    runs = RECOVERY | {"recovery/budgeter": seeds(controlled(1), controlled(4))}
    _, data = figure_b5(runs)
    assert set(data["seed"]) == {1} and set(data["series"]) == {"none", "admission", "aimd", "cap", "budgeter"}
    fig, data = figure_b7(TRACES)
    assert set(data["series"]) == set(TRACE_ARMS)
    dashed = [line for ax in fig.axes for line in ax.lines if line.get_linestyle() == "--"]
    assert [line.get_xdata()[0] for line in dashed] == [25.0, 25.0]


def test_tables_hold_every_run():
    rows = pairs_table(PAIRS)
    assert rows["degraded_burst"].tolist() == [True, False, True] and rows["hit_none"].tolist()[2] == pytest.approx(0.1)
    fig, _ = table_b2(PAIRS)
    filled = [line.get_markerfacecolor() != "white" for line in fig.axes[0].lines if line.get_marker() == "o"]
    assert sum(filled) == 3
    rows = recovery_table(RECOVERY)
    assert rows.groupby("arm").size().to_dict() == dict.fromkeys(("none", "admission", "aimd", "cap", "budgeter"), 2)
    assert rows.loc[rows["arm"] == "aimd", "minutes"].tolist() == [15.0, 10.0]
    table_b3(RECOVERY)


def test_figures_6_and_8():
    _, data = figure_b6(MIX)
    assert data.set_index("arm").loc["cap10", "first_turn_wait_p90_min"] == 2.0
    assert data.set_index("arm").loc["none", "end_hit"] == pytest.approx(0.1)
    cohorts = arrival_cohorts(RECOVERY["recovery/admission"], 300.0, 1200.0)
    assert cohorts["minute"].tolist()[0] == 22.5 and cohorts["completed"].tolist()[0] == 0.5
    _, data = figure_b8(RECOVERY | TRACES)
    assert set(data.loc[data["panel"] == "b", "arm"]) == set(TRACE_ARMS)


CONTROLS = {name: seeds(run(cached=0, sessions=arriving(90, 5, 2))) for name in ("nocache/none", "nocache/small")}
CONTROLS |= {
    "nocache/burst": seeds(run(cached=0, sessions=[*arriving(90, 5, 2), *arriving(20, 30, 0.25, "surge", 15)])),
    "flush/none": seeds(run(60), run(60, bad=range(10, 60))),
    "flush/budgeter": seeds(run(60)),
    "cap/burst": seeds(HEALTHY),
    "quiet/none": seeds(run(30)),
    "small/budgeter": seeds(run(60)),
    "traces/budgeter": seeds(run(40)),
    "offload/burst": seeds(run(bad=range(45, 90), sessions=arriving(90, None))),
    "offload/none": seeds(HEALTHY),
    "offload_late/none": seeds(run(60, bad=range(40, 60))),
    "offload_late/budgeter": seeds(run(60)),
}  # fmt: skip


def test_experiments_without_a_picture_in_the_paper_show_every_run():
    _, data = figure_controls(CONTROLS)
    assert data.groupby("panel")["arm"].nunique().to_dict() == {"a": 2, "b": 2, "c": 2, "d": 1}
    _, data = figure_prevention(CONTROLS | PAIRS)
    assert data[data["arm"] == "pairs/burst"]["seed"].nunique() == 3


def test_words_of_pairs_and_controls():
    found = words.burst_findings(PAIRS | {"idle/cached": [HEALTHY], "idle/no-cache": [HEALTHY]})
    assert "In 1 of 3 pairs only the run with the burst stays degraded" in found
    calm = {"pairs/none": seeds(HEALTHY), "pairs/burst": seeds(HEALTHY)}
    assert "In no pair" in words.burst_findings(calm)
    found = words.pairs_findings(PAIRS | {"recovery/none": RECOVERY["recovery/none"]})
    assert "both in 1, neither in 1" in found and "p = 1, so the burst's part in it could be chance" in found
    assert "there is no second regime without a cache" in words.controls_findings(CONTROLS)
    growing = {"nocache/burst": seeds(run(cached=0, sessions=arriving(90, None)))}
    assert "Not every run drains" in words.controls_findings(CONTROLS | growing)


def test_words_of_loop_and_recovery():
    found = words.loop_findings(PAIRS | COLD | DRAINS)
    assert "The degraded regime drains below 0.0100 sessions/s" in found and "1/S says 0.0122" in found
    found = words.recovery_findings(RECOVERY)
    assert (
        "**budgeter + park** recovers 2 of 2" in found
        and "only the budgeter recovers 1, only the admission cap 0" in found
    )
    nothing = {name: seeds(run(60)) for name in RECOVERY}
    assert words.recovery_findings(nothing).startswith("Not evaluated: no run was collapsed")
    assert "do not need tuning here" in words.thresholds_findings(RECOVERY)
    assert "No fixed count" not in words.mix_findings(MIX) and "does not show in every run" in words.mix_findings(MIX)


def test_words_of_traces_users_and_prevention(monkeypatch):
    monkeypatch.setattr(words, "light_cap", lambda: 18)
    found = words.trace_recovery_findings(TRACES | LONG)
    assert "K = 18" in found and "budgeter + park 1 of 1" in found and "session cap + park 0 of 1" in found
    assert "The queue does not drain" in found
    assert "takes 2.5 times as long" in words.users_findings(RECOVERY | TRACES)
    assert "delays the collapse** by 25 min" in words.prevention_findings(CONTROLS | PAIRS)
    quiet = {"32b03/quiet": seeds(run(90, bad=range(30, 90))), "32b03/none": seeds(run(90, bad=range(18, 90)))}
    traces = {"traces/none": seeds(run(40)), "traces/burst": seeds(run(40))}
    assert "beyond the healthy side" in words.traces_findings(quiet | traces)
    quiet["32b03/quiet"] = seeds(run(90))
    assert "not every run degrades here" in words.traces_findings(quiet | traces)
    large = seeds(run(60, bad=range(18, 60), sessions=arriving(60, None)))
    sglang = {"sglang/small": seeds(run(60)), "sglang/five": large, "sglang/ten": large, "small/none": seeds(run(60))}
    assert "Engine design moves the threshold" in words.sglang_findings(sglang)
    assert "threshold is not met in every run" in words.sglang_findings(sglang | {"sglang/small": large})
