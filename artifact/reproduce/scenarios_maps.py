"""The maps of paper A §4 and §5 on the simulator: what is run at each profile, and the results that figures share.

Every result has `meta`, so that a figure of it says where its data come from.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from artifact.reproduce.outcomes import (
    MINUTE,
    Found,
    Outcome,
    Resources,
    Search,
    lowest_failing,
    outcomes,
    together,
)
from artifact.reproduce.paths import check_source
from artifact.reproduce.scenarios import TRIGGER
from artifact.workload.load import Load, Surge

if TYPE_CHECKING:
    from sim.scenario import Deployment, Scenario

DURATION_S = 120 * MINUTE
"""The paper gives the length of the maps' runs only for §5.2; ours is that one everywhere."""
H100_1P1D, H100_1P3D, H200_1P3D = ("h100", 1), ("h100", 3), ("h200", 3)
STEP_PER_MIN = {1: 0.25, 2: 0.5, 3: 0.5}
"""Load step of the searches by decode instances: that of Fig. 8."""
REFERENCE_STEP_PER_MIN = 0.25
"""Step of the reference overload rates of §5.2, and of overload on the maps."""
LATE_TTFT_S = 10.0
"""L_late above this marks persistent high latency (paper A §4)."""
HEADROOM = 1.6
"""Searches look below this times the fluid model's departure peak first."""
KV_BYTES_PER_TOKEN = 20_480
"""Of Qwen3.6-35B-A3B: ten full-attention layers, keys and values of two heads of 256 in BF16."""
HOST_125GB = "125 GB"

Results = dict[str, list[Any]]
"""Arm -> its results; empty lists where nothing can be run."""


@dataclass(frozen=True)
class Plan:
    """What a profile runs; `coarser` multiplies the paper's load steps."""

    seeds: tuple[int, ...]
    coarser: int
    loads: tuple[float, ...]
    """Rows of Fig. 7, over the steady overload rate."""
    surges: tuple[float, ...]
    """Columns of Fig. 7, over the base rate, beside "no surge"."""
    tiers: tuple[float, ...]
    """Host tiers of Fig. 8 over the GPU cache, the largest first; 0: GPU only."""
    tools: tuple[float, ...]
    shares: tuple[float, ...]
    """Post-surge rates of Fig. 10 over the reference overload rate."""
    decode: tuple[int, ...]
    """Decode instances of Fig. 9 (the fluid model has them all)."""
    ramps: int


PLANS = {
    "smoke": Plan((0,), 8, (0.5, 0.85), (1.0, 3.0), (2.0, 0.0), (1.0,), (0.1, 0.5), (3,), 0),
    "quick": Plan(
        (0,), 2, (0.4, 0.55, 0.7, 0.85, 1.0), (0.25, 0.5, 1.0, 3.0), (40.0, 10.0, 2.0, 0.0), (1.0, 3.0, 10.0, 30.0),
        (0.1, 0.2, 0.3, 0.5, 0.9), (1, 2, 3), 1,
    ),
    "full": Plan(
        (0, 1, 2), 1, (0.4, 0.5, 0.6, 0.7, 0.85, 0.95, 1.0), (0.25, 0.5, 0.75, 1.0, 2.0, 3.0),
        (40.0, 10.0, 2.0, 0.0), (1.0, 3.0, 10.0, 30.0),
        (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9), (1, 2, 3), 3,
    ),
}  # fmt: skip
"""Loads and surges of Fig. 7 and rates of Fig. 10 are the paper's where its axes tell; three seeds are its, too."""


def plan(profile: str, seeds: Iterable[int] | None = None) -> Plan:
    """The plan of a profile, with other seeds if given. Raises `ValueError` for an unknown profile."""
    from dataclasses import replace

    from artifact.reproduce.paths import check_profile

    found = PLANS[check_profile(profile)]
    return found if seeds is None else replace(found, seeds=tuple(seeds))


