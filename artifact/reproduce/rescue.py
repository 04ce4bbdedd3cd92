"""A comparison that neither paper makes: every controller of both, switched on in the same trapped state, on a
prefill-decode deployment and on a colocated engine; and the same controllers where nothing is wrong.

Arms are named "<engine>/<policy>", and "<engine>-quiet/<policy>" for undisturbed runs under the policy from the start.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from artifact.metrics import (
    Interval,
    capacity,
    collapsed_at,
    duration_s,
    evaluated,
    gateway_waits,
    goodput,
    in_system_at,
    sampled,
    slowdown,
    turns,
)
from artifact.records.schema import Records
from artifact.reproduce.colocated import MINUTE, end_hit, recovery_min
from artifact.reproduce.paths import check_profile, check_source
from artifact.reproduce.scenarios import TRAP_RATE_PER_MIN, TRAP_WARM_SESSIONS, TRIGGER, Runs, recorded, run_arms
from artifact.reproduce.scenarios_colocated import (
    PAIRED_BURST_S,
    PARK_OVER_ADMIT,
    TRACES,
    UNKNOWN_OUTPUT,
    engine,
)
from artifact.workload.catalog import workload
from artifact.workload.load import Load, Surge

if TYPE_CHECKING:
    from sim.scenario import Deployment, PolicyChoice, Scenario

SYSTEMS = (
    "hicache", "concur", "thunderagent", "continuum", "crossflow", "composition", "basin", "basin-suspend",
    "budgeter", "session-cap", "adaptive-cap", "latency-aimd", "admission-only",
)  # fmt: skip
"""By the names of their policies: paper A's, Basin with suspension, paper B's. `hicache` controls nothing."""
NONE = "hicache"
SEEDS = {"smoke": 2, "quick": 4, "full": 10}
"""Not every seed is trapped."""
COHORT_S = 40 * MINUTE
"""Users are the sessions that arrive in so long after control begins, or after the same time of a quiet run."""
ADMISSION_SHARE = 16 / 18.5
"""Of what the pool holds: paper B's admission-only cap of 16 where N* = C/L is 18.5 (§4, §5)."""


Seeds = Mapping[str, Sequence[Records]]
"""Arm -> one run a seed."""


class Trapped(NamedTuple):
    """An engine, the load that traps it, and when control begins."""

    title: str
    deployment: "Deployment"
    load: Load
    control_s: float


@cache
def engines() -> Mapping[str, Trapped]:
    """Paper A's H100 1P1D after its ten-minute surge (§3.2), control from minute 40; paper B's 8B engine with sessions
    of unlike size after a five-minute burst of three times the arrivals, control from minute 25.

    Every system finds the prefill-decode engine reserving decode memory before prefill, as SGLang does: the state that
    they start from is the same."""
    from sim.scenario import Deployment

    pd_load = Load(
        rate_per_min=TRAP_RATE_PER_MIN,
        duration_s=120 * MINUTE,
        warm_sessions=TRAP_WARM_SESSIONS,
        surges=(Surge(**TRIGGER, factor=2),),
    )
    start, end = PAIRED_BURST_S
    traces = Load(
        workload=TRACES,
        rate_per_min=2.7,
        duration_s=90 * MINUTE,
        warm_sessions=0,
        surges=(Surge(start_s=start, end_s=end, factor=3),),
    )
    return {
        "pd": Trapped("H100 1P1D", Deployment(calibration="h100", reserve_at="arrival"), pd_load, 40 * MINUTE),
        "colocated": Trapped("Colocated 8B", engine(), traces, 25 * MINUTE),
    }


