"""The comparison of all controllers in one trapped state."""

from dataclasses import replace
from functools import cache

import matplotlib
import numpy as np
import pytest
from handmade import call, session
from test_evaluate_colocated import run

from artifact.baselines.registry import POLICIES
from artifact.reproduce import rescue
from artifact.reproduce.findings_rescue import rescue_findings
from artifact.reproduce.plots.rescue import figure_rescue
from artifact.reproduce.rescue import (
    NONE,
    SYSTEMS,
    engines,
    medians,
    quiet_table,
    rescue_runs,
    rescue_table,
    scenario,
)

matplotlib.use("Agg")
WORKLOAD = {"pd": "terminal-bench", "colocated": "paper-b-traces"}


@cache
def served(name, minutes, lasts_s, bad=range(0), backlog=0, seed=0):
    """A session a minute that lasts so long (100 s unloaded; every third is large and takes twice as long), and a
    backlog of sessions that never end; one small session in four is held for a minute before its only call."""
    sessions = [
        session(
            str(m),
            60.0 * m,
            lasts_s * (2 if m % 3 == 0 else 1),
            trajectory_id=rescue_trajectory(name),
            peak_tokens=300 if m % 3 == 0 else 100 + m % 3,
        )
        for m in range(minutes - 15)
    ]
    sessions += [session(f"b{i}", 600.0, None, trajectory_id=rescue_trajectory(name)) for i in range(backlog)]
    one = run(minutes, bad=bad, sessions=sessions)
    firsts = [
        call(60.0 * m + 60.0 * (m % 4 == 1), 1.0, session_id=str(m), cached_tokens=10 if m in bad else 95)
        for m in range(minutes - 15)
    ]
    rows = [tuple(row.values()) for row in one.calls.to_pylist()]
    meta = one.meta | {"seed": seed, "scenario": {"load": {"workload": WORKLOAD[name]}}}
    built = type(one).from_rows(rows + firsts, sessions, [tuple(r.values()) for r in one.samples.to_pylist()], meta)
    return replace(built, meta=meta)


def rescue_trajectory(name):
    return next(iter(rescue.gaps(WORKLOAD[name])))


def all_runs(**fates):
    """Two engines: trapped from minute 20 on, `fates` by system: minutes after control that the hit ratio is back."""
    runs = {}
    for name, one in engines().items():
        minutes = int(one.load.duration_s // 60)
        begins = int(one.control_s // 60)
        for system in SYSTEMS:
            after = fates.get(system.replace("-", "_"))
            bad = range(20, minutes if after is None else begins + after)
            trapped = served(name, minutes, 200.0 if after is not None else 900.0, bad, 0 if after else 30)
            runs[f"{name}/{system}"] = [trapped]
            runs[f"{name}-quiet/{system}"] = [served(name, minutes, 150.0 if system != "concur" else 450.0)]
    return runs


def test_recovery_users_and_fairness_of_hand_made_runs():
    table = rescue_table(all_runs(basin=5, budgeter=2))
    found = medians(table, "colocated")
    assert found.loc["budgeter", "recovered_min"] == 2.0 and found.loc["basin", "recovered_min"] == 5.0
    assert np.isinf(found.loc[NONE, "recovered_min"]) and np.isinf(found.loc[NONE, "drained_min"])
    assert found.loc["budgeter", ["slowdown_small", "slowdown_large"]].tolist() == [2.0, 4.0]
    assert found.loc["budgeter", "goodput"] == pytest.approx(60.0) and found.loc["budgeter", "completed"] == 1.0
    assert found.loc[NONE, "goodput"] == 0.0 and found.loc["budgeter", "held_p90_min"] == pytest.approx(1.0)
    quiet = medians(quiet_table(all_runs()), "pd")
    assert quiet.loc["basin", "slowdown"] == 1.5 and quiet.loc["concur", "goodput"] == 0.0


def test_the_words_say_who_is_best_and_who_costs():
    words = rescue_findings(all_runs(basin=5, budgeter=2))
    assert "in every seed with `basin`, `budgeter`; in none with `hicache`" in words
    assert "`basin` comes 1 of 13. `basin-suspend` comes 3 of 13." in words
    assert "share of the undisturbed goodput lost: `concur` 100%." in words
    assert "one controller is best on both engines" in words and "-60 an hour on pd" in words
    nothing = rescue_findings(all_runs())
    assert "in every seed with nobody" in nothing and "with nobody within the run" in nothing


def test_the_picture_holds_every_system_on_both_engines():
    fig, data = figure_rescue(all_runs(basin=5))
    assert [len(data[data["panel"] == panel]) for panel in "cd"] == [len(SYSTEMS)] * 2
    assert data[(data["panel"] == "c") & (data["policy"] == "basin")]["y"].tolist() == [60.0]
    assert [text.get_text() for text in fig.axes[2].get_yticklabels()] == list(SYSTEMS)


def test_all_systems_start_from_one_state_and_caps_fit_the_engine(monkeypatch):
    monkeypatch.setattr(rescue, "sessions_that_fit", lambda name: 20.0)
    assert set(SYSTEMS) <= set(POLICIES)
    for name, one in engines().items():
        scenarios = [scenario(name, "", system, 3) for system in SYSTEMS]
        assert len({(s.deployment, s.load, s.seed) for s in scenarios}) == 1
        assert {s.policy.from_s for s in scenarios} == {one.control_s}
        quiet = scenario(name, "-quiet", "basin", 3)
        assert quiet.load.surges == () and quiet.policy.from_s == 0
    assert scenario("pd", "", "session-cap", 0).policy.parameters == {"admit": 15, "park": 19}
    assert scenario("pd", "", "admission-only", 0).policy.parameters == {"admit": 17}
    assert engines()["pd"].deployment.reserve_at == "arrival"


def test_only_trapped_seeds_are_controlled(monkeypatch):
    def instead(arms, workers=None, scheduler=None, label=""):
        def one(s):
            kind = "pd" if s.deployment.kind == "pd" else "colocated"
            down = s.seed == 1 and s.load.surges
            return served(kind, 120, 150.0, range(20, 120) if down else range(0), seed=s.seed)

        return {name: [one(s) for s in scenarios] for name, scenarios in arms.items()}

    monkeypatch.setattr(rescue, "run_arms", instead)
    found = rescue_runs("sim", "smoke", systems=(NONE, "budgeter"))
    assert {name: [run.meta["seed"] for run in seeds] for name, seeds in found.items()} == {
        "pd/hicache": [1], "pd/budgeter": [1], "pd-quiet/hicache": [0, 1], "pd-quiet/budgeter": [0, 1],
        "colocated/hicache": [1], "colocated/budgeter": [1],
        "colocated-quiet/hicache": [0, 1], "colocated-quiet/budgeter": [0, 1],
    }  # fmt: skip
    with pytest.raises(ValueError, match="none of sim, hw"):
        rescue_runs("tape", "smoke")