# Loads and searches ------------------------------------------------------------------------------------------------


def scenario(deployment: "Deployment", rate: float, seed: int, surge: float = 0.0, tool: float = 1.0) -> "Scenario":
    """A run at `rate` sessions/min with a ten-minute surge of `surge` (1: +100%) in minutes 15-25."""
    from sim.scenario import Scenario
    from sim.steady import replayed

    surges = (Surge(**TRIGGER, factor=1 + surge),) if surge else ()
    load = Load(rate_per_min=rate, duration_s=DURATION_S, surges=surges, tool_time_scale=tool)
    return Scenario(deployment=deployment, load=replayed(deployment, load, settled=surge > 0), seed=seed)


def late(found: Outcome) -> bool:
    """Trapped or overloaded as in the maps of §4: the highest window-median TTFT of the last 30 minutes above 10 s."""
    return found.late_ttft_s > LATE_TTFT_S


def search(
    deployment: "Deployment", seeds: Sequence[int], step: float, surge: float = 0.0, tool: float = 1.0
) -> Search[Found]:
    """The lowest load, on a grid of `step` sessions/min, that ends late: overload without a surge, trapped with one.

    Looks below `HEADROOM` times the fluid model's departure peak first, then in ranges of the same width above."""
    count = max(2, int(np.ceil(HEADROOM * _peak_per_min(deployment, tool) / step)))
    start, holds = 1, np.nan
    while True:
        rates = (step * np.arange(start, start + count)).tolist()
        found = yield from lowest_failing(
            rates, lambda rate: [scenario(deployment, rate, s, surge, tool) for s in seeds], late
        )
        if np.isfinite(found.fails):
            return found if np.isfinite(found.holds) else found._replace(holds=holds)
        start, holds = start + count, found.holds


def _peak_per_min(deployment: "Deployment", tool: float) -> float:
    """The fluid model's departure peak, sessions/min."""
    from sim.fluid.calibrated import fluid_deployment
    from sim.fluid.equilibria import landscape

    return float(landscape(fluid_deployment(deployment).scaled(tool_time=tool)).peak) * MINUTE


def deployment(kind: tuple[str, int], host_ratio: float = 0.0, prefill: int = 1, **options: Any) -> "Deployment":
    """`kind`: calibration and decode instances."""
    from sim.scenario import Deployment

    return Deployment(calibration=kind[0], prefill=prefill, decode=kind[1], host_ratio=host_ratio, **options)


def simulated(source: str, arms: Sequence[str], run: Callable[[], Results]) -> Results:
    """The results of `run`, or none of any arm with source "hw": these maps take hundreds of runs, which nobody has
    recorded. Raises `ValueError` for another source."""
    check_source(source)
    return run() if source == "sim" else {arm: [] for arm in arms}


def origin(deployments: Iterable["Deployment"], seeds: Sequence[int], **more: Any) -> dict[str, Any]:
    listed = [d.model_dump(mode="json") for d in deployments]
    return {"source": "sim", "scenario": {"deployments": listed, "seeds": list(seeds), **more}}


# Figure 7 ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SurgeMap:
    """Fig. 7: share of seeds that end late, by base load (rows, over overload) and surge (columns, 0: none)."""

    deployment: "Deployment"
    overload_per_min: float
    loads: tuple[float, ...]
    surges: tuple[float, ...]
    trapped: np.ndarray
    meta: dict[str, Any]


MAPPED = {"map_1p1d": (H100_1P1D, 0.0), "map_1p3d": (H200_1P3D, 2.0)}


def surge_maps(source: str, profile: str, seeds: Iterable[int] | None, resources: Resources) -> Results:
    """Arms `map_1p1d` (H100, GPU-only) and `map_1p3d` (H200, host tier twice the GPU cache), one `SurgeMap` each."""
    return simulated(source, list(MAPPED), lambda: _surge_maps(plan(profile, seeds), resources))