def rescue_runs(
    source: str,
    profile: str,
    seeds: Iterable[int] | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    systems: Sequence[str] = SYSTEMS,
) -> Runs:
    """The runs of every arm, simulated or recorded (`hw_runs/results/rescue/<engine>/<policy>/seed<k>/`). Seeds count
    from 0; only those are controlled that are trapped when control begins. Raises `ValueError` for another source."""
    names = [f"{name}{kind}/{system}" for name in engines() for kind in ("", "-quiet") for system in systems]
    if source == "hw":
        return recorded("rescue", names, seeds)
    check_source(source)
    wanted = list(seeds) if seeds is not None else list(range(SEEDS[check_profile(profile)]))
    free = {
        f"{name}{kind}/{NONE}": [(name, kind, NONE, seed) for seed in wanted]
        for name in engines()
        for kind in ("", "-quiet")
    }
    done = _run(free, workers, scheduler)
    trapped = {
        name: [run.meta["seed"] for run in done[f"{name}/{NONE}"] if collapsed_at(run, one.control_s)]
        for name, one in engines().items()
    }
    rest = {
        f"{name}{kind}/{system}": [(name, kind, system, seed) for seed in (wanted if kind else trapped[name])]
        for name in engines() for kind in ("", "-quiet") for system in systems if system != NONE
    }  # fmt: skip
    found = {**done, **_run(rest, workers, scheduler)}
    found |= {f"{n}/{NONE}": [run for run in found[f"{n}/{NONE}"] if run.meta["seed"] in trapped[n]] for n in engines()}
    return {name: found[name] for name in names}


def _run(arms: Mapping[str, Sequence[tuple[str, str, str, int]]], workers: int | None, scheduler: str | None) -> Runs:
    scenarios = {arm: [scenario(*which) for which in wanted] for arm, wanted in arms.items()}
    return run_arms(scenarios, workers, scheduler, "controllers in one trapped state")


def scenario(name: str, kind: str, system: str, seed: int) -> "Scenario":
    """One run of an engine: with its surge and the system from when control begins, or quiet and with it throughout."""
    from sim.scenario import Scenario

    one = engines()[name]
    load = one.load.model_copy(update={"surges": ()}) if kind else one.load
    policy = choice(name, system, 0.0 if kind else one.control_s)
    return Scenario(deployment=one.deployment, load=load, policy=policy, seed=seed)


def choice(name: str, system: str, from_s: float) -> "PolicyChoice":
    """The system as its paper sets it; caps on sessions are made to fit the engine, as paper B does (§5)."""
    from sim.scenario import PolicyChoice

    parameters: dict[str, Any] = {}
    if system in ("session-cap", "admission-only"):
        fits = sessions_that_fit(name)
        admit = math.floor(0.75 * fits)
        capped = {"admit": admit, "park": math.floor(admit * PARK_OVER_ADMIT)}
        parameters = capped if system == "session-cap" else {"admit": math.floor(ADMISSION_SHARE * fits)}
    return PolicyChoice(name=system, parameters=parameters, from_s=from_s)


@cache
def sessions_that_fit(name: str) -> float:
    """C over the mean demand of a turn, context plus output budget, on the undisturbed engine."""
    (run,) = run_arms({"quiet": [scenario(name, "-quiet", NONE, 0)]}, workers=1)["quiet"]
    return capacity(run, "prefill_cache_tokens") / (float(turns(run)["prompt_tokens"].mean()) + UNKNOWN_OUTPUT)


# What is compared --------------------------------------------------------------------------------------------------


def rescue_table(runs: Seeds) -> pd.DataFrame:
    """One row a run that control began in trapped: `engine`, `policy`, `seed`; `recovered_min` (paper B's definition)
    and `drained_min`, infinite where it does not happen; `hit_end`; and of the sessions arriving in the 40 minutes
    after control begins `goodput` (paper A's, an hour), `completed` (share), `held_p50_min` and `held_p90_min` (time at
    the gateway in all), and median slowdowns of the `small` and the `large` third of them by peak context."""
    rows = []
    for name, one in engines().items():
        usual = {run.meta["seed"]: _most_sessions(run) for run in runs[f"{name}-quiet/{NONE}"]}
        for arm, system in _systems(runs, name):
            for run in runs[arm]:
                drained = _drained_min(run, one.control_s, usual[run.meta["seed"]])
                row = {"engine": name, "policy": system, "seed": run.meta["seed"]}
                row |= {
                    "recovered_min": recovery_min(run, one.control_s),
                    "drained_min": drained,
                    "hit_end": end_hit(run),
                }
                rows.append({**row, **users(run, (one.control_s, one.control_s + COHORT_S))})
    return pd.DataFrame(rows)


