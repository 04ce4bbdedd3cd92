import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from artifact.reproduce.claims import Claim, leaves, load_claims
from artifact.reproduce.verdict import Outcome, bounds, judge

NAN = float("nan")


def claim(expect, tol="exact", unit="s", **fields):
    base = {"id": "A-test", "group": "g", "source": "A", "where": "§1", "basis": "sim", "what": "a test"}
    return Claim(**base | {"expect": expect, "tol": tol, "unit": unit} | fields)


def outcome(obtained, *args, simulated=True, **fields):
    return judge(claim(*args, **fields), obtained, simulated).outcome.value


def test_the_shipped_claims_load_whole():
    claims = load_claims()
    groups = [c.group for c in claims.values()]
    assert len(claims) == 285
    assert {g: groups.count(g) for g in dict.fromkeys(groups)} == {
        "workload": 25,
        "trap_h100_1p1d": 36,
        "vulnerability": 36,
        "hardware_prototype": 22,
        "policy_simulation": 97,
        "colocated": 69,
    }
    assert claims["A-trap-hit"].expect == 0.27 and claims["A-trap-hit"].tol == {"abs": 0.06}


def test_every_shipped_claim_is_reproduced_by_what_it_expects():
    """Whatever kinds of expectation and tolerance occur, the published value itself must be accepted."""
    for c in load_claims().values():
        obtained = [c.expect] * c.majority_of if c.majority_of else c.expect
        verdict = judge(c, obtained, simulated=False)
        wanted = Outcome.NOT_EVALUATED if verdict.why.startswith("the source states no") else Outcome.REPRODUCED
        assert verdict.outcome is wanted, c.id


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"expect": 1, "tol": {"relative": 0.1}}, "relative"),
        ({"expect": {"a": 1}, "tol": {"rel": 0.1, "b": "exact"}}, "'b'"),
        ({"expect": [2, 1], "tol": "exact"}, "range from low to high"),
        ({"expect": [1, 2, 3], "tol": "exact"}, "range from low to high"),
        ({"expect": 1, "tol": "roughly"}, "roughly"),
        ({"expect": 1, "tol": "exact", "id": "C-x"}, "id"),
        ({"expect": 1, "tol": "exact", "extra": 1}, "extra"),
    ],
)
def test_bad_rows_are_refused(fields, message):
    with pytest.raises(ValidationError, match=message):
        claim(**fields)


@pytest.mark.parametrize(
    ("expect", "tol", "lowest", "highest"),
    [
        (10, "exact", 10, 10),
        (10, {"rel": 0.2}, 8, 12),
        (-10, {"rel": 0.2}, -12, -8),
        (10, {"abs": 3}, 7, 13),
        ([10, 20], {"rel": 0.1}, 9, 22),
        ([10, 20], {"abs": 1}, 9, 21),
        ([10, 20], {"rel_low": 0.1, "rel_high": 0.5}, 9, 30),
        ([-900, -100], {"rel": 0.5}, -1350, -50),
    ],
)
def test_bounds_and_their_ends(expect, tol, lowest, highest):
    assert bounds(expect, tol) == pytest.approx((lowest, highest))
    assert outcome(lowest, expect, tol) == outcome(highest, expect, tol) == "reproduced"
    assert outcome(lowest - 0.01, expect, tol) == outcome(highest + 0.01, expect, tol) == "not reproduced"


def test_a_range_must_hold_every_scenario():
    assert outcome([1.3, 1.6], [1.2, 1.7], unit="x") == "reproduced"
    assert outcome([1.3, 1.9], [1.2, 1.7], unit="x") == "not reproduced"
    assert outcome(float("inf"), [0, 20], {"abs": 5}) == "not reproduced"


def test_tables_have_tolerances_of_their_own():
    expect, tol = {"a": 1.0, "b": [10, 20]}, {"rel": 0.1, "b": {"abs": 5}}
    assert outcome({"a": 1.1, "b": [6, 25]}, expect, tol) == "reproduced"
    assert outcome({"a": 1.2, "b": [6, 25]}, expect, tol, unit="mixed") == "not reproduced"
    assert outcome({"a": 1.1, "b": [6, 26]}, expect, tol, unit="mixed") == "not reproduced"
    assert outcome({"a": 1.0, "b": 15}, expect, {"rel": 0.1, "a": "exact"}) == "reproduced"
    nested = {"coder": {"basin": 645, "concur": 169}, "a": {"basin": 724}}
    assert outcome({"coder": {"basin": 600, "concur": 169}, "a": {"basin": 724}}, nested, {"rel": 0.1}) == "reproduced"


