"""How far the simulator is from hardware: rows worked by hand, and the claims of §7.10 on runs of known goodput."""

import math
from dataclasses import replace
from typing import Any

import pytest
from handmade import call, records, sample, session

from artifact.records.schema import Records
from artifact.reproduce.claims import load_claims
from artifact.reproduce.compare import good
from artifact.reproduce.evaluate.fidelity import CALIBRATED, HELD_OUT, TRANSFERRED, hw, per_token
from artifact.reproduce.fidelity import by_role, error, hardware_claims, on_record, rows, words
from artifact.reproduce.findings_fidelity import fidelity_findings, transfer_findings
from artifact.reproduce.ledger import Entry, evaluate_claims
from artifact.reproduce.plots.fidelity import EDGES, fidelity
from artifact.reproduce.registry import evaluate, evaluators
from artifact.reproduce.scenarios_policies import HARDWARE, ON_1P3D, PROTOTYPE, PROTOTYPE_POLICIES, arm
from artifact.reproduce.verdict import Outcome


def entry(claim_id: str, obtained: Any, fitted: bool = False, **other: Any) -> Entry:
    """A simulated line of the ledger."""
    claim = load_claims()[claim_id]
    made = Entry(
        id=claim.id, group=claim.group, unit=claim.unit, what=claim.what, expected=claim.expect, obtained=obtained,
        verdict=Outcome.REPRODUCED, role="fitted" if fitted else "validated", source="sim", figure="f", profile="smoke",
    )  # fmt: skip
    return made.model_copy(update=other)


# Errors and rows -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "tolerance", "value", "relative", "tolerances"),
    [
        (100.0, {"rel": 0.2}, 150.0, 0.5, 2.5),  # 50 of 100; 20 is one tolerance
        (100.0, {"rel": 0.2}, 90.0, -0.1, -0.5),
        ([2.0, 4.0], {"abs": 0.5}, 3.0, 0.0, 0.0),
        ([2.0, 4.0], {"abs": 0.5}, 5.0, 0.25, 2.0),  # 1 of the nearer end 4
        ([2.0, 4.0], {"abs": 0.5}, 1.0, -0.5, -2.0),
        ([2.0, 4.0], {"rel_low": 0.5, "rel_high": 0.25}, 1.0, -0.5, -1.0),
        (0.5, {"abs": 0.1}, math.inf, math.inf, math.inf),
    ],
)
def test_an_error_is_the_distance_from_the_nearer_end(
    expected: Any, tolerance: Any, value: float, relative: float, tolerances: float
) -> None:
    assert error(expected, tolerance, value) == pytest.approx((relative, tolerances))


def test_nothing_is_relative_to_zero() -> None:
    far = error(0.0, {"abs": 0.1}, 0.05)
    assert math.isnan(far.relative) and far.tolerances == pytest.approx(0.5)


def test_rows_hold_one_number_each_and_the_farthest_of_several() -> None:
    found = rows(
        [
            entry("A-trap-goodput-abs", {"surge": 86.0, "none": 123.0}),  # published 43 and 123
            entry("A-hw-basin-cont", [1.0, 1.3, 1.69, 2.0]),  # published 1.2 to 1.7: 0.3/1.7 beats 0.2/1.2
            entry("A-trap-ttft", 45.0, fitted=True),  # published 60
            entry("A-kill-recovers", "never"),
            entry("A-trap-100-trapped", ["trapped"]),
            entry("A-trap-hit", 0.3, source="hw"),
            entry("A-trap-calls", None),
        ]
    ).set_index(["claim", "part"])
    assert list(found.index) == [
        ("A-trap-ttft", ""),
        ("A-kill-recovers", ""),
        ("A-trap-goodput-abs", "surge"),
        ("A-hw-basin-cont", ""),
        ("A-trap-goodput-abs", "none"),
    ]
    assert found["error"].tolist() == pytest.approx([-0.25, math.inf, 1.0, 0.3 / 1.7, 0.0])
    assert found.loc[("A-hw-basin-cont", ""), "obtained"] == 2.0
    assert list(found["role"]) == ["calibration"] + ["validation"] * 4


def test_calibration_and_validation_are_summed_up_apart_with_the_worst_of_each() -> None:
    table = rows(
        [
            entry("A-trap-ttft", 45.0, fitted=True),
            entry("A-trap-goodput-abs", {"surge": 86.0, "none": 123.0}),
            entry("A-hw-swe", {"basin": 126.7, "continuum": 95.4, "concur": 86.0}),
        ]
    )
    summary = by_role(table).set_index(["paper", "role", "group"])
    fitted, held = summary.loc[("A", "calibration", "all")], summary.loc[("A", "validation", "all")]
    assert (fitted["rows"], fitted["worst"], fitted["error"]) == (1, "A-trap-ttft", pytest.approx(-0.25))
    assert (held["rows"], held["worst"], held["error"]) == (5, "A-trap-goodput-abs surge", pytest.approx(1.0))
    assert held["within"] == pytest.approx(4 / 5) and held["median"] == pytest.approx(0.0)
    assert summary.loc[("A", "validation", "hardware_prototype"), "worst"] == "A-hw-swe continuum"


