"""What figures cost to regenerate, measured while their notebooks ran: minutes, memory, and how many runs were new."""

import resource
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict, TypeAdapter

from artifact.reproduce.paths import PROFILES

PERIOD_S = 0.5
MIB = 2**20
KEPT = ("runs/*/*", "outcomes/*/*", "escapes/*", "profiles/*")
"""Below `build`: results that later figures find."""


class Cost(BaseModel):
    """One execution of a figure's notebook. `cpu_s`: processor time, which a busy machine does not lengthen as it does
    `wall_s`. `new_runs`: results that it computed and kept; those that it found cost it nothing. `peak_mib`: the most
    memory that it and its workers held together, shared pages counted once."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    figure: str
    profile: str
    cpu_s: float
    wall_s: float
    peak_mib: int
    new_runs: int
    workers: int
    commit: str = ""


class Meter:
    """Processor time and peak memory of the children of this process, wall time and new results, within `measured`."""

    def __init__(self) -> None:
        self.cpu_s = self.wall_s = 0.0
        self.peak_bytes = self.new_runs = 0

    def cost(self, figure: str, profile: str, workers: int, commit: str) -> Cost:
        return Cost(
            figure=figure,
            profile=profile,
            cpu_s=round(self.cpu_s, 1),
            wall_s=round(self.wall_s, 1),
            peak_mib=round(self.peak_bytes / MIB),
            new_runs=self.new_runs,
            workers=workers,
            commit=commit,
        )


@contextmanager
def measured(root: Path) -> Iterator[Meter]:
    """Measure what happens within; the meter is complete when the context has ended."""
    meter, over = Meter(), threading.Event()
    before, began, used = _kept(root), time.monotonic(), _children_s()
    watcher = threading.Thread(target=_watch, args=(meter, over), daemon=True)
    watcher.start()
    try:
        yield meter
    finally:
        over.set()
        watcher.join()
        meter.cpu_s, meter.wall_s = _children_s() - used, time.monotonic() - began
        meter.new_runs = _kept(root) - before


def held_bytes(process: psutil.Process) -> int:
    """Memory of a process with what it shares divided among those that share it; where the system does not tell, all
    that is resident. 0 for one that has ended."""
    with suppress(psutil.Error):
        full = process.memory_full_info()
        return int(getattr(full, "pss", full.rss))
    return 0


def committed(root: Path) -> dict[str, Cost]:
    """By figure, as `figures/costs.json` has them. Raises `ValidationError` for a file of another kind."""
    path = _path(root)
    costs = TypeAdapter(list[Cost]).validate_json(path.read_text(encoding="utf-8")) if path.is_file() else []
    return {cost.figure: cost for cost in costs}


def commit_costs(root: Path, measured_here: Iterable[Cost]) -> Path:
    """Bring `figures/costs.json` up to date: of each figure the larger profile stays, then the one with more new runs
    (with all of a figure's runs found, a later execution would seem to cost nothing)."""
    best = committed(root)
    for cost in measured_here:
        if cost.figure not in best or _rank(cost) >= _rank(best[cost.figure]):
            best[cost.figure] = cost
    path = _path(root)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(TypeAdapter(list[Cost]).dump_json(_sorted(best), indent=1) + b"\n")
    return path


def _sorted(costs: Mapping[str, Cost]) -> list[Cost]:
    return [costs[figure] for figure in sorted(costs)]


def _rank(cost: Cost) -> tuple[int, int]:
    return PROFILES.index(cost.profile), cost.new_runs


def _path(root: Path) -> Path:
    return root / "figures" / "costs.json"


def _watch(meter: Meter, over: threading.Event) -> None:
    this = psutil.Process()
    while not over.wait(PERIOD_S):
        meter.peak_bytes = max(meter.peak_bytes, sum(map(held_bytes, this.children(recursive=True))))


def _children_s() -> float:
    """Processor time of children that have ended, and theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _kept(root: Path) -> int:
    """Results that lie in the stores."""
    return sum(1 for pattern in KEPT for path in (root / "build").glob(pattern) if path.suffix != ".tmp")
