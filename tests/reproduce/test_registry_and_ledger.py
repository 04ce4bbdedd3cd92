import json

import pytest
from handmade import records

from artifact.metrics import NotObserved
from artifact.reproduce import ledger, registry, render
from artifact.reproduce.claims import load_claims
from artifact.reproduce.registry import Evaluator, Noted, evaluate, evaluators, over_seeds
from artifact.reproduce.verdict import Outcome


def evaluator(function, arms, claim_id="A-trap-ttft", pooled=False):
    return Evaluator(load_claims()[claim_id], function, arms, pooled)


def test_every_trap_claim_and_the_14_workload_claims_have_an_evaluator():
    known = evaluators()
    trap = {i for i, c in load_claims().items() if c.group == "trap_h100_1p1d"}
    assert trap <= set(known)
    assert len([i for i in known if i.startswith("A-wl-")]) == 14


def test_registration_refuses_unknown_and_second_evaluators():
    evaluators()
    with pytest.raises(ValueError, match="no claim 'A-nothing'"):
        registry.evaluates("A-nothing")(lambda none: 1.0)
    with pytest.raises(ValueError, match="has an evaluator already"):
        registry.evaluates("A-trap-hit")(lambda none: 1.0)


def test_over_seeds():
    assert over_seeds([1.0, 9.0, 2.0]) == 2.0
    assert over_seeds([{"a": 1, "b": [1, 5]}, {"a": 3, "b": [3, 9]}]) == {"a": 2.0, "b": [2.0, 7.0]}
    assert over_seeds([True, True, False]) is True and over_seeds([True, False]) is False
    assert over_seeds(["trapped", "trapped", "healthy"]) == "trapped" and over_seeds(["a", "b"]) == "mixed"


def test_evaluation_pairs_the_arms_by_seed_and_keeps_each_value():
    found = evaluate(
        evaluator(lambda a, b: Noted(a + b, "odd" if b % 2 else ""), ("a", "b")), {"a": [10, 20, 30], "b": [1, 2, 3]}
    )
    assert found.obtained == 22.0 and found.per_seed == (11, 22, 33) and found.note == "odd"


def test_pooled_evaluators_see_all_seeds_and_majorities_all_words():
    pooled = evaluate(evaluator(lambda a: max(a), ("a",), pooled=True), {"a": [1, 5, 2]})
    assert pooled.obtained == 5 and pooled.per_seed == ()
    words = evaluate(evaluator(lambda a: a, ("a",), "A-trap-100-trapped"), {"a": ["trapped", "healthy"]})
    assert words.obtained == ["trapped", "healthy"]


def test_missing_arms_and_unequal_seeds():
    with pytest.raises(NotObserved, match="needs runs of b"):
        evaluate(evaluator(lambda a, b: 1, ("a", "b")), {"a": [1], "b": []})
    with pytest.raises(ValueError, match="different numbers of seeds"):
        evaluate(evaluator(lambda a, b: 1, ("a", "b")), {"a": [1], "b": [1, 2]})


def test_a_claim_named_in_full_is_reported_with_the_reason_and_a_pattern_takes_what_it_can():
    short = {"plus100": [records(duration_s=600.0)]}
    entry, *_ = ledger.evaluate_claims(short, "fig04", "smoke", ["A-trap-hit"], wall_s=1.5)
    assert entry.verdict is Outcome.NOT_EVALUATED and "3600.0 s" in entry.why
    assert (entry.figure, entry.profile, entry.source, entry.seeds, entry.wall_s) == (
        "fig04",
        "smoke",
        "stub",
        [0],
        1.5,
    )
    entry, *_ = ledger.evaluate_claims(short, "fig04", "smoke", ["A-trap-calls"])
    assert entry.why == "needs runs of none"
    assert "A-trap-calls" not in {e.id for e in ledger.evaluate_claims(short, "fig04", "smoke", ["A-trap-*"])}
    with pytest.raises(ValueError, match="matches no id"):
        ledger.evaluate_claims(short, "fig04", "smoke", ["A-nothing-*"])


def test_fitted_claims_are_marked_and_counted_apart():
    runs = {"terminal_bench": [["one"] * 216]}
    fitted, *_ = ledger.evaluate_claims(runs, "fig03", "full", ["A-wl-sessions"], fitted=["A-wl-sessions"])
    assert (fitted.verdict, fitted.role, fitted.obtained, fitted.source) == ("reproduced", "fitted", 216.0, "synthetic")
    assert ledger.counts([fitted])["workload"] == {"reproduced (fitted)": 1}


def test_parts_merge_into_one_entry_for_every_claim(tmp_path):
    runs = {"terminal_bench": [["one"] * 216]}
    quick = ledger.evaluate_claims(runs, "fig03", "quick", ["A-wl-sessions", "A-wl-swe-sessions"])
    full = ledger.evaluate_claims({"terminal_bench": [["one"] * 7]}, "fig99", "full", ["A-wl-sessions"])
    ledger.write_part(tmp_path, "fig99", "full", full)
    ledger.write_part(tmp_path, "fig03", "quick", quick)
    everything = {entry.id: entry for entry in ledger.merged(tmp_path)}
    assert list(everything) == list(load_claims())
    assert everything["A-wl-sessions"].obtained == 7.0  # the larger profile wins though it came first
    assert everything["A-wl-swe-sessions"].why == "needs runs of swe_bench_pro"
    assert everything["A-trap-hit"].why == "no run yet"
    only_quick = {entry.id: entry for entry in ledger.merged(tmp_path, "quick")}
    assert only_quick["A-wl-sessions"].verdict is Outcome.REPRODUCED
    assert json.loads(ledger.dump(everything.values()))[0]["verdict"] == "not reproduced"


def test_an_unreadable_part_is_named(tmp_path):
    (tmp_path / "build" / "claims").mkdir(parents=True)
    (tmp_path / "build" / "claims" / "fig03.json").write_text("{}")
    with pytest.raises(ValueError, match=r"fig03\.json: not a claims part"):
        ledger.merged(tmp_path)


def test_infinite_and_undefined_values_survive_json():
    assert ledger.jsonable({"a": float("inf"), "b": [float("nan"), 1.5]}) == {"a": "never", "b": [None, 1.5]}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (True, "holds"),
        (0.26666, "0.267"),
        (25582.4, "25582"),
        ([1.8, 6.1], "1.8 to 6.1"),
        (["trapped", "healthy"], "trapped, healthy"),
        ({"basin": 769, "hicache": [0, 150]}, "basin 769, hicache (0 to 150)"),
        ([[3.25, 3.0, 2.75], [3.0, 2.75, 2.5]], "(3.25, 3, 2.75), (3, 2.75, 2.5)"),
    ],
)
def test_values_read_well_on_one_line(value, shown):
    assert render.text(value) == shown