def test_words_name_the_worst_and_what_does_not_hold() -> None:
    entries = [
        entry("A-trap-goodput-abs", {"surge": 86.0, "none": 123.0}),
        entry("A-hw-cont-state", True),
        entry("A-hw-gap-gpu", False, verdict=Outcome.NOT_REPRODUCED),
    ]
    said = words(entries)
    assert list(said["claim"]) == ["A-hw-cont-state", "A-hw-gap-gpu"]
    text = fidelity_findings(rows(entries), said)
    assert "**Validation, paper A, 2 numbers.** 50% lie within tolerance." in text
    assert "Worst is `A-trap-goodput-abs surge`: 86 sessions/h for 43 (+100%)." in text
    assert "1 of 2 hold; not so: `A-hw-gap-gpu`" in text and "Calibration" not in text
    assert fidelity_findings(rows([]), words([])).startswith("**Nothing to compare**")


def test_the_picture_keeps_what_is_off_the_axis_at_its_edge() -> None:
    table = rows([entry("A-trap-goodput-abs", {"surge": 86.0, "none": "never"}), entry("A-kill-ttft", 1.0)])
    fig, drawn = fidelity(table)
    assert drawn["ratio"].tolist() == pytest.approx([math.inf, 2.0, 1 / 9])
    places = [line.get_xdata()[0] for line in fig.axes[0].lines if len(line.get_xdata()) == 1]
    assert places == pytest.approx([EDGES[1], 2.0, EDGES[0]])
    with pytest.raises(ValueError, match="no row to draw"):
        fidelity(rows([]))


def test_hardware_claims_are_those_measured_and_not_about_a_simulator() -> None:
    ids = hardware_claims()
    assert {"A-trap-hit", "A-hw-basin-cont"} <= set(ids)
    assert not any("-fid-" in claim_id for claim_id in ids) and "A-sim-default" not in ids
    assert all(claim_id.startswith("B-") for claim_id in hardware_claims("B"))


def test_without_any_figure_of_paper_b_nothing_is_on_record(tmp_path: Any) -> None:
    assert {one.obtained for one in on_record(tmp_path)} == {None} and rows(on_record(tmp_path)).empty


# Claims --------------------------------------------------------------------------------------------------------------


def run(goodput: int, trapped: bool = False, slow: bool = False, source: str = "sim", seed: int = 0) -> Records:
    """An even number of good sessions an hour over two hours of arrivals, one a minute; the others never end."""
    sessions, calls = [], []
    for minute in range(120):
        ends = (minute * goodput) % 60 < goodput
        t, late = 60.0 * minute, trapped and minute >= 20
        sessions.append(
            session(str(minute), t, 100.0 if ends else None, slow_steps=6 if slow and minute % 4 == 0 else 0)
        )
        calls.append(call(t, 60.0 if late else 1.0, cached_tokens=20 if late else 90))
    samples = [sample(60.0 * minute) for minute in range(121)]
    made = records(calls, sessions, samples, 7200.0, trigger={"start_s": 900.0, "end_s": 2100.0}, seed=seed)
    return replace(made, meta=made.meta | {"source": source})


def value(claim_id: str, runs: dict[str, list[Records]]) -> Any:
    return evaluate(evaluators()[claim_id], runs)


def test_a_made_up_run_has_the_goodput_it_says() -> None:
    assert [good(run(n)) for n in (0, 30, 46, 60)] == [0, 30, 46, 60]


def test_printed_goodputs_are_what_ours_is_held_against() -> None:
    """Published 56.7, 55.3, 55.3 on H100; the mean over seeds counts."""
    runs = {
        arm("1p1d", PROTOTYPE): [run(60), run(46)],
        arm("1p1d", "continuum"): [run(60)],
        arm("1p1d", "composition"): [run(50)],
    }
    found = value("A-fid-h100-late", runs)
    assert found.obtained == pytest.approx(max(1 - 53 / 56.7, 60 / 55.3 - 1, 1 - 50 / 55.3))
    swe = {arm("swe", PROTOTYPE): [run(60)], arm("swe", "continuum"): [run(50)], arm("swe", "concur"): [run(46)]}
    found = value("A-fid-held-swe", swe)
    assert found.obtained == pytest.approx([1 - 60 / 126.7, 1 - 50 / 106, 1 - 46 / 86])
    assert "ranked as measured" in found.note
    assert "ranked otherwise" in value("A-fid-held-swe", swe | {arm("swe", "concur"): [run(60)]}).note


def test_the_gpu_only_run_is_held_against_its_own_printed_goodput() -> None:
    """Over the whole run: published 43 with the surge and 123 without."""
    found = value("A-fid-h100", {"plus100": [run(30)], "none": [run(60)]}).obtained
    assert found == pytest.approx(1 - 60 / 123)


