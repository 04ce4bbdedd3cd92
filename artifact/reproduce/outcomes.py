"""What maps keep of their runs: a few numbers a run instead of its records, and searches over the offered load.

A map takes hundreds of runs. Each is simulated once and its outcome kept under `build/outcomes` by what determines it,
so that an interrupted map or search goes on where it was and figures share what they have in common.
"""

import hashlib
import json
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from artifact.metrics import column, duration_s, hit_rate, late_latency, ttft, windows
from artifact.metrics.windows import LATE_S
from artifact.records.schema import Records
from artifact.records.store import RunStore
from artifact.reproduce.paths import repository_root

if TYPE_CHECKING:
    from sim.scenario import Scenario

COLLAPSED_HIT = 0.80
"""Below this hit rate reuse has gone over the cliff: in Fig. 6b it declines to 0.80 and then drops (paper A §3.4)."""
FULL_MEMORY = 0.97
"""Share of decode KV in use that the paper calls full (§3.4)."""
AFTER_S = 2400.0
"""Departures and hysteresis of trapped runs are taken from minute 40 on (paper A §5.2, Fig. 10)."""
END_S = 300.0
"""The end of a run, over which active sessions are averaged."""
MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run in numbers; NaN where nothing was observed."""

    late_ttft_s: float
    """L_late (paper A §4)."""
    median_ttft_s: float
    """Of the calls released in the same final 30 minutes."""
    late_hit_rate: float
    first_limit: str
    """"cache" or "decode", whichever limit a 2-minute window reaches first, or "none" (see `first_limit`)."""
    departures_per_min: float
    """Sessions completed a minute from minute 40 on."""
    active_end: float
    """Mean active sessions in the last five minutes."""
    windows: list[tuple[float, float]]
    """W/C and hit rate of each 2-minute window from minute 40 on."""


def outcome(run: Records) -> Outcome:
    """The outcome of a run. Raises `NotObserved` for one that ends before minute 40."""
    end = duration_s(run)
    late = (max(0.0, end - LATE_S), end)
    released = column(run.calls, "released_s")
    ended = column(run.sessions, "ended_s")[column(run.sessions, "outcome") == "completed"]
    time = column(run.samples, "time_s")
    after = windows(run, start_s=AFTER_S)[["w_over_c", "hit_rate"]].dropna()
    return Outcome(
        late_ttft_s=late_latency(run),
        median_ttft_s=float(np.median(ttft(run)[released >= late[0]])),
        late_hit_rate=hit_rate(run, late),
        first_limit=first_limit(run),
        departures_per_min=float(np.sum(ended >= AFTER_S) / (end - AFTER_S) * MINUTE),
        active_end=float(column(run.samples, "active_sessions")[time >= end - END_S].mean()),
        windows=[(float(w), float(hit)) for w, hit in after.to_numpy()],
    )


def first_limit(run: Records) -> str:
    """Which resource limits service first (paper A §4.2): the cache, if a 2-minute window's hit rate falls below 0.80
    before decode KV is 97% in use or in the same window; decode, if it is the other way round; or "none".

    The order matters because either brings the other along: calls that queue for prefill hold decode memory, and calls
    that wait for memory keep sessions active whose contexts then outgrow the cache. The first ten minutes do not count:
    a warm start has its contexts still to load."""
    course = windows(run, start_s=10 * MINUTE)
    collapsed = np.flatnonzero(course["hit_rate"] < COLLAPSED_HIT)
    full = np.flatnonzero(course["decode_kv_used"] >= FULL_MEMORY)
    if not len(collapsed) and not len(full):
        return "none"
    return "decode" if len(full) and (not len(collapsed) or full[0] < collapsed[0]) else "cache"


# Keeping -----------------------------------------------------------------------------------------------------------

T = TypeVar("T")


class Resources(NamedTuple):
    """Where runs are done: processes of this machine (None: all cores) or a Dask cluster's."""

    workers: int | None = None
    scheduler: str | None = None


