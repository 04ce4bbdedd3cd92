"""What sweeps over policies keep of their runs: the session metrics of paper A §7.1 and a few more, not the records.

A sweep takes hundreds of runs. Each is simulated once, its summary kept under `build/outcomes` and shared by all
figures; a run whose records another figure has kept is not simulated again.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from artifact.metrics import (
    NotObserved,
    column,
    duration_s,
    evaluated,
    late_latency,
    over_itl_allowance,
    sampled,
    shed_fraction,
    slowdown,
    ttft,
)
from artifact.metrics.sessions import MAX_SLOWDOWN
from artifact.records.schema import Records
from artifact.records.store import RunStore
from artifact.reproduce.compare import done, good, over_itl, slowdown_p50, state, waits
from artifact.reproduce.outcomes import Resources, kept
from artifact.reproduce.paths import check_source
from artifact.reproduce.scenarios import MINUTE, run_folder
from artifact.reproduce.scenarios_policies import EVALUATED, Setting, Variant, arm, base_rates_per_min, scenario

if TYPE_CHECKING:
    from sim.scenario import Scenario

LAST_QUARTER_S = (60 * MINUTE, 75 * MINUTE)
"""Of the hour of overload in minutes 15-75 (paper A §7.9)."""
SECOND_HOUR_S = (60 * MINUTE, 120 * MINUTE)


@dataclass(frozen=True, slots=True)
class Summary:
    """One run. Session metrics are over the arrivals of the first 90 minutes; rates a hour; NaN: nothing observed."""

    goodput: float
    in_time: float
    """Sessions an hour that complete within the slowdown bound, whatever their inter-token latencies."""
    in_time_over_itl: float
    """Of those, the share over the ITL allowance."""
    state: str
    slowdown: float
    """Median of the completed."""
    completed: float
    shed: float
    """Share of the arrivals."""
    shed_sessions: int
    wait_p50_s: float
    wait_p90_s: float
    wait_p99_s: float
    """First-call wait (see `compare.waits`)."""
    over_itl: float
    ttft_p90_s: float
    """Of the calls of the same sessions, from their release to the engine; waits at the router are not in it."""
    second_hour_s: float
    """Median TTFT of the calls released in the second hour, a session's first call counted from its arrival."""
    late_ttft_s: float
    """L_late (paper A §4)."""
    active: float
    queue: float
    """Mean active sessions and calls in or before prefill, minutes 60-75."""
    elastic_calls: int
    """Calls prefilled on decode."""
    meta: dict[str, Any] = field(default_factory=dict, compare=False)


def summary(run: Records) -> Summary:
    """The summary of a run of 90 minutes or more; its `meta` is the run's. Raises `NotObserved` for a shorter one."""
    sessions = evaluated(run, EVALUATED)
    hours = (EVALUATED[1] - EVALUATED[0]) / 3600
    in_time = slowdown(sessions) <= MAX_SLOWDOWN
    wait = waits(run)
    return Summary(
        goodput=good(run),
        in_time=float(in_time.sum() / hours),
        in_time_over_itl=float(over_itl_allowance(sessions)[in_time].mean()) if in_time.any() else nan,
        state=state(run),
        slowdown=slowdown_p50(run),
        completed=done(run),
        shed=shed_fraction(run, EVALUATED),
        shed_sessions=int((column(run.sessions, "outcome") == "shed").sum()),
        wait_p50_s=float(wait.median()),
        wait_p90_s=float(wait.quantile(0.9)),
        wait_p99_s=float(wait.quantile(0.99)),
        over_itl=over_itl(run),
        ttft_p90_s=_ttft_p90(run, sessions["session_id"]),
        second_hour_s=_second_hour(run),
        late_ttft_s=late_latency(run),
        active=sampled(run, "active_sessions", LAST_QUARTER_S),
        queue=sampled(run, "prefill_queue_calls", LAST_QUARTER_S),
        elastic_calls=_elastic(run),
        meta=run.meta,
    )


def _ttft_p90(run: Records, sessions: pd.Series) -> float:
    values = ttft(run)[pd.Series(column(run.calls, "session_id")).isin(sessions).to_numpy()]
    return float(np.quantile(values, 0.9)) if len(values) else nan