def test_a_table_with_an_entry_missing_is_not_evaluated_and_names_it():
    verdict = judge(claim({"a": {"b": 1}}, {"rel": 1}), {"a": {}}, True)
    assert str(verdict) == "not evaluated: no value of a.b was observed"
    assert outcome(NAN, 1) == outcome(None, 1) == outcome([1, NAN], [0, 2]) == outcome([], [0, 2]) == "not evaluated"


def test_grids_are_judged_cell_by_cell():
    grid = [[3.25, 3.0], [3.0, 2.75]]
    assert outcome([[3.0, 3.0], [3.0, 3.0]], grid, {"abs": 0.25}) == "reproduced"
    assert outcome([[5.0, 4.0], [4.0, 3.5]], grid, {"abs": 0.25}) == "direction only"
    assert outcome([[5.0, 3.0], [4.0, 3.5]], grid, {"abs": 0.25}) == "not reproduced"  # 2.75 no longer the lowest


def test_words_are_met_by_themselves_or_by_a_passed_test():
    assert outcome("trapped", "trapped") == outcome(True, "a statement") == "reproduced"
    assert outcome("healthy", "trapped") == outcome(False, "a statement") == "not reproduced"


def test_majority_of_seeds():
    args = ("trapped", "majority of at least 4 seeds")
    assert outcome(["trapped"] * 3 + ["healthy"], *args) == "reproduced"
    assert outcome(["trapped"] * 2 + ["healthy"] * 2, *args) == "not reproduced"
    assert str(judge(claim(*args), ["trapped"] * 3, True)) == "not evaluated: 3 seeds, 4 are the least"


def test_hardware_rows_are_not_for_simulation():
    assert outcome(0.05, [0, 0.089], "hardware") == "not evaluated"
    assert outcome(0.05, [0, 0.089], "hardware", simulated=False) == "reproduced"
    assert outcome(0.2, [0, 0.089], "hardware", simulated=False) == "not reproduced"
    assert outcome(0.5, 0.5, "hardware", simulated=False) == "not evaluated"


@pytest.mark.parametrize(
    ("obtained", "expect", "verdict"),
    [
        (1.2, 1.64, "direction only"),
        (0.9, 1.64, "not reproduced"),
        (1.0, 1.64, "not reproduced"),
        (0.9, 0.5, "direction only"),
        (1.5, [1.0, 1.38], "direction only"),
        (0.5, [0.97, 1.07], "not reproduced"),  # across 1: no side
        (1.5, 1.0, "not reproduced"),
        ({"a": 1.2, "b": 0.9}, {"a": 1.6, "b": 0.5}, "direction only"),
        ({"a": 0.8, "b": 0.7}, {"a": 1.6, "b": 0.5}, "not reproduced"),
        ({"a": 1.2, "b": 0.5}, {"a": 1.6, "b": [0.97, 1.03]}, "not reproduced"),
        ({"a": 1.2, "b": 1.0}, {"a": 1.6, "b": [0.97, 1.03]}, "direction only"),
    ],
)
def test_direction_of_ratios_is_the_side_of_one(obtained, expect, verdict):
    assert outcome(obtained, expect, {"rel": 0.01}, unit="ratio") == verdict


def test_direction_of_tables_is_the_order_of_what_does_not_overlap():
    expect = {"basin": 769, "continuum": 449, "concur": [300, 460], "hicache": 84}
    assert outcome({"basin": 100, "continuum": 40, "concur": 50, "hicache": 1}, expect) == "direction only"
    assert outcome({"basin": 100, "continuum": 40, "concur": 50, "hicache": 41}, expect) == "not reproduced"
    assert outcome({"basin": 100, "continuum": 40, "concur": 50, "hicache": 40}, expect) == "not reproduced"
    assert outcome({"a": 10, "b": 200}, {"a": 1, "b": 20}, unit="mixed") == "not reproduced"


def test_plain_numbers_have_no_direction():
    assert outcome(1e6, 1, {"rel": 0.1}) == "not reproduced"


@given(st.floats(0.1, 1e4), st.floats(0, 1), st.floats(-2, 2))
def test_relative_tolerance_is_what_it_says(expected, rel, shift):
    inside = abs(shift) <= rel
    if abs(abs(shift) - rel) > 1e-6:
        assert (outcome(expected * (1 + shift), expected, {"rel": rel}) == "reproduced") is inside


def test_leaves_are_keyed_by_their_path():
    assert leaves({"a": {"b": [1, 2]}, "c": 3}) == {("a", "b"): [1, 2], ("c",): 3}
    assert leaves([[1, 2], [3, 4]])[(1, 0)] == 3
    assert leaves([1, 2]) == {(): [1, 2]}
