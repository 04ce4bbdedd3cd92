"""Running paper B's experiments: which seeds an arm gets, and where its runs come from."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from artifact.metrics import collapsed_at
from artifact.reproduce.paths import check_profile, check_source
from artifact.reproduce.scenarios import Runs, recorded, run_arms
from artifact.reproduce.scenarios_colocated import SGLANG_8B, TRACES, VLLM_8B, VLLM_32B, experiments


def arms_of(*experiments_or_arms: str) -> list[str]:
    """The arms of these experiments, and those named in full. Raises `ValueError` for a name that is neither."""
    found = [name for name in experiments() if name in experiments_or_arms or name.split("/")[0] in experiments_or_arms]
    known = {*experiments(), *(name.split("/")[0] for name in experiments())}
    if unknown := set(experiments_or_arms) - known:
        raise ValueError(f"no arm or experiment {', '.join(sorted(unknown))}; there are {', '.join(experiments())}")
    return found


def colocated_runs(
    names: Sequence[str],
    source: str,
    profile: str,
    seeds: Iterable[int] | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
) -> Runs:
    """The runs of these arms, one `Records` a seed: simulated (source "sim"), or recorded on hardware ("hw", in
    `hw_runs/results/colocated/<experiment>/<arm>/seed<k>/`).

    Seeds count from 0: the published number of runs (full), a third of it but two at least (quick), or one (smoke). Of
    an experiment about getting out, the controlled arms run only the seeds that `none` shows collapsed when control
    begins, and smoke takes as many as quick, since not every seed is. Raises `ValueError` for another source or an
    unknown arm."""
    check_profile(profile)
    names = arms_of(*names)
    if source == "hw":
        return recorded("colocated", names, seeds)
    check_source(source)
    given = None if seeds is None else list(seeds)
    wanted = {name: given or seeds_of(name, profile) for name in names}
    late = {name for name in names if experiments()[name].collapsed_s is not None}
    first = {name: wanted[name] for name in names if name not in late}
    for name in late:
        first.setdefault(uncontrolled(name), wanted[name])
    done = _run(first, workers, scheduler)
    found = {**done, **_run({name: _collapsed_seeds(name, wanted[name], done) for name in late}, workers, scheduler)}
    return {name: found[name] for name in names}


def seeds_of(name: str, profile: str) -> list[int]:
    """Seeds of an arm at a profile."""
    published = experiments()[name].runs
    late = any(arm.collapsed_s for other, arm in experiments().items() if uncontrolled(other) == uncontrolled(name))
    few = max(2, published // 3)
    count = {"smoke": few if late else 1, "quick": few, "full": published}[profile]
    return list(range(min(count, published)))


def uncontrolled(name: str) -> str:
    """The arm without control of the same experiment."""
    return f"{name.split('/')[0]}/none"


def _collapsed_seeds(name: str, seeds: Sequence[int], done: Runs) -> list[int]:
    """Those of the seeds that were collapsed when the arm's control begins."""
    at_s = experiments()[name].collapsed_s or 0.0
    down = {run.meta["seed"] for run in done[uncontrolled(name)] if collapsed_at(run, at_s)}
    return [seed for seed in seeds if seed in down]


def _run(wanted: Mapping[str, Sequence[int]], workers: int | None, scheduler: str | None) -> Runs:
    arms = {name: [experiments()[name].make(seed) for seed in seeds] for name, seeds in wanted.items()}
    return run_arms(arms, workers, scheduler, "runs of the colocated engine")


def fitted_claims() -> set[str]:
    """Claims that paper B's workloads or the calibrations of its engines were fitted to."""
    from artifact.workload.paper_b import FITTED_CLAIMS
    from sim.calibration.model import any_calibration

    names = (VLLM_8B, VLLM_32B, SGLANG_8B)
    return set(FITTED_CLAIMS).union(*(any_calibration(name).fitted_claims() for name in names))


def trace_shapes() -> dict[str, list[Any]]:
    """What the claims about trace shapes look at: the replayed sessions, cut and whole, and TraceLab's, if the
    environment variable BASIN_TRACELAB names their file. Raises what `workload` raises for a file it cannot read."""
    from artifact.workload.catalog import workload

    path = os.environ.get("BASIN_TRACELAB")
    return {
        "trace_shapes": [workload(TRACES)],
        "trace_shapes_whole": [workload(f"{TRACES}-whole")],
        "tracelab": [workload(path) if path else []],
    }
