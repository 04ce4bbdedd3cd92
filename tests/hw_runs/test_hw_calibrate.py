"""Costs fitted to runs whose costs are known: simulated ones, and one made by hand."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from typer import Typer
from typer.testing import CliRunner

from artifact.control.profile import reference_hit_rate
from artifact.records.schema import Records
from artifact.workload.load import Load
from hw_runs.calibrate import calibrate, calibrate_runs, fit, hit_curve_fit, load_runs
from hw_runs.deployment import load_deployment
from hw_runs.fidelity import compared
from hw_runs.scrape import FILE, SCHEMA
from hw_runs.windowed import STEPS, TRANSFER_MS, TRANSFERS, busy, decode_windows, lone_prefills, overlap, share
from sim.calibration.model import any_calibration, calibration
from sim.fit import number
from sim.run import run
from sim.scenario import Deployment, Scenario


def save(records, folder, deployment, said=()):
    """As a recorded run of that deployment, with these rows of what its engines said."""
    records.meta.update(source="hw", deployment=load_deployment(deployment).model_dump(mode="json"))
    records.save(folder)
    columns = list(zip(*said, strict=True)) or [()] * len(SCHEMA)
    frame = pa.table([pa.array(c, pa.float64() if f.name in ("time_s", "value") else pa.string()).cast(f.type)
                      for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)  # fmt: skip
    pq.write_table(frame, folder / FILE)
    return folder


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """Three simulated runs of H100 1P1D from light load to a busy decode instance."""
    root = tmp_path_factory.mktemp("runs")
    transfers = [(t, "decode-1", TRANSFER_MS, 20.0 * t) for t in range(0, 2400, 60)]
    transfers += [(t, "decode-1", TRANSFERS, 2.0 * t) for t in range(0, 2400, 60)]
    for seed, (rate, outputs) in enumerate(((1.0, 1), (2.6, 1), (1.0, 3))):
        load = Load(rate_per_min=rate, duration_s=2400, output_scale=outputs)
        records = run(Scenario(deployment=Deployment(calibration="h100"), load=load, seed=seed))
        save(records, root / f"run{seed}", "h100-1p1d", transfers)
    return root


def step_s(engine, batch, context=36_000):
    decode = engine.decode
    each = decode.per_request_s.value + context * decode.per_context_token_s.value
    return decode.fixed_s.value + batch * each


def test_the_costs_behind_simulated_runs_are_found(simulated):
    found, truth = calibrate(load_runs([simulated])), calibration("h100")
    for name in ("prefill.fixed_s", "prefill.per_token_s", "prefill.per_token_position_s", "call_overhead_s"):
        assert number(found.calibration, name).value == pytest.approx(number(truth, name).value, rel=0.02), name
    fixed = number(found.calibration, "decode.fixed_s").value
    assert fixed == pytest.approx(number(truth, "decode.fixed_s").value, rel=0.1)
    for batch in (5, 10, 20, 40):  # requests and context tokens come together, so runs tell their sum better than each
        assert step_s(found.calibration, batch) == pytest.approx(step_s(truth, batch), rel=0.03), batch
    assert found.fits["decode"].rmse < 2e-3 and found.fits["prefill"].rmse < 1e-3
    assert found.calibration.transfer_s.value == pytest.approx(0.01)  # 20 ms over 2 transfers a second
    assert found.calibration.prefill.cache_tokens.value == 1_090_000


def test_the_file_says_where_its_numbers_come_from_and_the_simulator_takes_it(simulated, tmp_path):
    app, out = Typer(), tmp_path / "mine.yaml"
    app.command()(calibrate_runs)
    result = CliRunner().invoke(app, [str(simulated), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "RMSE" in result.output and "hit curve" in result.output
    data = yaml.safe_load(out.read_text())
    assert data["name"] == "h100-1p1d" and data["decode"]["fixed_s"]["origin"] == "fitted"
    assert "120 s windows" in data["decode"]["fixed_s"]["source"] and "run2" in data["decode"]["fixed_s"]["source"]
    assert data["prefill"]["chunk_tokens"]["origin"] != "fitted", "what no run tells keeps its origin"
    load = Load(rate_per_min=1.0, duration_s=600, warm_sessions=10)
    calls = [run(Scenario(deployment=Deployment(calibration=c), load=load)).calls.num_rows for c in (str(out), "h100")]
    assert calls[0] == pytest.approx(calls[1], rel=0.03)


COSTS = {"calls": 0.02, "steps": 0.004, "requests": 0.001, "contexts": 2e-7, "new": 1e-4, "positions": 1e-8}


def by_hand(count=80, seed=0):
    """Calls on a colocated engine that never meet, so that their steps are known: chunks of 512, then one a token."""
    rng, now, rows, steps, said = np.random.default_rng(seed), 0.0, [], 0, []
    for i in range(count):
        prompt, output = int(rng.integers(500, 9000)), int(rng.integers(2, 60))
        new = int(rng.integers(50, prompt))
        chunks, decoded = int(np.ceil(new / 512)), output - 1
        prefill = COSTS["calls"] + chunks * (COSTS["steps"] + COSTS["requests"])
        prefill += new * (COSTS["new"] + COSTS["positions"] * (prompt - new / 2))
        step = COSTS["steps"] + COSTS["requests"] + COSTS["contexts"] * (prompt + output / 2)
        first = now + prefill
        end = first + decoded * step
        row = (f"s{i}", 0, now, None, None, first, end, prompt, prompt - new, None, None, output, None, None, None)
        rows.append(row)
        said.append((now, "unified-0", STEPS, float(steps)))
        said.append((first, "unified-0", STEPS, float(steps + chunks)))
        steps += chunks + decoded
        said.append((end, "unified-0", STEPS, float(steps)))
        now = end + float(rng.exponential(0.5))
    capacity = {"prefill_cache_tokens": 80_000, "decode_kv_tokens": 80_000, "host_cache_tokens": 0}
    sample = (0.0, 1, 0, 0, 0, 40_000, *([0] * 4), *([None] * 12))
    samples = [sample, (now, *sample[1:])]
    return Records.from_rows(rows, [], samples, {"duration_s": now, "capacity": capacity}), said


def test_the_costs_of_a_colocated_engine_are_found(tmp_path):
    records, said = by_hand()
    folder = save(records, tmp_path / "a", "cpu-vllm", said)
    found = calibrate(load_runs([folder]), window_s=5.0)
    values = found.fits["step"].values
    # of calls that never meet, a step and a request in it are one
    assert values["steps"] + values["requests"] == pytest.approx(COSTS["steps"] + COSTS["requests"], rel=0.02)
    for name in ("calls", "contexts", "new", "positions"):
        assert values[name] == pytest.approx(COSTS[name], rel=0.05), name
    made = found.calibration
    assert made.kind == "colocated" and made.scheduler == "vllm"
    assert (made.pool_tokens.value, made.chunk_tokens.value, made.max_running.value) == (80_000, 512, 64)
    path = tmp_path / "made.yaml"
    path.write_text(yaml.safe_dump(made.model_dump(mode="json")))
    assert any_calibration(str(path)) == made


def test_a_fit_needs_rows_and_has_no_negative_costs():
    x = np.array([1.0, 2.0, 3.0, 4.0])
    found = fit({"one": np.ones(4), "x": x}, 3 - 0.5 * x, "s")
    assert found.values["x"] == 0.0 and found.values["one"] == pytest.approx(1.75)
    assert found.rmse == pytest.approx(np.std(0.5 * x))
    assert found.words() == "4 rows, RMSE 559 ms"
    with pytest.raises(ValueError, match="1 rows for one, x: record more runs"):
        fit({"one": np.ones(1), "x": np.ones(1)}, np.ones(1), "s")


def test_windows_by_hand():
    start, end, edges = pd.Series([0.0, 3.0, 4.0, 9.0]), pd.Series([2.0, 5.0, 6.0, 9.0]), np.array([0.0, 5.0, 10.0])
    assert overlap(start, end, edges).tolist() == [[2, 2, 1, 0], [0, 0, 1, 0]]
    assert share(start, end, edges).tolist() == [[1, 1, 0.5, 0], [0, 0, 0.5, 1]]
    assert busy(start, end, edges).tolist() == [4, 1]
    assert busy(start[::-1], end[::-1], edges).tolist() == [4, 1]


def handmade(rows, samples=(), **meta):
    full = [(f"s{i}", 0, r, None, None, f, e, p, c, None, None, o, None, None, None) for i, (r, f, e, p, c, o) in rows]
    capacity = {"prefill_cache_tokens": 1000, "host_cache_tokens": 0, "decode_kv_tokens": 1000}
    return Records.from_rows(full, [], samples, {"duration_s": 10.0, "capacity": capacity, **meta})


def test_only_prefills_that_meet_no_other_are_alone():
    calls = [(0, 1, 2, 100, 50, 2), (0.5, 1.5, 2, 100, 0, 2), (3, 4, 5, 100, 40, 2), (4, 4.5, 5, 200, 0, 2)]
    alone = lone_prefills(handmade(list(enumerate(calls))))
    assert alone[["seconds", "new", "position"]].to_numpy().tolist() == [[1.0, 60, 70], [0.5, 200, 100]]


def test_decode_windows_by_hand():
    """Two calls decode for all of 5 s at 0.5 s and 1 s a token: 10 and 5 tokens, so 10 s over 15 tokens."""
    run = handmade(list(enumerate([(0, 0, 5, 100, 0, 11), (0, 0, 5, 200, 0, 6)])))
    (row,) = decode_windows(run, 5.0, instances=1).itertuples()
    assert (row.itl_s, row.batch, row.tokens) == (pytest.approx(10 / 15), 2.0, 15)
    assert row.context == 100 + 11 / 2 + 200 + 6 / 2
    (half,) = decode_windows(run, 5.0, instances=2).itertuples()
    assert half.batch == 1.5, "itself, and an even chance of the other"


def test_the_hit_curve_of_windows_is_aligned(tmp_path):
    """Ten windows whose hit rates lie on the reference curve at κ = 0.7."""
    kappa, rows, samples = 0.7, [], []
    for i in range(20):
        w = 0.2 * (i + 1)
        cached = round(100_000 * float(reference_hit_rate(np.array(w / kappa))))
        rows.append((i, (10.0 * i, 10.0 * i + 5, 10.0 * i + 6, 100_000, cached, 2)))
        samples.append((10.0 * i + 1, 1, 0, 0, 0, round(1000 * w), *([0] * 4), *([None] * 12)))
    found = hit_curve_fit([(tmp_path, handmade(rows, samples, duration_s=200.0))], 10.0)
    assert found is not None and found.kappa == pytest.approx(kappa, rel=0.05) and found.rms_error < 0.02


def test_what_cannot_be_fitted_is_named(tmp_path, simulated):
    with pytest.raises(ValueError, match="no recorded run in"):
        load_runs([tmp_path])
    records = Records.load(simulated / "run0")
    records.meta["source"] = "sim"
    records.save(tmp_path / "made-up")
    with pytest.raises(ValueError, match="not recorded on an engine"):
        load_runs([tmp_path])
    records.meta.update(source="hw", deployment={"name": "another"})
    records.save(tmp_path / "made-up")
    with pytest.raises(ValueError, match="runs of another, h100-1p1d: a calibration is of one deployment"):
        load_runs([tmp_path, simulated])
    run, _ = by_hand(5)
    save(run, Path(tmp_path / "colocated"), "cpu-vllm")
    with pytest.raises(ValueError, match="which a colocated engine's fit needs"):
        calibrate(load_runs([tmp_path / "colocated"]), 5.0)


def test_a_calibration_is_compared_with_what_it_was_fitted_to_and_with_others(simulated, tmp_path):
    """On runs of the simulator itself, the comparison is that of a run with its twin from nearly the same costs."""
    app = Typer()
    app.command()(calibrate_runs)
    words = [str(simulated / "run0"), str(simulated / "run1"), "--out", str(tmp_path / "c.yaml")]
    result = CliRunner().invoke(app, [*words, "--held-out", str(simulated / "run2")])
    assert result.exit_code == 0, result.output
    assert "calibration runs: hit rate off by" in result.output and "end state right in 1 of 1" in result.output


def test_the_truth_predicts_itself(simulated):
    """With the very costs, the same calls come out; only the host's own file of the calibration differs."""
    measured = Records.load(simulated / "run1")
    row = compared(simulated / "run1", measured, calibration("h100"))
    assert (row.hit, row.calls, row.goodput, row.end) == (row.hit_sim, row.calls_sim, row.goodput_sim, row.end_sim)
    assert row.calls > 1000 and row.end == "healthy"
