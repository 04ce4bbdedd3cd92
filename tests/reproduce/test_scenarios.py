"""Arms of the shared runs, recorded runs and traces made to fit."""

import numpy as np
import pytest
from handmade import records

from artifact.metrics import cache_tokens, capacity, windows
from artifact.reproduce import scenarios
from artifact.reproduce.claims import load_claims
from artifact.reproduce.scenarios import (
    fitted_claims,
    fitting_trace,
    recorded,
    trap_h100,
    trap_runs,
    variant,
    workload_arms,
)
from artifact.workload.formats import load, save
from artifact.workload.trajectory import Trajectory
from sim.calibration.model import calibration


def test_arms_differ_only_in_what_comes_on_top_of_the_base_load():
    arms = trap_h100([0, 3])
    assert all([s.seed for s in runs] == [0, 3] for runs in arms.values())
    bare = {"surges": (), "burst": None}
    assert len({runs[0].load.model_copy(update=bare) for runs in arms.values()}) == 1
    assert arms["none"][0].load.warm_sessions == 42 and arms["none"][0].load.rate_per_min == 3.3  # paper A §3.1
    assert [arms[name][0].load.surges[0].factor for name in ("plus33", "plus100")] == pytest.approx([4 / 3, 2])
    assert arms["burst_ended"][0].end_group.at_s == 1500 and arms["burst"][0].end_group is None


def test_another_trace_or_rate_starts_from_its_own_steady_population():
    assert trap_h100([0], ["none"], trace="x.jsonl")["none"][0].load.warm_sessions is None
    assert trap_h100([0], ["none"], rate_per_min=2.0)["none"][0].load.warm_sessions is None


def test_recorded_runs_are_those_of_seeds_that_all_arms_have(tmp_path):
    results = tmp_path / "hw_runs" / "results" / "h100-1p1d"
    for arm, seeds in {"none": (0, 1, 10), "plus100": (1, 10, 11)}.items():
        for seed in seeds:
            records(source="hw", seed=seed).save(results / arm / f"seed{seed}")
    (results / "none" / "seed-notes").mkdir()
    found = recorded("h100-1p1d", ["none", "plus33", "plus100"], root=tmp_path)
    assert {arm: [run.meta["seed"] for run in runs] for arm, runs in found.items()} == {
        "none": [1, 10],
        "plus33": [],
        "plus100": [1, 10],
    }
    assert [run.meta["seed"] for run in recorded("h100-1p1d", ["none"], [10, 99], tmp_path)["none"]] == [10]
    assert recorded("h200-1p3d", ["none"], root=tmp_path) == {"none": []}


def test_a_recorded_run_without_host_tier_or_known_saturation_can_be_read(tmp_path):
    run = records(source="hw", capacity={"prefill_cache_tokens": 1000, "decode_kv_tokens": 2000})
    run.save(tmp_path / "hw_runs" / "results" / "h100-1p1d" / "none" / "seed0")
    (found,) = recorded("h100-1p1d", ["none"], root=tmp_path)["none"]
    assert cache_tokens(found) == 1000 and capacity(found, "decode_kv_tokens") == 2000
    assert np.isnan(windows(found)["prefill_use"]).all()


def test_what_cannot_be_recorded_is_refused():
    with pytest.raises(ValueError, match="'gpu' is none of sim, hw"):
        trap_runs("gpu", ["none"], "smoke")
    for own in ({"trace": "x.jsonl"}, {"rate_per_min": 2.0}):
        with pytest.raises(ValueError, match="runs the published set-up only"):
            trap_runs("hw", ["none"], "smoke", **own)


@pytest.fixture
def trace(tmp_path, monkeypatch):
    """A trace of which one session is a token larger than an H100 instance's cache, below a repository of its own."""
    monkeypatch.setattr(scenarios, "repository_root", lambda: tmp_path)
    room = int(calibration("h100").prefill.cache_tokens.value)
    sessions = [
        Trajectory(id, (size,), (size,), (10,), (0.0,)) for id, size in (("fits", room - 10), ("huge", room - 9))
    ]
    (tmp_path / "traces").mkdir()
    save(tmp_path / "traces" / "mine.jsonl", sessions, "native")
    return tmp_path


def test_sessions_that_no_instance_holds_are_left_out_and_counted(trace):
    fitting = fitting_trace("traces/mine.jsonl", "h100")
    assert [t.id for t in load(fitting.path)] == ["fits"]
    assert fitting.words.startswith("1 of the 2 sessions exceed the 1,090,000 tokens of one instance")
    assert fitting.path.startswith(str(trace / "build" / "traces"))
    assert fitting_trace(trace / "traces" / "mine.jsonl", "h100") == fitting


def test_a_trace_that_is_missing_or_fits_nowhere_is_refused(trace):
    with pytest.raises(FileNotFoundError, match="neither in"):
        fitting_trace("traces/yours.jsonl", "h100")
    save(trace / "big.jsonl", [Trajectory("huge", (2_000_000,), (2_000_000,), (1,), (0.0,))], "native")
    with pytest.raises(ValueError, match="each of its 1 sessions exceeds"):
        fitting_trace("big.jsonl", "h100")


def test_figures_of_other_data_have_names_of_their_own():
    assert variant("fig04", "sim") == "fig04"
    assert variant("fig04", "hw") == "fig04-hw"
    assert variant("fig04", "sim", "some/set.jsonl", 2.5) == "fig04-set-2.5"


def test_bailian_arms_are_two_hours_at_the_rates_of_one_deployment():
    arms = workload_arms()
    assert [len(arms[name][0]) for name in ("terminal_bench", "swe_bench_pro")] == [216, 70]  # paper A §3.1, §7.1
    for name in ("bailian_coder", "bailian_a"):
        rates = np.array([len(times) / 120 for times in arms[name]])
        assert len(rates) == 30 and max(times[-1] for times in arms[name]) < 7200
        assert rates == pytest.approx(np.linspace(9, 20, 30), rel=0.2)


def test_what_the_workloads_were_fitted_to_is_known():
    assert {"A-wl-prompt-p50", "A-wl-bailian-burst"} <= fitted_claims()
    assert fitted_claims() | calibration("h100").fitted_claims() == fitted_claims("h100") <= set(load_claims())
