"""The runs that figures share, as scenarios by arm: simulated or loaded, whatever the figure's source."""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from artifact.records.schema import Records
from artifact.reproduce.paths import check_source, repository_root
from artifact.workload.arrivals import PATTERN_S, RATE_EXCESS, base_stream
from artifact.workload.catalog import workload
from artifact.workload.load import Load, ShortBurst, Surge

if TYPE_CHECKING:
    from sim.scenario import Scenario

MINUTE = 60.0
TRIGGER = {"start_s": 15 * MINUTE, "end_s": 25 * MINUTE}
TRAP_RATE_PER_MIN = 3.3
TRAP_WARM_SESSIONS = 42
TRAP_DURATION_S = 105 * MINUTE
"""The time axes of paper A's Figures 4-6 end a little past minute 100."""
SHORT_UNLOADED_S = 87.0
"""The burst's sessions end within five minutes on a healthy, loaded engine (paper A §3.3), where calls take about three
times as long as on an idle one. How short they are is not published: chosen with H100's calibration, by A-kill-*."""

TRAP_DEPLOYMENT = "h100-1p1d"
"""Folder of that deployment's real runs below `hw_runs/results`."""
BAILIAN_SEEDS = 30
BAILIAN_RATES_PER_MIN = (9.0, 20.0)
"""Our reading of "a single deployment's rate" (paper A §4.1): what H200 1P3D is offered in §7.4."""

Arms = Mapping[str, "Sequence[Scenario]"]
Runs = dict[str, list[Records]]


def trap_h100(
    seeds: Sequence[int],
    names: Sequence[str] | None = None,
    trace: str | None = None,
    rate_per_min: float = TRAP_RATE_PER_MIN,
    calibration: str = "h100",
) -> Arms:
    """Paper A §3.2-3.3: H100 1P1D, GPU-only, with and without surges and short-session bursts, by arm.

    `names` picks arms of `none`, `plus33`, `plus100`, `burst`, `burst_ended`. `trace` replaces the synthesised
    trajectories by a trace file's. The run starts from the published 42 sessions, or at another trace or rate from the
    steady population of that.
    """
    from sim.scenario import Deployment, EndGroup, Scenario

    deployment = Deployment(calibration=calibration, prefill=1, decode=1)
    published = trace is None and rate_per_min == TRAP_RATE_PER_MIN
    warm = TRAP_WARM_SESSIONS if published else None
    base = Load(rate_per_min=rate_per_min, duration_s=TRAP_DURATION_S, warm_sessions=warm, warm_start="cold")
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


def trap_runs(
    source: str,
    names: Sequence[str],
    profile: str,
    seeds: Iterable[int] | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    trace: str | None = None,
    rate_per_min: float = TRAP_RATE_PER_MIN,
) -> Runs:
    """The arms `names` of `trap_h100`, one `Records` a seed: simulated (source "sim", seeds as `seeds_for` gives
    them), or recorded on hardware ("hw", see `recorded`; what is missing is run where this machine can). Raises
    `ValueError` for another source, and for a trace or a rate of one's own with "hw"."""
    if source == "sim":
        from artifact.reproduce.notebook import seeds_for  # brings the drawing, slow to import

        arms = trap_h100(seeds_for(profile, seeds), names, trace, rate_per_min)
        return run_arms(arms, workers, scheduler, "runs of H100 1P1D")
    check_source(source)
    if trace is not None or rate_per_min != TRAP_RATE_PER_MIN:
        raise ValueError(
            "source 'hw' runs the published set-up only: leave trace and rate_per_min as they are, or use sim"
        )
    return on_hardware(TRAP_DEPLOYMENT, names, seeds)


def on_hardware(deployment: str, names: Sequence[str], seeds: Iterable[int] | None = None) -> Runs:
    """`recorded`, after what is missing has been run where this machine has the engines and GPUs for it."""
    from hw_runs.missing import record_missing

    given = tuple(seeds) if seeds is not None else None
    record_missing(deployment, names, given)
    return recorded(deployment, names, given)


def recorded(
    deployment: str,
    names: Sequence[str],
    seeds: Iterable[int] | None = None,
    root: Path | None = None,
    shelf: str = "results",
) -> Runs:
    """Real runs, from `hw_runs/<shelf>/<deployment>/<arm>/seed<k>/` (the tables of `Records.save`). The shelf is
    `results`, of this machine, or `recorded`, what comes with the artifact.

    The seeds are those that every arm with any run has, so that arms stay paired, of `seeds` only if given. An arm
    without a run is an empty list."""
    folder = (root or repository_root()) / "hw_runs" / shelf / deployment
    found = {name: _by_seed(folder / name) for name in names}
    wanted = [set(paths) for paths in found.values() if paths] + ([set(seeds)] if seeds is not None else [])
    common = sorted(set.intersection(*wanted)) if wanted else []
    return {name: [_measured(Records.load(paths[k])) for k in common if paths] for name, paths in found.items()}


