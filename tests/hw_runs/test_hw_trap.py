"""The trap's arms as data, and what is read from its runs; the real thing is marked `engine`."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from artifact.records.schema import Records
from artifact.workload.plan import plan_sessions
from hw_runs.experiment import results_root, shipped_root
from hw_runs.laptop import trajectories
from hw_runs.scrape import CPU_SECONDS, FILE, SCHEMA
from hw_runs.speed import Speed
from hw_runs.trap import (
    ARMS,
    BURST_S,
    CONTROL_S,
    CONTROLS,
    FOLDER,
    SHORT_S,
    Size,
    TooSlow,
    caution,
    run_trap,
    trap_scenario,
)
from hw_runs.trap_view import (
    back_s,
    collapsed_s,
    figure_signals,
    figure_trap,
    findings,
    folder_of,
    leads,
    outcome,
    outcomes,
    signal_findings,
    trap_runs,
)

POOL = 80_000
SIZE = Size(1.0, POOL)
FAST = Speed(0.05, 1e-4, 3e-8, 0.0)


def test_a_slower_machine_gets_fewer_sessions_and_a_smaller_pool():
    reference = Size.of(FAST, POOL)  # 0.05 + 3,500 x (1e-4 + 1,750 x 3e-8) = 0.58 s for 0.55: alike
    assert reference.factor == 1.0 and reference.pool_tokens == POOL
    slower = Size.of(replace(FAST, token_s=1.4e-4), POOL)  # 0.72 s
    assert slower.factor == 0.8 and slower.pool_tokens == 64_000
    half = Size.of(replace(FAST, call_s=0.1, token_s=2e-4, position_s=6e-8), POOL)
    assert half.factor == 0.5
    rates = [trap_scenario("burst", size, 0).load.rate_per_min for size in (SIZE, half)]
    assert rates[1] == pytest.approx(0.5 * rates[0])
    with pytest.raises(TooSlow, match=r"3500 tokens takes 2\.\d+ s to compute; needed are 1\.22 s"):
        Size.of(replace(FAST, token_s=6e-4), POOL)


@pytest.mark.parametrize("seed", range(4))
def test_all_arms_are_offered_the_same_base_and_burst(seed):
    sessions, base, surges = trajectories("laptop"), set(), set()
    for name in ARMS:
        scenario = trap_scenario(name, SIZE, seed)
        planned = plan_sessions(scenario.load, sessions, seed, FAST.unloaded())
        base.add(tuple((p.id, p.arrival_s) for p in planned if p.group == "base" and p.arrival_s < SHORT_S))
        surge = tuple(p.arrival_s for p in planned if p.group == "surge")
        if ARMS[name].burst:
            surges.add(surge)
            assert 10 <= len(surge) <= 32 and all(BURST_S[0] <= s < BURST_S[1] for s in surge)
        else:
            assert surge == ()
    assert len(base) == len(surges) == 1


def test_controls_come_late_and_everybody_is_free_before():
    for name, arm in ARMS.items():
        policy = trap_scenario(name, SIZE, 0).policy
        assert policy.from_s == (CONTROL_S if arm.control else 0.0)
        assert policy.name == (arm.control or "hicache")
    assert trap_scenario("admission-only", SIZE, 0).policy.parameters == {"admit": round(0.75 * POOL / 3500)}


def test_a_client_that_kept_time_badly_is_told_of():
    run = Records.from_rows([], [], [], {"late_s": 0.01})
    assert caution("twin", run) == []
    run.meta["late_s"] = 0.2
    assert caution("twin", run) == ["twin: the client woke 0.20 s late on average; repeat it when idle"]


def test_an_unknown_arm_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"no arm \['nothing'\]; there are twin"):
        run_trap(0, ["nothing"], root=tmp_path)


# What is read from runs -----------------------------------------------------------------------------------------------

HIT = {
    "twin": lambda t: 0.9,
    "burst": lambda t: 0.9 if t < 35 else 0.2,
    "large-pool": lambda t: 0.9,
    "budgeter": lambda t: 0.9 if t < 35 or t >= CONTROL_S + 20 else 0.2,
    "basin": lambda t: 0.9 if t < 35 or t >= CONTROL_S + 20 else 0.2,
    "basin-suspend": lambda t: 0.9 if t < 35 or t >= CONTROL_S + 10 else 0.2,
    "admission-only": lambda t: 0.9 if t < 35 else 0.2,
}


def record(arm, folder):
    """A call a second with the arm's hit rate; the queue is high after the collapse, KV usage the same everywhere."""
    end = ARMS[arm].duration_s
    times = np.arange(0.0, end)
    rows = [
        (f"s{i}", 0, t, None, None, t + 0.5, t + 0.6, 1000, round(1000 * HIT[arm](t)), None, None, 8, None, None, None)
        for i, t in enumerate(times.tolist())
    ]
    w = [POOL * (1.5 if arm != "twin" and t >= 25 else 0.5) for t in times]
    samples = [
        (t, 10, 0, 3, 1, round(x), 0, 0, 0, 0, 0, 0, 0, 0, None, None, None, None, None, False, False, False)
        for t, x in zip(times.tolist(), w, strict=True)
    ]
    pool = POOL * ARMS[arm].pool
    capacity = {"prefill_cache_tokens": pool, "decode_kv_tokens": pool, "host_cache_tokens": 0}
    meta = {"source": "hw", "seed": 0, "duration_s": end, "capacity": capacity, "scenario": {"seed": 0}}
    sessions = [("s0", "base", "t", 0.0, 0.0, 0.5, CONTROL_S + 1, "completed", 1, 1, 1008, 1.0, 7, None)]
    Records.from_rows(rows, sessions, samples, meta).save(folder)
    said = []
    for t in times.tolist():
        trapped = HIT[arm](t) < 0.5
        values = {"vllm:kv_cache_usage_perc": 0.2, "vllm:num_requests_waiting": 30 if trapped else 2, CPU_SECONDS: t}
        said += [(t, "unified-0", name, float(value)) for name, value in values.items()]
    columns = zip(*said, strict=True)
    arrays = [pa.array(c, pa.float64() if f.name in ("time_s", "value") else pa.string()).cast(f.type)
              for c, f in zip(columns, SCHEMA, strict=True)]  # fmt: skip
    pq.write_table(pa.table(arrays, schema=SCHEMA), folder / FILE)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("trap")
    for arm in ARMS:
        record(arm, results_root(root) / FOLDER / arm / "seed0")
    return root


