"""Sweeps keep every finished run, resume, and do not reuse what has become stale."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from small_world import calibration_file, scenario, trajectory

import sim.sweep
from artifact.records.schema import Records
from artifact.workload.load import Load
from sim.scenario import Deployment, Scenario
from sim.sweep import code_version, determinants, run_all


def small(folder: Path, n: int = 2) -> list[Scenario]:
    """Scenarios that differ in their seeds only."""
    one = scenario(folder, [trajectory("t", (64, 96), output=9), trajectory("u", (100, 150))], arrivals_s=(0.0, 5.0))
    return [one.model_copy(update={"seed": seed}) for seed in range(n)]


def written(store: Path) -> dict[str, int]:
    """When each kept run was written."""
    return {folder.name: folder.stat().st_mtime_ns for folder in store.glob("*/*") if folder.suffix != ".tmp"}


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Scenario]]:
    """Run in this process, and list what is run."""
    ran: list[Scenario] = []
    run = sim.sweep.run

    def listed(scenario: Scenario) -> Records:
        ran.append(scenario)
        return run(scenario)

    monkeypatch.setattr(sim.sweep, "run", listed)
    monkeypatch.setattr(sim.sweep, "open_executor", lambda workers, scheduler: ThreadPoolExecutor(1))
    yield ran


def test_records_come_in_order_and_a_second_time_from_the_store(tmp_path: Path, in_process: list[Scenario]) -> None:
    scenarios = small(tmp_path, 3)
    first = run_all(scenarios, tmp_path / "store")
    assert [r.meta["seed"] for r in first] == [0, 1, 2]
    assert in_process == scenarios
    again = run_all(list(reversed(scenarios)), tmp_path / "store")
    assert [r.meta["seed"] for r in again] == [2, 1, 0]
    assert len(in_process) == 3


def test_a_scenario_given_twice_is_run_once(tmp_path: Path, in_process: list[Scenario]) -> None:
    [one] = small(tmp_path, 1)
    twice = run_all([one, one], tmp_path / "store")
    assert len(in_process) == 1
    assert twice[0].calls.equals(twice[1].calls)


def test_another_code_version_runs_anew(
    tmp_path: Path, in_process: list[Scenario], monkeypatch: pytest.MonkeyPatch
) -> None:
    scenarios = small(tmp_path, 1)
    run_all(scenarios, tmp_path / "store")
    monkeypatch.setattr(sim.sweep, "code_version", lambda: "another")
    run_all(scenarios, tmp_path / "store")
    assert in_process == scenarios * 2


def test_the_code_version_follows_source_and_shipped_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "sweep_test_package"
    package.mkdir()
    (package / "__init__.py").write_text("a = 1\n")
    (package / "data.jsonl").write_text("{}\n")
    monkeypatch.syspath_prepend(tmp_path)
    packages = ("sweep_test_package",)
    versions = [code_version.__wrapped__(packages)]
    (package / "notes.txt").write_text("not code")
    assert code_version.__wrapped__(packages) == versions[0]
    for name, text in (("__init__.py", "a = 2\n"), ("data.jsonl", "{} \n"), ("new.py", "")):
        (package / name).write_text(text)
        versions.append(code_version.__wrapped__(packages))
    assert len(set(versions)) == 4


def test_every_input_of_a_run_is_a_determinant(tmp_path: Path) -> None:
    [one] = small(tmp_path, 1)
    before = determinants(one)
    assert determinants(one.model_copy()) == before
    assert determinants(one.model_copy(update={"seed": 1})) != before
    for name in (one.load.workload, one.load.arrivals_path):
        path = Path(str(name))
        text = path.read_text()
        path.write_text(text + "\n")
        assert determinants(one) != before, path
        path.write_text(text)
        assert determinants(one) == before
    other = one.deployment.model_copy(update={"calibration": calibration_file(tmp_path, transfer_s=0.25)})
    changed = determinants(one.model_copy(update={"deployment": other}))
    assert changed["calibration"]["transfer_s"]["value"] == 0.25


def test_a_folder_of_traces_is_a_determinant(tmp_path: Path) -> None:
    [one] = small(tmp_path, 1)
    folder = tmp_path / "traces"
    folder.mkdir()
    load = one.load.model_copy(update={"workload": str(folder)})
    empty = determinants(one.model_copy(update={"load": load}))
    (folder / "a.jsonl").write_text("{}")
    assert determinants(one.model_copy(update={"load": load})) != empty


def test_a_failing_run_is_an_error_and_those_before_it_are_kept(tmp_path: Path, in_process: list[Scenario]) -> None:
    good, other = small(tmp_path, 2)
    bad = scenario(tmp_path, [trajectory("large", (990, 999), output=9)])
    with pytest.raises(ValueError, match="'large' reaches 1008 tokens"):
        run_all([good, bad, other], tmp_path / "store")
    assert len(written(tmp_path / "store")) == 2


SWEEP = """
import sys
from pathlib import Path
from sim.scenario import Scenario
from sim.sweep import run_all
run_all([Scenario.model_validate_json(line) for line in Path(sys.argv[1]).read_text().splitlines()],
        Path(sys.argv[2]), workers=1)
"""


def test_a_killed_sweep_resumes_where_it_was(tmp_path: Path) -> None:
    scenarios = [
        Scenario(deployment=Deployment(calibration="h100"), load=Load(rate_per_min=3, duration_s=300), seed=seed)
        for seed in range(20)
    ]
    listing, store = tmp_path / "scenarios", tmp_path / "store"
    listing.write_text("\n".join(s.model_dump_json() for s in scenarios))
    child = subprocess.Popen(
        [sys.executable, "-c", SWEEP, str(listing), str(store)], start_new_session=True, stdout=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 120
        while not written(store) and child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    before = written(store)
    assert 1 <= len(before) < len(scenarios), "killed too early or too late"
    records = run_all(scenarios, store, workers=1)
    after = written(store)
    assert [r.meta["seed"] for r in records] == list(range(20))
    assert len(after) == len(scenarios)
    assert {key: after[key] for key in before} == before  # not written again