def _second_hour(run: Records) -> float:
    released = column(run.calls, "released_s")
    arrival = pd.Series(column(run.sessions, "arrival_s"), index=column(run.sessions, "session_id"))
    first = (column(run.calls, "call_index") == 0) & (released > 0)
    parked = np.where(first, released - arrival.reindex(column(run.calls, "session_id")).to_numpy(), 0.0)
    inside = (released >= SECOND_HOUR_S[0]) & (released < min(SECOND_HOUR_S[1], duration_s(run)))
    return float(np.median((ttft(run) + parked)[inside])) if inside.any() else nan


def _elastic(run: Records) -> int:
    begun = ~np.isnan(column(run.calls, "scheduled_s"))
    return int((begun & np.isnan(column(run.calls, "prefill_instance").astype(float))).sum())


# Running -----------------------------------------------------------------------------------------------------------


class Cell(NamedTuple):
    """A policy in a setting."""

    setting: Setting
    variant: Variant


def cells(settings: Mapping[str, Setting], variants: Mapping[str, Variant] | Sequence[str]) -> dict[str, Cell]:
    """Every setting under every variant (or policy by name), as arms "<setting>/<variant>"."""
    named = variants if isinstance(variants, Mapping) else {name: Variant(name) for name in variants}
    return {
        arm(name, label): Cell(setting, variant)
        for name, setting in settings.items()
        for label, variant in named.items()
    }


Summaries = dict[str, list[Summary]]
"""Arm -> one summary a seed."""


def summary_runs(
    source: str, arms: Mapping[str, Cell], seeds: Iterable[int], resources: Resources, label: str
) -> Summaries:
    """The summaries of every arm, one a seed; none with source "hw", since nobody records hundreds of runs.

    Base loads are measured first (`base_rate_per_min`). Raises `ValueError` for another source."""
    check_source(source)
    if source == "hw":
        return {name: [] for name in arms}
    settings = list(dict.fromkeys(cell.setting for cell in arms.values()))
    rates = dict(zip(settings, base_rates_per_min(settings, *resources), strict=True))
    seeds = tuple(seeds)
    runs = {name: [scenario(*cell, rates[cell.setting], seed) for seed in seeds] for name, cell in arms.items()}
    found = iter(summaries([one for some in runs.values() for one in some], resources, label))
    return {name: [next(found) for _ in some] for name, some in runs.items()}


def summaries(scenarios: Sequence["Scenario"], resources: Resources, label: str) -> list[Summary]:
    """The summary of each scenario's run, in order."""
    from sim.sweep import determinants

    jobs = [({**determinants(one), "summary": _measures()}, one) for one in scenarios]
    found = kept(summarise, jobs, resources, label)
    return [Summary(**entry, meta=_meta(one)) for entry, one in zip(found, scenarios, strict=True)]


def summarise(one: "Scenario") -> dict[str, Any]:
    """Run a scenario, or load what was kept of it, and return its summary as a table without `meta`."""
    from sim.run import run
    from sim.sweep import determinants

    records = RunStore(run_folder()).get(RunStore.key(determinants(one))) or run(one)
    found = asdict(summary(records))
    del found["meta"]
    return found


def _meta(one: "Scenario") -> dict[str, Any]:
    return {"source": "sim", "scenario": one.model_dump(mode="json"), "seed": one.seed}


@cache
def _measures() -> str:
    """Hash of the source that turns runs into summaries, beside the metrics that `kept` looks after."""
    here = Path(__file__)
    return hashlib.sha256(b"".join(path.read_bytes() for path in (here, here.with_name("compare.py")))).hexdigest()[:16]


# Reading -----------------------------------------------------------------------------------------------------------


def frame(runs: Mapping[str, Sequence[Summary]]) -> pd.DataFrame:
    """One row a run: `setting`, `policy` (the arm's parts), `seed` and the fields of `Summary` but `meta`."""
    rows = []
    for name, seeds in runs.items():
        setting, policy = name.split("/")
        for one in seeds:
            row = {key: getattr(one, key) for key in Summary.__slots__ if key != "meta"}
            rows.append({"setting": setting, "policy": policy, "seed": one.meta.get("seed"), **row})
    return pd.DataFrame(rows)


def median(seeds: Sequence[Summary], name: str) -> float:
    """Over seeds. Raises `NotObserved` without one."""
    if not seeds:
        raise NotObserved(f"no runs to take {name} of")
    return float(np.median([getattr(one, name) for one in seeds]))
