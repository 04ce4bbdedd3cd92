"""The notebooks about the predictor and about the simulator itself run, show and judge (`make test-slow`)."""

import json

import pytest
from test_notebooks import ROOT, execute, outputs


def shown_and_judged(name, executed):
    """Every claim of its part of the ledger is in the table; returns the words and the claims that were judged."""
    part = json.loads((ROOT / "build" / "claims" / f"{name}.smoke.json").read_text())
    table = outputs(executed, "text/html")[-1]
    assert part["entries"] and all(f"<th>{entry['id']}</th>" in table for entry in part["entries"])
    judged = {entry["id"] for entry in part["entries"] if entry["verdict"] != "not evaluated"}
    return "".join(outputs(executed, "text/markdown")), judged


@pytest.mark.slow
def test_the_predictor_is_scored_on_a_set_of_ones_own(tmp_path):
    sessions = [json.loads(line) for line in (ROOT / "artifact/workload/data/swe-bench-pro.jsonl").open()]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "half.jsonl").write_text("".join(json.dumps(one) + "\n" for one in sessions[:40]))
    executed = execute("predictor", tmp_path, traces=str(tmp_path / "mine"))
    words, judged = shown_and_judged("predictor", executed)
    assert "**half.jsonl** (recorded; 100% of 40 sessions have a task text)" in words
    assert judged == {"A-pred-rank-tb", "A-pred-rank-swe", "A-pred-std-tb", "A-pred-std-swe"}
    assert "exact peaks, the most a predictor could be worth here" in words
    assert len(outputs(executed, "image/png")) == 2


@pytest.mark.slow
def test_fidelity_tells_calibration_from_validation_and_names_the_worst(tmp_path):
    executed = execute("fidelity", tmp_path)
    words, judged = shown_and_judged("fidelity", executed)
    assert all(f"**{role}, paper A, " in words for role in ("Calibration", "Validation"))
    assert words.count("Worst is `") >= 2
    assert "**The charge changes the prototype's goodput by at most" in words
    assert {"A-fid-ratio", "A-fid-h100-state"} <= judged and "A-fid-h200" not in judged
    assert len(outputs(executed, "image/png")) == 1
