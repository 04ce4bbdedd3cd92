"""Recovery on the simulator (paper A §5.2-5.3, §7.4, §7.6): post-surge interventions, profiles, drains of a backlog."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from artifact.reproduce.outcomes import MINUTE, Outcome, Resources, kept, outcomes
from artifact.reproduce.post_surge import Branch, branches, interventions
from artifact.reproduce.scenarios_maps import (
    DURATION_S,
    H200_1P3D,
    Plan,
    Results,
    deployment,
    late,
    origin,
    overload,
    plan,
    scenario,
    simulated,
)
from artifact.workload.load import Load, Surge

if TYPE_CHECKING:
    from sim.scenario import Deployment, Scenario

LONG_OUTPUTS = 3.0
DRAIN_SHARES = (0.5, 0.6, 0.7)
"""Base loads of the drains, over the profiled peak D(N*)."""
DRAIN_SURGE = Surge(start_s=15 * MINUTE, end_s=35 * MINUTE, factor=4)
"""Large and long enough to leave sessions waiting at its end from each of these loads."""


@dataclass(frozen=True)
class PostSurge:
    """Fig. 10 for one cache tier: branches of all seeds, and no-surge runs close to overload."""

    deployment: "Deployment"
    reference_per_min: float
    seeds: tuple[list[Branch], ...]
    steady: tuple[Outcome, ...]
    """Runs at steady loads of 0.8-1 of the reference rate that end with L_late within 10 s."""
    meta: dict[str, Any]

    def of(self, surge: str, share: float) -> list[Branch]:
        """One branch a seed."""
        return [b for seed in self.seeds for b in seed if b.surge == surge and b.share == share]

    @property
    def shares(self) -> list[float]:
        return sorted({b.share for seed in self.seeds for b in seed})


STEADY_SHARES = (0.8, 0.9, 0.95, 1.0)
POST = {"post_gpu": 0.0, "post_host": 2.0}


def post_surge(source: str, profile: str, seeds: Iterable[int] | None, resources: Resources) -> Results:
    """Arms `post_gpu` and `post_host` (one `PostSurge` each), `profiles` (one table of profiles) and `drains`."""
    arms = [*POST, "profiles", "drains"]
    return simulated(source, arms, lambda: _post_surge(plan(profile, seeds), resources))


def _post_surge(p: Plan, resources: Resources) -> Results:
    engines = {arm: deployment(H200_1P3D, host) for arm, host in POST.items()}
    limits = overload(list(engines.values()), p, resources)
    jobs = {arm: interventions(d, limits[d], p.shares, p.seeds) for arm, d in engines.items()}
    done = iter(branches([j for some in jobs.values() for j in some], resources, "post-surge branches"))
    near = {
        arm: [scenario(d, share * limits[d], seed) for share in STEADY_SHARES for seed in p.seeds]
        for arm, d in engines.items()
    }
    steady = iter(outcomes([s for some in near.values() for s in some], resources, "steady runs"))
    results: Results = {}
    for arm, d in engines.items():
        seeds = tuple(next(done) for _ in jobs[arm])
        kept_up = tuple(o for o in [next(steady) for _ in near[arm]] if not late(o))
        results[arm] = [PostSurge(d, limits[d], seeds, kept_up, origin([d], p.seeds, shares=p.shares))]
    profiles = critical_profiles(p, resources)
    return {**results, "profiles": profiles, "drains": drains(profiles, p, resources)}


@dataclass(frozen=True)
class Profiled:
    """One profiled deployment (§6.5, on §7's engine options)."""

    name: str
    kappa: float
    critical_per_min: float
    meta: dict[str, Any]


def profiled() -> dict[str, tuple["Deployment", float]]:
    """Deployment and output scale of the published profiles (§7.4, §7.6); the host tier is §7.1's default."""
    routers = ("cache_aware", "affinity", "least_loaded")
    return {
        "1p3d": (deployment(H200_1P3D, 2.0), 1.0),
        "outputs": (deployment(H200_1P3D, 2.0), LONG_OUTPUTS),
        **{router: (deployment(("h200", 6), 2.0, prefill=2, router=router), 1.0) for router in routers},
    }


def critical_profiles(p: Plan, resources: Resources) -> list[Profiled]:
    """The profiles; none where the plan has no ramps."""
    from sim.scenario import Scenario
    from sim.sweep import determinants

    if not p.ramps:
        return []
    jobs = []
    for d, output in profiled().values():
        load = Load(rate_per_min=1, duration_s=1, output_scale=output)
        about = {**determinants(Scenario(deployment=d, load=load)), "ramps": p.ramps}
        jobs.append((about, (d, output, p.ramps)))
    found = kept(measure_profile, jobs, resources, "load ramps")
    return [
        Profiled(name, kappa, critical, origin([d], range(p.ramps), output_scale=output))
        for (name, (d, output)), (kappa, critical) in zip(profiled().items(), found, strict=True)
    ]


def measure_profile(job: tuple["Deployment", float, int]) -> tuple[float, float]:
    """kappa and critical rate."""
    from sim.profile import profile

    d, output, ramps = job
    found = profile(d, output_scale=output, ramps=ramps)
    return found.kappa, found.critical_rate_per_min


class Drain(NamedTuple):
    """A backlog behind a population kept near the peak: S sessions parked when the surge ends, seconds until nobody is
    (infinite: not by the end), and what Eq. 4 says."""

    share: float
    backlog: float
    drained_s: float
    predicted_s: float
    meta: dict[str, Any]


def drains(profiles: Sequence[Profiled], p: Plan, resources: Resources) -> list[Drain]:
    """Basin's prototype, which lets sessions in by arrival as far as the budget allows, so that the external queue of
    Eq. 4 is what it parks; after a surge from constant loads below the peak (shares of the profiled D(N*))."""
    from sim.scenario import PolicyChoice, Scenario
    from sim.steady import replayed
    from sim.sweep import determinants

    peak = next((q.critical_per_min for q in profiles if q.name == "1p3d"), None)
    if peak is None:
        return []
    d = deployment(H200_1P3D, 2.0)
    jobs = []
    for share in DRAIN_SHARES:
        for seed in p.seeds:
            load = replayed(d, Load(rate_per_min=share * peak, duration_s=DURATION_S, surges=(DRAIN_SURGE,)))
            base = Scenario(deployment=d, load=load, policy=PolicyChoice(name="basin-prior"), seed=seed)
            jobs.append((determinants(base), base))
    found = kept(measure_drain, jobs, resources, "drains of a backlog")
    rows = []
    for (_, base), (backlog, drained) in zip(jobs, found, strict=True):
        rate = base.load.rate_per_min
        predicted = backlog / ((peak - rate) / MINUTE)
        lasted = np.inf if drained is None else drained
        rows.append(Drain(rate / peak, backlog, lasted, predicted, origin([d], p.seeds)))
    return rows


def measure_drain(base: "Scenario") -> tuple[float, float | None]:
    """Sessions parked at the surge's end, and seconds from then until fewer than one in fifty of them (and no more than
    two) are."""
    from artifact.metrics import column
    from sim.run import run

    samples = run(base).samples
    time, parked = (column(samples, name) for name in ("time_s", "parked_sessions"))
    time, parked = time[time >= DRAIN_SURGE.end_s], parked[time >= DRAIN_SURGE.end_s]
    empty = np.flatnonzero(parked <= max(2.0, parked[0] / 50))
    return float(parked[0]), float(time[empty[0]] - time[0]) if len(empty) else None