def _measured(run: Records) -> Records:
    """A real engine reports no host tier where it has none, and nothing reports its saturated throughput: what rests
    on that is then not observed."""
    unmeasured = {
        "prefill_cache_tokens": math.nan,
        "host_cache_tokens": 0,
        "decode_kv_tokens": math.nan,
        "saturated_prefill_tokens_per_s": math.nan,
    }
    return replace(run, meta={**run.meta, "capacity": unmeasured | run.meta.get("capacity", {})})


def _by_seed(folder: Path) -> dict[int, Path]:
    numbered = {path.name.removeprefix("seed"): path for path in folder.glob("seed*")}
    return {int(number): path for number, path in numbered.items() if number.isdecimal()}


def variant(figure: str, source: str, trace: str | None = None, rate_per_min: float = TRAP_RATE_PER_MIN) -> str:
    """Name of a figure from other data than the published set-up simulated, so that it does not replace that one."""
    rate = "" if rate_per_min == TRAP_RATE_PER_MIN else f"{rate_per_min:g}"
    return "-".join(filter(None, [figure, "" if source == "sim" else source, trace and Path(trace).stem, rate]))


class Fitting(NamedTuple):
    """A trace made to fit: the file to give to a `Load`, and what was left out of it, in words."""

    path: str
    words: str


def fitting_trace(trace: str | Path, calibration_name: str) -> Fitting:
    """The sessions of a trace file that one instance of the calibration can hold, as a file below `build/traces`.

    A larger one would wait for memory for ever. A relative `trace` is looked for in the current folder, then below the
    repository root. Raises `FileNotFoundError`, what `artifact.workload.formats.load` raises, and `ValueError` when no
    session fits."""
    from artifact.workload.formats import load, save
    from sim.calibration.model import calibration

    path = next((p for p in (Path(trace), repository_root() / trace) if p.exists()), None)
    if path is None:
        raise FileNotFoundError(f"trace {str(trace)!r}: neither in {Path.cwd()} nor below {repository_root()}")
    room = min(calibration(calibration_name).context_limits().values())
    loaded = load(path)
    kept = [t for t in loaded if t.peak_tokens <= room]
    if not kept:
        raise ValueError(f"{path}: each of its {len(loaded)} sessions exceeds the {room:.0f} tokens of one instance")
    digest = hashlib.sha256(repr(kept).encode()).hexdigest()[:12]
    target = repository_root() / "build" / "traces" / f"{path.stem}-{digest}.jsonl"
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_suffix(".tmp")
        save(draft, kept, "native")
        draft.replace(target)
    left_out = f"{len(loaded) - len(kept)} of the {len(loaded)} sessions exceed the {room:,.0f} tokens of one instance"
    notes = "".join(f"; {note}" for note in loaded.notes)
    return Fitting(str(target), f"{left_out} and are left out{notes}")


def workload_arms() -> dict[str, list[Any]]:
    """What the claims about workloads look at (paper A §3.1, §4.1, §7.1): the two synthesised sets, and of each
    Bailian stand-in two hours of arrivals for every one of 30 seeds, thinned to rates spread over 9-20 a minute."""
    rates = np.linspace(*BAILIAN_RATES_PER_MIN, BAILIAN_SEEDS).tolist()
    return {
        "terminal_bench": [workload("terminal-bench")],
        "swe_bench_pro": [workload("swe-bench-pro")],
        **{
            process.replace("-", "_"): [
                base_stream(_bailian(process, rate), seed).times_s for seed, rate in enumerate(rates)
            ]
            for process in RATE_EXCESS
        },
    }


def _bailian(process: str, rate_per_min: float) -> Load:
    return Load.model_validate({"process": process, "rate_per_min": rate_per_min, "duration_s": PATTERN_S})


def fitted_claims(*calibrations: str) -> set[str]:
    """Claims that the workloads or any of these calibrations were fitted to."""
    from artifact.workload.synth import FITTED_CLAIMS
    from artifact.workload.trajectory import OUTPUT_LIMIT_CLAIM
    from sim.calibration.model import calibration

    return {*FITTED_CLAIMS, OUTPUT_LIMIT_CLAIM}.union(*(calibration(name).fitted_claims() for name in calibrations))


def run_arms(arms: Arms, workers: int | None = None, scheduler: str | None = None, label: str = "runs") -> Runs:
    """Run every arm's scenarios on the simulator, or load what was run before. Returns one `Records` a scenario."""
    from sim.sweep import run_all

    flat = [scenario for scenarios in arms.values() for scenario in scenarios]
    done = iter(run_all(flat, run_folder(), workers, scheduler, label))
    return {name: [next(done) for _ in scenarios] for name, scenarios in arms.items()}


def run_folder() -> Path:
    """Where runs are kept and shared by all notebooks."""
    return repository_root() / "build" / "runs"
