"""Workloads by name: the synthesised ones, or a trace file of the user's."""

from functools import cache

from artifact.workload.synth_spec import SPECS
from artifact.workload.trajectory import Trajectory


def workload(name_or_path: str, seed: int = 0) -> list[Trajectory]:
    """The trajectories of a synthesised workload ("terminal-bench", "swe-bench-pro") or of a trace file.

    Loaded once a process. `seed` picks one of many synthesised sets and means nothing for a file. Raises what
    `artifact.workload.formats.load` raises for a file that is missing or malformed.
    """
    return list(_loaded(name_or_path, seed))


@cache
def _loaded(name_or_path: str, seed: int) -> tuple[Trajectory, ...]:
    if name_or_path in SPECS:
        from artifact.workload.synth import synthesise

        return tuple(synthesise(SPECS[name_or_path], seed))
    from artifact.workload.formats import load

    return tuple(load(name_or_path))
