"""Speed of the simulator: against DynoSim on the same trace, on a two-hour run, and linear in calls.

    pytest -m bench -s tests/bench/bench_sim.py

DynoSim is sought in the interpreter that BASIN_DYNAMO_PYTHON names, else in `.venv-bench`, else in this one:

    python -m venv .venv-bench && .venv-bench/bin/pip install --no-deps ai-dynamo-runtime==1.6.1

Every run has a process of its own. Runs that are compared take turns, so that what else the machine does hits all
alike, and are compared in CPU seconds (user and system), which waiting for a busy core does not lengthen. CPU seconds
cover loading the trace to assembled results, not the interpreter's start and imports.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import workload_a

from artifact.workload.catalog import workload
from artifact.workload.formats.mooncake import BLOCK_TOKENS, write_plan
from artifact.workload.load import Load
from artifact.workload.plan import plan_sessions
from sim.calibration.model import calibration
from sim.engine.costs import Costs, unloaded_duration
from sim.scenario import Deployment, Scenario

pytestmark = pytest.mark.bench

HERE = Path(__file__).parent
REPEATS = 3
Row = dict[str, float]


def test_twice_the_calls_per_second_of_dynosim(tmp_path: Path) -> None:
    peer = _peer_python()
    native, mooncake = tmp_path / "a.jsonl", tmp_path / "a.mooncake.jsonl"
    workload_a.write(native)
    scenario = workload_a.scenario(native)
    costs = Costs.of(calibration(scenario.deployment.calibration))
    plans = plan_sessions(scenario.load, workload(str(native)), scenario.seed, unloaded_duration(costs))
    write_plan(mooncake, plans)
    sizes = (BLOCK_TOKENS, scenario.deployment.prefill, scenario.deployment.decode, costs.cache_tokens, costs.kv_tokens)
    commands = {"this simulator": _ours(tmp_path, scenario)} | {
        f"DynoSim {router}": [peer, HERE / "run_dynosim.py", mooncake, router, *sizes]
        for router in ("round_robin", "kv_router")
    }
    rows = _in_turns(commands)
    _show("Workload A, 2P2D", rows)
    for name, row in rows.items():
        assert row["calls"] == workload_a.SESSIONS * workload_a.CALLS, name
        assert row["prompt_tokens"] == rows["this simulator"]["prompt_tokens"], name
    fastest = min(row["cpu_s"] for name, row in rows.items() if name != "this simulator")
    assert fastest / rows["this simulator"]["cpu_s"] >= 2


def test_two_hours_of_1p3d_in_two_and_a_half_seconds(tmp_path: Path) -> None:
    deployment = Deployment(calibration="h200", prefill=1, decode=3, host_ratio=2)
    scenario = Scenario(deployment=deployment, load=Load(rate_per_min=15, duration_s=7200))
    rows = _in_turns({"two hours of 1P3D": _ours(tmp_path, scenario)}, best=True)
    _show("H200 1P3D, host x2, 15 sessions/min, best of the runs", rows)
    [row] = rows.values()
    assert row["calls"] > 55_000
    assert row["cpu_s"] * 60_000 / row["calls"] <= 2.5


def test_cost_is_linear_in_calls(tmp_path: Path) -> None:
    """Four times the sessions over four times the time cost four times as much; a quadratic cost would be 16 times."""
    commands = {}
    for factor in (1, 4):
        folder = tmp_path / str(factor)
        folder.mkdir()
        trace, sessions, arrivals_s = folder / "a.jsonl", factor * 400, factor * 960.0
        workload_a.write(trace, sessions, arrivals_s)
        commands[f"{factor}x"] = _ours(folder, workload_a.scenario(trace, sessions, arrivals_s))
    rows = _in_turns(commands)
    _show("Workload A, a part of it", rows)
    assert rows["4x"]["calls"] == 4 * rows["1x"]["calls"]
    assert rows["4x"]["cpu_s"] / rows["1x"]["cpu_s"] < 6


def _ours(folder: Path, scenario: Scenario) -> list[Any]:
    path = folder / "scenario.json"
    path.write_text(scenario.model_dump_json())
    return [sys.executable, HERE / "run_ours.py", path]


def _peer_python() -> str:
    beside = HERE.parents[1] / ".venv-bench" / "bin" / "python"
    python = os.environ.get("BASIN_DYNAMO_PYTHON") or (str(beside) if beside.exists() else sys.executable)
    if subprocess.run([python, "-c", "import dynamo._core"], capture_output=True).returncode:
        pytest.skip(f"{python} has no ai-dynamo-runtime: see the top of {Path(__file__).name}")
    return python


def _in_turns(commands: Mapping[str, Sequence[Any]], best: bool = False) -> dict[str, Row]:
    """Run every command `REPEATS` times, one after the other; the median of each number, or the best run's row."""
    runs: dict[str, list[Row]] = {name: [] for name in commands}
    for _ in range(REPEATS):
        for name, command in commands.items():
            runs[name].append(_run(command))
    if best:
        return {name: min(rows, key=lambda row: row["cpu_s"]) for name, rows in runs.items()}
    return {name: {key: statistics.median(row[key] for row in rows) for key in rows[0]} for name, rows in runs.items()}


def _run(command: Sequence[Any]) -> Row:
    quiet = os.environ | {"DYN_LOG": "error"}  # a line for every routed call would cost DynoSim time
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=quiet)
    assert done.returncode == 0, done.stderr
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


def _show(title: str, rows: Mapping[str, Row]) -> None:
    first = next(iter(rows.values()))
    print(f"\n{title}")
    for name, row in rows.items():
        print(
            f"  {name:22} {row['calls']:7.0f} calls  {row['cpu_s']:6.2f} CPU s  {row['wall_s']:6.2f} s  "
            f"{row['calls'] / row['cpu_s']:8.0f} calls/CPU s  ratio {row['cpu_s'] / first['cpu_s']:5.2f} CPU "
            f"{row['wall_s'] / first['wall_s']:5.2f} wall  hit {row['hit']:.3f}"
        )
