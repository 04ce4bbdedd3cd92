"""The runs that figures share, as scenarios by arm."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from artifact.records.schema import Records
from artifact.reproduce.paths import repository_root
from artifact.workload.load import Load, ShortBurst, Surge

if TYPE_CHECKING:
    from sim.scenario import Scenario

MINUTE = 60.0
TRIGGER = {"start_s": 15 * MINUTE, "end_s": 25 * MINUTE}
TRAP_RATE_PER_MIN = 3.3
TRAP_WARM_SESSIONS = 42
TRAP_DURATION_S = 105 * MINUTE
"""The time axes of paper A's Figures 4-6 end a little past minute 100."""
SHORT_UNLOADED_S = 80.0
"""The burst's sessions end within five minutes on a healthy, loaded engine (paper A §3.3). The healthy engine at
3.3 sessions/min has a median slowdown of 3.7, so they take at most 80 s on an idle one."""

Arms = Mapping[str, "Sequence[Scenario]"]


def trap_h100(seeds: Sequence[int], names: Sequence[str] | None = None, trace: str | None = None) -> Arms:
    """Paper A §3.2-3.3: H100 1P1D, GPU-only, with and without surges and short-session bursts, by arm.

    `names` picks arms of `none`, `plus33`, `plus100`, `burst`, `burst_ended`; `trace` replaces the synthesised
    trajectories by a trace file's.
    """
    from sim.scenario import Deployment, EndGroup, Scenario

    deployment = Deployment(calibration="h100", prefill=1, decode=1)
    base = Load(rate_per_min=TRAP_RATE_PER_MIN, duration_s=TRAP_DURATION_S, warm_sessions=TRAP_WARM_SESSIONS)
    if trace is not None:
        base = base.model_copy(update={"workload": trace})
    burst = ShortBurst(**TRIGGER, rate_factor=4, max_unloaded_s=SHORT_UNLOADED_S)
    loads: dict[str, tuple[Load, EndGroup | None]] = {
        "none": (base, None),
        "plus33": (base.model_copy(update={"surges": (Surge(**TRIGGER, factor=4 / 3),)}), None),
        "plus100": (base.model_copy(update={"surges": (Surge(**TRIGGER, factor=2),)}), None),
        "burst": (base.model_copy(update={"burst": burst}), None),
        "burst_ended": (base.model_copy(update={"burst": burst}), EndGroup(at_s=TRIGGER["end_s"], group="burst")),
    }
    return {
        name: [Scenario(deployment=deployment, load=load, end_group=end, seed=seed) for seed in seeds]
        for name, (load, end) in loads.items()
        if names is None or name in names
    }


def run_arms(
    arms: Arms, workers: int | None = None, scheduler: str | None = None, label: str = "runs"
) -> dict[str, list[Records]]:
    """Run every arm's scenarios on the simulator, or load what was run before. Returns one `Records` a scenario."""
    from sim.sweep import run_all

    flat = [scenario for scenarios in arms.values() for scenario in scenarios]
    done = iter(run_all(flat, run_folder(), workers, scheduler, label))
    return {name: [next(done) for _ in scenarios] for name, scenarios in arms.items()}


def run_folder() -> Path:
    """Where runs are kept and shared by all notebooks."""
    return repository_root() / "build" / "runs"
