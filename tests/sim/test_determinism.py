"""The same scenario and seed give the same bytes, in any process."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from artifact.records.schema import TABLES
from artifact.workload.load import Load, ShortBurst, Surge
from sim.run import run
from sim.scenario import Deployment, EndGroup, Scenario
from sim.sweep import run_all

SURGE = Surge(start_s=60, end_s=180, factor=3)
SCENARIOS = [
    Scenario(
        deployment=Deployment(calibration="h200", prefill=2, decode=2, host_ratio=2, router="cache_aware"),
        load=Load(rate_per_min=20, duration_s=300, surges=(SURGE,), burst=ShortBurst(**burst)),
        end_group=EndGroup(at_s=200),
        seed=seed,
    )
    for seed in (0, 1)
    for burst in [{"start_s": 30, "end_s": 90, "rate_factor": 2}]
]

CHILD = """
import sys
from pathlib import Path
from sim.run import run
from sim.scenario import Scenario
run(Scenario.model_validate_json(sys.argv[1])).save(Path(sys.argv[2]))
"""


def digests(folders: Sequence[Path]) -> list[str]:
    """One hash a Parquet file."""
    files = [folder / f"{table}.parquet" for folder in folders for table in TABLES]
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]


def kept(store: Path) -> list[Path]:
    return sorted(folder for folder in store.glob("*/*") if folder.is_dir())


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("here")
    run(SCENARIOS[0]).save(folder)
    return folder


def test_same_bytes_twice_in_a_process(here: Path, tmp_path: Path) -> None:
    run(SCENARIOS[1])  # what ran in between leaves no trace
    run(SCENARIOS[0]).save(tmp_path)
    assert digests([tmp_path]) == digests([here])


@pytest.mark.parametrize("hash_seed", ["0", "12345"])
def test_same_bytes_in_other_processes_whatever_the_hash_seed(here: Path, tmp_path: Path, hash_seed: str) -> None:
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    subprocess.run(
        [sys.executable, "-c", CHILD, SCENARIOS[0].model_dump_json(), str(tmp_path)],
        env=environment,
        check=True,
        timeout=240,
    )
    assert digests([tmp_path]) == digests([here])


def test_another_seed_gives_other_bytes(here: Path, tmp_path: Path) -> None:
    run(SCENARIOS[1]).save(tmp_path)
    assert digests([tmp_path])[0] != digests([here])[0]


def test_same_bytes_for_one_worker_and_two(tmp_path: Path) -> None:
    one, two = tmp_path / "1", tmp_path / "2"
    run_all(SCENARIOS, one, workers=1)
    run_all(SCENARIOS, two, workers=2)
    assert [f.name for f in kept(one)] == [f.name for f in kept(two)]
    assert digests(kept(one)) == digests(kept(two))


@pytest.mark.slow
def test_same_bytes_on_a_cluster(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    one, cluster_store = tmp_path / "1", tmp_path / "cluster"
    run_all(SCENARIOS, one, workers=1)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, local_directory=str(tmp_path)
    ) as cluster:
        run_all(SCENARIOS, cluster_store, scheduler=cluster.scheduler_address)
    assert digests(kept(cluster_store)) == digests(kept(one))