def _surge_maps(p: Plan, resources: Resources) -> Results:
    engines = {arm: deployment(kind, host) for arm, (kind, host) in MAPPED.items()}
    limits = overload(list(engines.values()), p, resources)
    loads, surges = (*p.loads,), (0.0, *p.surges)
    cells = [
        scenario(engines[arm], load * limits[engines[arm]], seed, surge)
        for arm in engines
        for load in loads
        for surge in surges
        for seed in p.seeds
    ]
    found = np.array([late(o) for o in outcomes(cells, resources, "surge maps")])
    shares = found.reshape(len(engines), len(loads), len(surges), len(p.seeds)).mean(axis=-1)
    return {
        arm: [SurgeMap(d, limits[d], loads, surges, share, origin([d], p.seeds, loads=loads, surges=surges))]
        for (arm, d), share in zip(engines.items(), shares, strict=True)
    }


def overload(deployments: Sequence["Deployment"], p: Plan, resources: Resources) -> dict["Deployment", float]:
    """Steady-state overload rate of each, sessions/min."""
    step = REFERENCE_STEP_PER_MIN * p.coarser
    found = together({d: search(d, p.seeds, step) for d in deployments}, resources, "overload without a surge")
    return {d: f.fails for d, f in found.items()}


# Figure 8 ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Grid:
    """Fig. 8: highest load (sessions/min) that recovers from +100%, and the first resource to limit service at the
    lowest that does not, by cache tier (rows) and tool time (columns)."""

    decode: int
    step: float
    tiers: tuple[float, ...]
    tools: tuple[float, ...]
    recoverable: np.ndarray
    limits: tuple[tuple[str, ...], ...]
    meta: dict[str, Any]


GRIDS = {"grid_1p1d": H100_1P1D, "grid_1p3d": H200_1P3D}


def recoverable_loads(source: str, profile: str, seeds: Iterable[int] | None, resources: Resources) -> Results:
    """Arms `grid_1p1d` and `grid_1p3d`, one `Grid` each, and `trap_loads`, one `TrapLoad` a GPU type and tier."""
    arms = [*GRIDS, "trap_loads"]
    return simulated(source, arms, lambda: _recoverable_loads(plan(profile, seeds), resources))


def _recoverable_loads(p: Plan, resources: Resources) -> Results:
    cells = [(arm, tier, tool) for arm in GRIDS for tier in p.tiers for tool in p.tools]
    searches = {
        (arm, tier, tool): search(deployment(GRIDS[arm], tier), p.seeds, step_per_min(GRIDS[arm][1], p), 1.0, tool)
        for arm, tier, tool in cells
    }
    found = together(searches, resources, "recoverable loads")
    grids = {arm: [_grid(arm, p, found)] for arm in GRIDS}
    return {**grids, "trap_loads": trap_loads(p, resources)}


def _grid(arm: str, p: Plan, found: Mapping[tuple[str, float, float], Found]) -> Grid:
    rows = [[found[arm, tier, tool] for tool in p.tools] for tier in p.tiers]
    kind = GRIDS[arm]
    return Grid(
        decode=kind[1],
        step=step_per_min(kind[1], p),
        tiers=p.tiers,
        tools=p.tools,
        recoverable=np.array([[cell.holds for cell in row] for row in rows]),
        limits=tuple(tuple(first_limits(cell.runs) for cell in row) for row in rows),
        meta=origin([deployment(kind, tier) for tier in p.tiers], p.seeds, tools=p.tools, surge=1.0),
    )


def first_limits(runs: Sequence[Outcome]) -> str:
    """The word of most of the runs, "mixed" without one."""
    words = [run.first_limit for run in runs]
    return next((word for word in set(words) if 2 * words.count(word) > len(words)), "mixed")


def step_per_min(decode: int, p: Plan) -> float:
    return STEP_PER_MIN[decode] * p.coarser