def test_recorded_runs_are_compared_run_by_run() -> None:
    names = [arm(setting, policy) for setting in ON_1P3D for policy in CALIBRATED]
    runs = {name: [run(46), run(60)] for name in names} | {hw(name): [run(50, source="hw")] for name in names}
    worst = arm("1p3d", "hicache")
    runs[worst] = [run(20)]
    runs[arm("1p3d-gpu", PROTOTYPE)] = [run(40)]
    assert value("A-fid-h200", runs).obtained == pytest.approx((13 * 0.06 + 0.6 + 0.2) / 15)
    assert value("A-fid-h200-max", runs).obtained == pytest.approx({"worst": 0.6, "basin_gpu_only": -0.2})
    [entry] = evaluate_claims(runs, "fidelity", "smoke", ["A-fid-h200-max"])
    assert entry.source == "hw+sim" and "states no tolerance" in entry.why
    held = [arm(setting, policy) for setting in ON_1P3D for policy in HELD_OUT]
    runs = {name: [run(46)] for name in held} | {hw(name): [run(50, source="hw")] for name in held}
    [entry] = evaluate_claims(runs, "fidelity", "smoke", ["A-fid-held-tb"])
    assert entry.verdict is Outcome.REPRODUCED and entry.obtained == pytest.approx([0.08] * 6)


@pytest.mark.parametrize("off_ms", [0.0, 2.0])
def test_the_decode_fit_leaves_what_is_not_linear_in_batch_and_context(off_ms: float) -> None:
    """A call alone in each two-minute window; a token takes 5 ms and 10 ns a context token, in the second of two equal
    contexts `off_ms` longer: the fit goes through the middle and leaves half of that."""
    calls = []
    for number in range(40):
        context, begin = 10_000 * (1 + number // 2), 120.0 * number
        token_s = 0.005 + 1e-8 * context + number % 2 * off_ms / 1000
        finished = begin + 1 + 1000 * token_s
        calls.append(call(begin, 1.0, prompt_tokens=context - 500, output_tokens=1001, finished_s=finished))
    made = records(calls, [session("s")], [sample(0.0)], 4800.0, source="hw")
    names = [hw(arm(setting, policy)) for setting in ON_1P3D for policy in CALIBRATED]
    assert value("A-fid-rmse", {name: [made] for name in names}).obtained == pytest.approx(off_ms / 2, abs=0.01)


def test_without_recorded_runs_it_says_which_are_missing() -> None:
    names = [arm("swe", policy) for policy in ("thunderagent", "crossflow", "composition")]
    runs = {name: [run(46)] for name in names}
    [entry] = evaluate_claims(runs, "fidelity", "smoke", ["A-fid-swe-over"])
    assert entry.verdict is Outcome.NOT_EVALUATED and "needs runs of hw/swe/thunderagent" in entry.why
    runs |= {hw(name): [run(40, source="hw")] for name in names}
    assert value("A-fid-swe-over", runs).obtained == pytest.approx(
        dict.fromkeys(("thunderagent", "crossflow", "composition"), 1.15)
    )


def test_states_are_those_of_seed_0() -> None:
    runs = {arm("1p1d", policy): [run(60), run(20, trapped=True)] for policy in PROTOTYPE_POLICIES} | {
        "plus100": [run(60)]
    }
    assert value("A-fid-h100-state", runs).obtained == ["healthy"] * 5
    runs[arm("1p1d", "hicache")] = [run(20, trapped=True)]
    assert value("A-fid-h100-state", runs).obtained == ["trapped"] + ["healthy"] * 4


def test_sessions_over_the_allowance_are_shown_and_the_measured_share_is_not_made_up() -> None:
    found = value("A-fid-itl", {arm("1p1d", PROTOTYPE): [run(60, slow=True)]}).obtained
    assert found["sim"] == pytest.approx(0.25, abs=0.02) and math.isnan(found["hw"])


def test_the_transfer_charge_is_compared_by_scenario() -> None:
    assert tuple(HARDWARE) == TRANSFERRED and len(TRANSFERRED) == 5
    runs = {arm(name, PROTOTYPE): [run(50)] for name in TRANSFERRED}
    runs |= {arm(per_token(name), PROTOTYPE): [run(50)] for name in TRANSFERRED}
    runs[arm(per_token("swe"), PROTOTYPE)] = [run(46)]
    found = value("A-fid-transfer", runs)
    assert found.obtained == pytest.approx([0, 0, 0, 0.08, 0]) and "swe -8.0%" in found.note
    text = transfer_findings(runs)
    assert "`swe`: 50 sessions/h with the fixed charge, 46 by the token (-8.0%; by seed -8.0%)" in text
    assert "at most 8.0%** (published: 1.4%)" in text
    assert transfer_findings({}).startswith("**Not evaluated**")
