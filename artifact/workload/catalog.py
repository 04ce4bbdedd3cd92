"""Workloads by name: the synthesised ones, paper B's, or a trace file of the user's."""

from functools import cache
from pathlib import Path

from artifact.workload.paper_b import WORKLOADS
from artifact.workload.synth_spec import SPECS, WorkloadSpec
from artifact.workload.trajectory import Trajectory

DATA = Path(__file__).parent / "data"


def shipped(spec: WorkloadSpec) -> Path:
    """The file that holds seed 0 of a synthesised workload, in the native format."""
    return DATA / f"{spec.name}.jsonl"


def workload(name_or_path: str, seed: int = 0) -> list[Trajectory]:
    """The trajectories of a synthesised workload ("terminal-bench", "swe-bench-pro"), of one of paper B's
    (`artifact.workload.paper_b`) or of a trace file.

    Loaded once a process. `seed` picks one of many synthesised sets and means nothing for a file. Raises what
    `artifact.workload.formats.load` raises for a file that is missing or malformed.
    """
    return list(_loaded(name_or_path, seed))


@cache
def _loaded(name_or_path: str, seed: int) -> tuple[Trajectory, ...]:
    from artifact.workload.formats import load

    if name_or_path in WORKLOADS:
        return tuple(WORKLOADS[name_or_path](seed))
    spec = SPECS.get(name_or_path)
    if spec and seed:
        from artifact.workload.synth import synthesise

        return tuple(synthesise(spec, seed))
    return load(shipped(spec) if spec else name_or_path).trajectories