@dataclass(frozen=True)
class TrapLoad:
    """What +300% does to 1P3D of one GPU type and tier: the first load it traps (sessions/min), the steady overload
    rate, and the trapped runs at that load."""

    gpu: str
    tier: str
    trapped_per_min: float
    overload_per_min: float
    runs: tuple[Outcome, ...]
    meta: dict[str, Any]


def trap_loads(p: Plan, resources: Resources) -> list[TrapLoad]:
    """H100 and H200 with each tier of "GPU types and host tiers" (§4.2): GPU-only, twice the GPU cache, and 125 GB."""
    tiers = {(gpu, tier): deployment((gpu, 3), ratio) for gpu in ("h100", "h200") for tier, ratio in _tiers(gpu)}
    step = step_per_min(3, p)
    surged = together({key: search(d, p.seeds, step, 3.0) for key, d in tiers.items()}, resources, "trap loads")
    steady = overload(list(tiers.values()), p, resources)
    return [
        TrapLoad(*key, surged[key].fails, steady[d], surged[key].runs, origin([d], p.seeds, surge=3.0))
        for key, d in tiers.items()
    ]


def _tiers(gpu: str) -> list[tuple[str, float]]:
    from sim.calibration.model import calibration

    tokens = 125e9 / KV_BYTES_PER_TOKEN
    return [("GPU", 0.0), ("x2", 2.0), (HOST_125GB, tokens / calibration(gpu).prefill.cache_tokens.value)]


# Figure 9 ----------------------------------------------------------------------------------------------------------


class Classified(NamedTuple):
    """One of the 36 deployments: what the fluid model says and what the simulator does at its overload rate."""

    name: str
    decode: int
    tool_time: float
    ratio: float
    flagged: bool
    overload_per_min: float
    hit_rate: float
    """At overload, final 30 minutes, median over seeds."""
    first_limit: str
    meta: dict[str, Any]

    @property
    def cache_first(self) -> bool:
        """Whether cache pressure limits service before decode saturates, as in Fig. 8 (paper A §4.2, §5.1)."""
        return self.first_limit == "cache"


class Modelled(NamedTuple):
    """A deployment's fluid model."""

    model: Any
    meta: dict[str, Any]


def classification(source: str, profile: str, seeds: Iterable[int] | None, resources: Resources) -> Results:
    """Arms `deployments`, one `Classified` each, and `fluid`, 1P3D with a host tier `Modelled`."""
    arms = ["deployments", "fluid"]
    return simulated(source, arms, lambda: _classification(plan(profile, seeds), resources))


def _classification(p: Plan, resources: Resources) -> Results:
    from sim.fluid.calibrated import fluid_deployment
    from sim.fluid.grid import classified

    host = deployment(H200_1P3D, 2.0)
    grid = [c for c in classified() if c.deployment.decode in p.decode and c.tool_time in p.tools]
    searches = {}
    for c in grid:
        d, tool = c.deployment, c.tool_time
        searches[d, tool] = search(d, p.seeds, step_per_min(d.decode, p), tool=tool)
    found = together(searches, resources, "overload of the 36 deployments")
    return {
        "deployments": [_classified(c, found[c.deployment, c.tool_time], p) for c in grid],
        "fluid": [Modelled(fluid_deployment(host), {**origin([host], ()), "source": "model"})],
    }


def _classified(c: Any, found: Found, p: Plan) -> Classified:
    d = c.deployment
    tier = "GPU" if d.host_ratio == 0 else f"x{d.host_ratio:g}"
    hits = float(np.median([run.late_hit_rate for run in found.runs])) if found.runs else np.nan
    name = f"{d.prefill}P{d.decode}D {tier}, tools x{c.tool_time:g}"
    about = origin([d], p.seeds, tool_time=c.tool_time)
    return Classified(
        name, d.decode, c.tool_time, c.ratio, c.flagged, found.fails, hits, first_limits(found.runs), about
    )
