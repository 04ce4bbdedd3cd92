"""The synthesised workloads: published statistics all at once, a natural structure, and the same bytes every time."""

from pathlib import Path

import numpy as np
import pytest
import yaml

import artifact.reproduce
from artifact.workload.catalog import shipped, workload
from artifact.workload.formats import save
from artifact.workload.stats import workload_stats
from artifact.workload.synth import FITTED_CLAIMS, synthesise
from artifact.workload.synth_check import check_table, obtained
from artifact.workload.synth_spec import SPECS, SWE_BENCH_PRO, TERMINAL_BENCH, Calls, WorkloadSpec

BOTH = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


def published() -> dict[str, dict]:
    """The claims of the group `workload`, by id."""
    path = Path(artifact.reproduce.__file__).with_name("claims.yaml")
    return {row["id"]: row for row in yaml.safe_load(path.read_text())["workload"]}


@BOTH
def test_published_targets_are_met_within_one_percent_and_derived_ones_within_three_at_once(spec: WorkloadSpec) -> None:
    sessions = workload(spec.name)
    assert len(sessions) == spec.sessions
    for target in spec.targets:
        assert obtained(target, sessions) == pytest.approx(target.value, rel=0.01 if target.claim else 0.03), target


def test_the_statistics_that_follow_from_published_ones() -> None:
    stats = workload_stats(workload("terminal-bench"))
    assert 32_000 <= stats.prompt_mean <= 36_000
    assert 1_150 <= stats.new_mean <= 1_500
    assert stats.reuse_gain == pytest.approx(50, rel=0.25)
    assert stats.peak_max <= 200_000
    assert stats.calls_per_session_mean == pytest.approx(32.9, abs=0.05)
    assert 59 <= workload_stats(workload("swe-bench-pro")).calls_per_session_p50 <= 78


@BOTH
def test_targets_with_a_claim_are_the_published_figures(spec: WorkloadSpec) -> None:
    claims = published()
    for target in spec.targets:
        assert target.claim is None or claims[target.claim]["expect"] == target.value
    text = spec.task_text
    assert claims[text.rank_claim]["expect"] == text.rank_correlation
    assert claims[text.std_claim]["expect"] == text.log_error_std


def test_fitted_claims_exist_and_no_workload_claim_of_the_sets_passes_for_validated() -> None:
    claims = published()
    assert len(set(FITTED_CLAIMS)) == len(FITTED_CLAIMS)
    assert set(FITTED_CLAIMS) <= set(claims)
    assert {id for id in claims if id.startswith("A-wl-")} <= set(FITTED_CLAIMS)


@BOTH
def test_a_prompt_is_the_preceding_prompt_its_output_and_a_tool_result(spec: WorkloadSpec) -> None:
    for t in workload(spec.name):
        tool = np.diff(t.prompt_tokens) - np.array(t.output_tokens[:-1])
        assert (tool >= 1).all()
        assert t.new_tokens[1:] == tuple(np.diff(t.prompt_tokens))
        assert t.gap_before_s[0] == 0
        assert min(t.output_tokens) >= 1
        assert t.shared_head_tokens == 7000 < t.prompt_tokens[0]


@BOTH
def test_sessions_differ_widely(spec: WorkloadSpec) -> None:
    sessions = workload(spec.name)
    calls = np.array([t.n_calls for t in sessions])
    low, high = np.quantile(calls, [0.1, 0.9])
    assert high > 2.5 * low
    assert len({t.id for t in sessions}) == len({t.task_text for t in sessions}) == spec.sessions
    assert len({t.prompt_tokens for t in sessions}) == spec.sessions


def test_gaps_are_a_floor_and_a_heavy_tail() -> None:
    """As in public recordings: most tool calls near their environment's floor, some long, none above two minutes."""
    gaps = np.concatenate([t.gap_before_s[1:] for t in workload("terminal-bench")])
    assert np.mean(gaps < 1) == pytest.approx(0.74, abs=0.06)
    assert 3 < np.quantile(gaps, 0.9) < 20
    assert gaps.max() == 120
    assert gaps.min() > 0.04


@BOTH
def test_the_shipped_set_is_what_the_synthesiser_writes(spec: WorkloadSpec, tmp_path: Path) -> None:
    save(tmp_path / "again.jsonl", synthesise(spec), "native")
    assert (tmp_path / "again.jsonl").read_bytes() == shipped(spec).read_bytes()


def test_other_seeds_give_other_sets_that_meet_the_same_targets() -> None:
    other = workload("swe-bench-pro", seed=7)
    assert {t.prompt_tokens for t in other}.isdisjoint(t.prompt_tokens for t in workload("swe-bench-pro"))
    for target in SWE_BENCH_PRO.targets:
        assert obtained(target, other) == pytest.approx(target.value, rel=0.02), target


def test_a_workload_is_loaded_once_and_a_file_by_its_path(tmp_path: Path) -> None:
    assert workload("terminal-bench")[0] is workload("terminal-bench")[0]
    path = tmp_path / "mine.jsonl"
    save(path, workload("swe-bench-pro")[:3], "native")
    assert workload(str(path)) == workload("swe-bench-pro")[:3]
    with pytest.raises(FileNotFoundError):
        workload(str(tmp_path / "none.jsonl"))


def test_the_table_names_target_claim_and_miss() -> None:
    sessions = workload("swe-bench-pro")
    lines = check_table(SWE_BENCH_PRO, sessions).splitlines()
    assert lines[0] == "swe-bench-pro: 70 sessions"
    assert next(line for line in lines if "A-wl-swe-gap-p50" in line).split() == [
        "Quantile", "gap_s", "0.5", "A-wl-swe-gap-p50", "0.048", "0.048", "0.0%",
    ]  # fmt: skip
    assert len(lines) == 2 + len(SWE_BENCH_PRO.targets) + 2


def test_calls_are_exact() -> None:
    assert next(t.value for t in TERMINAL_BENCH.targets if isinstance(t, Calls)) == 7108
    assert sum(t.n_calls for t in workload("terminal-bench")) == 7108
