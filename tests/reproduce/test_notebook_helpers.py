"""What notebooks display, with runs and without."""

import json

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from handmade import records

from artifact.reproduce import ledger
from artifact.reproduce.notebook import claim_ids, missing, show_claims, show_figure, show_table, show_text

RUNS = {"none": [records(source="sim", seed=2)], "plus100": [records(source="sim", seed=2)]}
NO_RUNS = {"none": [], "plus100": []}


def draw(runs):
    fig, _ = plt.subplots()
    return fig, pd.DataFrame({"x": [len(runs)]})


def test_a_figure_is_saved_with_its_note_and_closed(tmp_path):
    fig = show_figure(draw, RUNS, "fig04", "quick", "mine, 2 sessions/min", tmp_path)
    assert [text.get_text() for text in fig.texts] == ["simulated, mine, 2 sessions/min"]
    assert not plt.fignum_exists(fig.number)
    about = json.loads((tmp_path / "build/figures/fig04.json").read_text())
    assert about["seeds"] == [2] and about["source"] == "sim" and about["note"] == "mine, 2 sessions/min"


def test_without_runs_nothing_is_drawn_or_found(tmp_path):
    recorded = {"none": [records(source="hw", seed=2)], "burst": []}
    shown = show_figure(draw, recorded, "fig04", "quick", root=tmp_path)
    assert "Not evaluated: no hardware runs** of `burst`" in shown.data and not list(tmp_path.iterdir())
    shown = show_figure(draw, {**RUNS, "burst": []}, "fig04", "quick", root=tmp_path)
    assert "none of the seeds gave a run** of `burst`" in shown.data and not list(tmp_path.iterdir())
    assert "`none`, `plus100`" in show_text(lambda runs: "found", NO_RUNS).data
    assert show_text(lambda runs: "found", RUNS).data == "found" and missing(RUNS) == ""
    shown = show_table(lambda runs: pd.DataFrame({"x": [1 / 3]}), RUNS)
    assert shown.to_dict("list") == {"x": [0.33]}
    assert "no hardware runs" in show_table(lambda runs: pd.DataFrame(), NO_RUNS).data


def test_claims_without_any_run_leave_the_ledger_as_it_was(tmp_path):
    show_claims("fig03", {"terminal_bench": [["one"] * 216]}, "quick", ["A-wl-sessions"], root=tmp_path)
    table = show_claims("fig03", {"terminal_bench": []}, "quick", ["A-wl-sessions"], root=tmp_path)
    assert table.loc["A-wl-sessions", "verdict"] == "not evaluated: needs runs of terminal_bench"
    assert ledger.merged(tmp_path)[0].obtained == 216.0


def test_claim_ids_are_those_of_the_group():
    assert claim_ids("trap_h100_1p1d", "A-cliff*") == ["A-cliff", "A-cliff-shoulder", "A-cliff-floor", "A-cliff-side"]
    assert "A-trap-share" not in claim_ids("trap_h100_1p1d", "A-trap-*")  # of the vulnerability maps
    with pytest.raises(ValueError, match="group 'trap_h100_1p1d' matches 'A-fid-\\*'"):
        claim_ids("trap_h100_1p1d", "A-cliff*", "A-fid-*")