def kept(
    work: Callable[[Any], Any], jobs: Sequence[tuple[Mapping[str, Any], Any]], resources: Resources, label: str
) -> list[Any]:
    """`work(job)` for each of the pairs of determinants and job, in order; what was done before is read.

    `work` is a module's function and returns what JSON can hold."""
    from sim.sweep import in_workers

    paths = [_path(work, determinants) for determinants, _ in jobs]
    missing = {path: job for path, (_, job) in zip(paths, jobs, strict=True) if not path.is_file()}
    if missing:
        in_workers(partial(_do_and_keep, work), missing.items(), *resources, label)
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def outcomes(scenarios: Sequence["Scenario"], resources: Resources, label: str) -> list[Outcome]:
    """The outcome of each scenario's run, in order."""
    from sim.sweep import determinants

    found = kept(simulate, [(determinants(scenario), scenario) for scenario in scenarios], resources, label)
    return [Outcome(**entry) for entry in found]


def simulate(scenario: "Scenario") -> dict[str, Any]:
    """Run a scenario and return its outcome as a table."""
    from sim.run import run

    return asdict(outcome(run(scenario)))


def _path(work: Callable[[Any], Any], determinants: Mapping[str, Any]) -> Path:
    key = RunStore.key({**determinants, "work": work.__qualname__, "measures": _measures()})
    return repository_root() / "build" / "outcomes" / key[:2] / f"{key}.json"


@cache
def _measures() -> str:
    """Hash of the source that turns runs into outcomes."""
    from sim.sweep import code_version

    here = Path(__file__)
    own = hashlib.sha256(b"".join((here.with_name(n)).read_bytes() for n in ("outcomes.py", "post_surge.py")))
    return code_version(("artifact.metrics",)) + own.hexdigest()[:16]


def _do_and_keep(work: Callable[[Any], Any], path: Path, job: Any) -> None:
    text = json.dumps(work(job))
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


# Searching ---------------------------------------------------------------------------------------------------------

Search = Generator[Sequence["Scenario"], list[Outcome], T]
"""Asks for the outcomes of some scenarios at a time and returns what it looked for."""


class Found(NamedTuple):
    """The lowest of the rates that were offered at which most seeds fail, the rate before it (NaN where there is none)
    and the outcomes of the runs at the failing one; `fails` is infinite, and without runs, if none does."""

    holds: float
    fails: float
    runs: tuple[Outcome, ...]


def lowest_failing(
    rates: Sequence[float],
    at: Callable[[float], Sequence["Scenario"]],
    fails: Callable[[Outcome], bool],
) -> Search[Found]:
    """Bisection over ascending `rates` (sessions/min); `at` gives a rate's scenarios, one a seed, all run with the same
    arrivals up to its rate. What fails at a rate is taken to fail at all above it."""
    low, high = 0, len(rates)
    seen: dict[int, list[Outcome]] = {}
    while low < high:
        middle = (low + high) // 2
        seen[middle] = yield from _decided(at(rates[middle]), fails)
        if _most(seen[middle], fails, len(seen[middle])):
            high = middle
        else:
            low = middle + 1
    runs = tuple(o for o in seen[low] if fails(o)) if low < len(rates) else ()
    return Found(rates[low - 1] if low else np.nan, rates[low] if low < len(rates) else np.inf, runs)


def _decided(scenarios: Sequence["Scenario"], fails: Callable[[Outcome], bool]) -> Search[list[Outcome]]:
    """As many of the seeds as it takes until most have failed or cannot any more."""
    least = len(scenarios) // 2 + 1
    found = yield scenarios[:least]
    failed = sum(map(fails, found))
    if 0 < failed < least and least < len(scenarios):
        found = found + (yield scenarios[least:])
    return found


def _most(found: Sequence[Outcome], fails: Callable[[Outcome], bool], total: int) -> bool:
    return 2 * sum(map(fails, found)) > total


def together(searches: Mapping[Any, Search[T]], resources: Resources, label: str) -> dict[Any, T]:
    """Run searches side by side: in each round the runs that all of them ask for next."""
    results: dict[Any, T] = {}
    asked: dict[Any, Sequence[Scenario]] = {}
    answers: dict[Any, list[Outcome] | None] = dict.fromkeys(searches)
    number = 0
    while answers:
        asked.clear()
        for key, answer in answers.items():
            try:
                asked[key] = next(searches[key]) if answer is None else searches[key].send(answer)
            except StopIteration as stop:
                results[key] = stop.value
        number += 1
        flat = [scenario for scenarios in asked.values() for scenario in scenarios]
        done = iter(outcomes(flat, resources, f"{label}, round {number}") if flat else [])
        answers = {key: [next(done) for _ in scenarios] for key, scenarios in asked.items()}
    return {key: results[key] for key in searches}