def quiet_table(runs: Seeds) -> pd.DataFrame:
    """What a controller costs where nothing is wrong: one row an undisturbed run, its users those who arrive in the
    same 40 minutes, with `goodput`, `completed`, `held_p90_min`, median `slowdown`, and the mean number of `suspended`
    sessions. Loads are those of the trapped runs."""
    rows = []
    for name, one in engines().items():
        interval = (one.control_s, one.control_s + COHORT_S)
        for arm, system in _systems(runs, f"{name}-quiet"):
            for run in runs[arm]:
                row = {"engine": name, "policy": system, "seed": run.meta["seed"]}
                kept = {key: entry for key, entry in users(run, interval).items() if key in QUIET}
                suspended = sampled(run, "suspended_sessions", interval)
                slow = float(slowdown(evaluated(run, interval)).median())
                rows.append({**row, **kept, "slowdown": slow, "suspended": suspended})
    return pd.DataFrame(rows)


QUIET = ("goodput", "completed", "held_p90_min")


def users(run: Records, interval: Interval) -> dict[str, float]:
    """The columns of `rescue_table` about the sessions that arrive in the interval."""
    sessions = evaluated(run, interval)
    held = gateway_waits(run, gaps(run.meta["scenario"]["load"]["workload"])).reindex(sessions["session_id"]) / MINUTE
    slow = slowdown(sessions)
    small, large = sessions["peak_tokens"].quantile([1 / 3, 2 / 3])
    return {
        "goodput": goodput(run, interval),
        "completed": float((sessions["outcome"] == "completed").mean()),
        "held_p50_min": float(held.median()),
        "held_p90_min": float(held.quantile(0.9)),
        "slowdown_small": _median_slowdown(slow[sessions["peak_tokens"] <= small]),
        "slowdown_large": _median_slowdown(slow[sessions["peak_tokens"] > large]),
    }


@cache
def gaps(name: str) -> Mapping[str, tuple[float, ...]]:
    """Seconds before every call of a workload's sessions, by trajectory."""
    return {trajectory.id: trajectory.gap_before_s for trajectory in workload(name)}


def medians(table: pd.DataFrame, name: str | None = None) -> pd.DataFrame:
    """The median over seeds of every column, and the number of `seeds`: one row an engine and policy, or of one engine
    a row a policy."""
    groups = table.drop(columns="seed").groupby(["engine", "policy"], sort=False)
    found = groups.median().assign(seeds=groups.size()).reset_index()
    return found if name is None else found[found["engine"] == name].drop(columns="engine").set_index("policy")


def _systems(runs: Seeds, name: str) -> list[tuple[str, str]]:
    """Arms of an engine with the system of each."""
    return [(arm, arm.split("/")[1]) for arm in runs if arm.split("/")[0] == name]


def _most_sessions(run: Records) -> float:
    return float(in_system_at(run, np.arange(0.0, duration_s(run), MINUTE)).max())


def _drained_min(run: Records, control_s: float, usual: float) -> float:
    """Minutes from when control begins until no more sessions are in the system than the undisturbed twin ever has."""
    times = np.arange(control_s, duration_s(run), MINUTE)
    few = np.flatnonzero(in_system_at(run, times) <= usual)
    return float(times[few[0]] - control_s) / MINUTE if len(few) else np.inf


def _median_slowdown(values: pd.Series) -> float:
    """Those that have not completed are slower than all others; infinite if that is half of them."""
    return float(values.fillna(np.inf).median()) if len(values) else np.nan
