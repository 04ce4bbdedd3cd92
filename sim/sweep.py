"""Many scenarios on many processes, each run once and kept."""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from artifact.records.schema import Records
from artifact.records.store import RunStore
from artifact.workload.load import Load
from sim.engine.kinds import calibration_of
from sim.run import run
from sim.scenario import Scenario

DETERMINING_PACKAGES = ("sim", "artifact.control", "artifact.baselines", "artifact.workload", "artifact.records")
"""Source whose change makes a kept run stale."""


def run_all(
    scenarios: Sequence[Scenario],
    store: Path,
    workers: int | None = None,
    scheduler: str | None = None,
    label: str = "runs",
) -> list[Records]:
    """The records of every scenario, in order; those already in the store are not run again.

    `workers`: processes (default: all cores). `scheduler`: address of a Dask cluster that shares the store's folder.
    Interrupted sweeps resume, since every finished run is kept at once.
    """
    runs = RunStore(store)
    keys = [RunStore.key(determinants(s)) for s in scenarios]
    missing = {key: s for key, s in zip(keys, scenarios, strict=True) if not runs.path(key).is_dir()}
    if missing:
        in_workers(partial(_run_and_keep, store), missing.items(), workers, scheduler, label)
    return [Records.load(runs.path(key)) for key in keys]


def determinants(scenario: Scenario) -> dict[str, Any]:
    """Everything that decides a run's bytes."""
    return {
        "scenario": scenario.model_dump(mode="json"),
        "calibration": calibration_of(scenario.deployment).model_dump(mode="json"),
        "traces": _traces(scenario.load),
        "code": code_version(),
    }


@cache
def code_version(packages: Sequence[str] = DETERMINING_PACKAGES) -> str:
    """Hash of the source of packages, of those that decide a run by default."""
    digest = hashlib.sha256()
    for package in packages:
        root = Path(str(files(package)))
        _add(digest, root, (p for p in root.rglob("*") if p.suffix in (".py", ".jsonl")))
    return digest.hexdigest()[:16]


def _traces(load: Load) -> str | None:
    """Hash of the trace files that a run reads, or folders of them; a synthesised workload is code."""
    digest = hashlib.sha256()
    given = [Path(name) for name in (load.workload, load.arrivals_path) if name is not None and Path(name).exists()]
    for root in given:
        _add(digest, root, (p for p in (root, *root.rglob("*")) if p.is_file()))
    return digest.hexdigest()[:16] if given else None


def _add(digest: "hashlib._Hash", root: Path, paths: Iterable[Path]) -> None:
    for path in sorted(paths):
        digest.update(str(path.relative_to(root)).encode())
        digest.update(path.read_bytes())


def _run_and_keep(store: Path, key: str, scenario: Scenario) -> None:
    RunStore(store).put(key, run(scenario))


def in_workers(
    work: Callable[..., None],
    jobs: Iterable[tuple[Any, ...]],
    workers: int | None,
    scheduler: str | None,
    label: str,
) -> None:
    """`work(*job)` for every job on the processes of `open_executor`, with a progress bar. Raises what a job raises."""
    with open_executor(workers, scheduler) as executor:
        # the first submission forks the workers: before the progress bar starts its thread
        futures = [executor.submit(work, *job) for job in jobs]
        with progress_bar() as progress:
            for future in progress.track(as_completed(futures), total=len(futures), description=label):
                future.result()


@contextmanager
def open_executor(workers: int | None, scheduler: str | None) -> Iterator[Executor]:
    """Processes of this machine (`workers`, default: all cores), or a Dask cluster's at the address `scheduler`."""
    if scheduler:
        from distributed import Client

        with Client(scheduler) as client:
            yield client.get_executor()
    else:
        with ProcessPoolExecutor(workers or os.cpu_count()) as pool:
            yield pool


def progress_bar() -> Progress:
    return Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