def test_recorded_arms_are_not_run_again(root):
    run_trap(0, root=root, machine=None, say=pytest.fail)


def test_runs_that_come_with_the_artifact_are_shown_until_this_machine_has_its_own(root, tmp_path):
    assert trap_runs(root=tmp_path)["twin"] == []
    shutil.copytree(results_root(root) / FOLDER, shipped_root(tmp_path) / FOLDER)
    assert [run.meta["seed"] for run in trap_runs(root=tmp_path)["twin"]] == [0]
    assert folder_of("burst", 0, tmp_path).is_relative_to(shipped_root(tmp_path))
    shutil.copytree(results_root(root) / FOLDER / "twin" / "seed0", results_root(tmp_path) / FOLDER / "twin" / "seed3")
    runs = trap_runs(root=tmp_path)
    assert len(runs["twin"]) == 1 and runs["burst"] == [], "the two are never mixed"
    assert folder_of("twin", 3, tmp_path).is_dir()


def test_the_bars_by_hand(root):
    runs = trap_runs(root=root)
    by_arm = {arm: outcome(seeds[0], arm) for arm, seeds in runs.items()}
    assert {arm: o.met for arm, o in by_arm.items()} == {arm: None if arm == "admission-only" else True for arm in ARMS}
    # from second 75 on all calls hit; their first tokens are half a second later: windows 75-80 and 80-85 are healthy
    assert by_arm["budgeter"].back_s == 25.0 and by_arm["admission-only"].back_s == np.inf
    assert np.isnan(by_arm["twin"].back_s)
    assert by_arm["burst"].hit_last == pytest.approx(0.2) and by_arm["burst"].ttft_last_s == 0.5
    assert by_arm["burst"].calls_after == 60 and by_arm["burst"].completed == 1
    assert by_arm["burst"].waiting_at_door == 4
    assert collapsed_s(runs["burst"][0]) == 35.0 and collapsed_s(runs["twin"][0]) == np.inf
    assert back_s(runs["twin"][0]) == np.inf, "one healthy window is not two"
    assert len(outcomes(runs)) == len(ARMS)


def test_signals_are_measured_against_what_does_no_harm(root):
    found = {lead.signal: lead for lead in leads(trap_runs(root=root), root)}
    kv, queue, load, w = (found[n] for n in ("KV usage", "queue length", "utilisation of a core", "working set / pool"))
    assert kv.told_s == load.told_s == np.inf, "no higher than in the harmless runs"
    assert queue.told_s == 45.0 and queue.lead_s == -10.0, "two windows into the collapse"
    assert w.told_s == 35.0 and w.lead_s == 0.0 and w.harmless_max == pytest.approx(0.5, abs=0.01)


def test_pictures_and_words(root, monkeypatch):
    runs = trap_runs(root=root)
    assert set(figure_trap(runs)[1]["arm"]) == set(ARMS)
    assert set(figure_signals(runs, root)[1]["arm"]) == {"twin", "large-pool", "burst"}
    words = findings(runs)
    assert "budgeter late" in words and "healthy again after 25 s (1 of 1 within 60 s)" in words
    assert "healthy again after never (not expected to)" in words
    monkeypatch.setattr("hw_runs.trap_view.leads", lambda runs: leads(runs, root))
    assert "**KV usage** never rose above" in signal_findings(runs) and "10 s after the collapse" in signal_findings(
        runs
    )


@pytest.mark.engine
def test_a_real_engine_is_trapped_and_freed(tmp_path: Path):
    """The bars of one fresh seed, on this machine when it does nothing else (about 13 minutes)."""
    run_trap(7, root=tmp_path)
    table = outcomes(trap_runs([7], tmp_path)).set_index("arm")
    print(table)
    assert table["met"][["twin", "burst", "large-pool", "budgeter", "basin"]].all()
    assert set(CONTROLS) <= set(table.index)
