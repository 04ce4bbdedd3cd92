"""What it takes to recover (paper A §5.2, §7.4, §7.6): the same state after a surge under different loads, critical
rates, and how backlogs drain.

| arm                        | one entry each                                                                         |
|----------------------------|----------------------------------------------------------------------------------------|
| `post_gpu`, `post_host`    | a `PostSurge` (Fig. 10)                                                                |
| `profiles`                 | `Profiled` deployments (§7.4, §7.6)                                                    |
| `drains`                   | `Drain` of each backlog (Eq. 4)                                                        |

Each arm pools its seeds. "Trapped" is the end state of §7.1.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from artifact.metrics import EndState, NotObserved
from artifact.reproduce.post_surge import BASE_SHARE, Branch
from artifact.reproduce.registry import Noted, evaluates
from artifact.reproduce.scenarios_recovery import Drain, PostSurge, Profiled

HYSTERESIS_W_OVER_C = (1.6, 1.7)
"""Working sets over the cache at which §5.2 compares runs with and without a collapse before."""


# Figure 10 ---------------------------------------------------------------------------------------------------------


@evaluates("A-lref-gpu", pooled=True)
def lref_gpu(post_gpu: Sequence[PostSurge]) -> float:
    return post_gpu[0].reference_per_min


@evaluates("A-lref-host", pooled=True)
def lref_host(post_host: Sequence[PostSurge]) -> float:
    return post_host[0].reference_per_min


def trapped_seeds(found: PostSurge, surge: str = "plus300") -> dict[float, int]:
    """Trapped seeds by post-surge rate, over the reference rate."""
    return {share: sum(b.state == EndState.TRAPPED for b in found.of(surge, share)) for share in found.shares}


def _recovery(found: PostSurge) -> Noted:
    seeds = trapped_seeds(found)
    total = len(found.seeds)
    value = {
        "recovers": max((share for share, n in seeds.items() if n == 0), default=np.nan),
        "trapped": min((share for share, n in seeds.items() if n == total), default=np.inf),
    }
    return Noted(value, "trapped seeds: " + ", ".join(f"{n} at {share:g}" for share, n in seeds.items()))


@evaluates("A-post-gpu", pooled=True)
def post_gpu(post_gpu: Sequence[PostSurge]) -> Noted:
    return _recovery(post_gpu[0])


@evaluates("A-post-host", pooled=True)
def post_host(post_host: Sequence[PostSurge]) -> Noted:
    return _recovery(post_host[0])


@evaluates("A-post-host-mid", pooled=True)
def post_host_mid(post_host: Sequence[PostSurge]) -> dict[str, float]:
    seeds = trapped_seeds(post_host[0])
    if len(post_host[0].seeds) != 3 or not {0.3, 0.4} <= set(seeds):
        raise NotObserved("counts seeds of three, at 0.3 and 0.4 of the reference rate")
    return {f"{share:g}": float(seeds[share]) for share in (0.3, 0.4)}


@evaluates("A-post-100", pooled=True)
def post_100(post_gpu: Sequence[PostSurge], post_host: Sequence[PostSurge]) -> Noted:
    """Healthy after +100% at every rate and seed."""
    found = {"GPU": post_gpu[0], "host": post_host[0]}
    other = [
        f"{tier} at {b.share:g}: {b.state}"
        for tier, post in found.items()
        for share in post.shares
        for b in post.of("plus100", share)
        if b.state != EndState.HEALTHY
    ]
    return Noted(not other, "; ".join(other))


@evaluates("A-hyst-low", pooled=True)
def hyst_low(post_host: Sequence[PostSurge]) -> list[float]:
    """Each trapped run's median hit rate over its windows at those working sets: lowest and highest."""
    return _hit_range(run.outcome.windows for run in trapped_runs(post_host[0]))


@evaluates("A-hyst-high", pooled=True)
def hyst_high(post_host: Sequence[PostSurge]) -> list[float]:
    return _hit_range(windows for windows in undisturbed(post_host[0]))


def trapped_runs(found: PostSurge) -> list[Branch]:
    """After +300%, at any post-surge rate."""
    return [b for seed in found.seeds for b in seed if b.surge == "plus300" and b.state == EndState.TRAPPED]


def undisturbed(found: PostSurge) -> list[list[tuple[float, float]]]:
    """Windows (W/C, hit rate) of the runs without a surge that end healthy: controls and steady loads."""
    controls = [b.outcome for seed in found.seeds for b in seed if b.surge == "none" and b.state == EndState.HEALTHY]
    return [run.windows for run in (*controls, *found.steady)]


def _hit_range(runs: Iterable[Sequence[tuple[float, float]]]) -> list[float]:
    low, high = HYSTERESIS_W_OVER_C
    medians = [float(np.median(hits)) for windows in runs if (hits := [hit for w, hit in windows if low <= w <= high])]
    if not medians:
        raise NotObserved(f"no window with a working set of {low}-{high} times the cache")
    return [min(medians), max(medians)]


def departure_shares(found: PostSurge) -> list[float]:
    """Departures of each trapped run from minute 40 on, over the reference rate."""
    return [b.outcome.departures_per_min / found.reference_per_min for b in trapped_runs(found)]


def _departures(found: PostSurge) -> list[float]:
    shares = departure_shares(found)
    if not shares:
        raise NotObserved("no run is trapped")
    return [min(shares), max(shares)]


@evaluates("A-dep-gpu", pooled=True)
def dep_gpu(post_gpu: Sequence[PostSurge]) -> list[float]:
    return _departures(post_gpu[0])


@evaluates("A-dep-host", pooled=True)
def dep_host(post_host: Sequence[PostSurge]) -> list[float]:
    return _departures(post_host[0])


@evaluates("A-dep-deficit", pooled=True)
def dep_deficit(post_gpu: Sequence[PostSurge], post_host: Sequence[PostSurge]) -> bool:
    """Departures of every trapped run lie below the pre-surge rate."""
    return all(_departures(found)[1] < BASE_SHARE for found in (post_gpu[0], post_host[0]))


# Profiles and drains -----------------------------------------------------------------------------------------------


@evaluates("A-lc-1p3d", pooled=True)
def lc_1p3d(profiles: Sequence[Profiled]) -> float:
    return _profiled(profiles, "1p3d").critical_per_min


@evaluates("A-lc-out3", pooled=True)
def lc_out3(profiles: Sequence[Profiled]) -> float:
    return _profiled(profiles, "outputs").critical_per_min


@evaluates("A-lc-2p6d", pooled=True)
def lc_2p6d(profiles: Sequence[Profiled]) -> dict[str, float]:
    return _by_router(profiles, lambda found: found.critical_per_min)


@evaluates("A-kappa-2p6d", pooled=True)
def kappa_2p6d(profiles: Sequence[Profiled]) -> dict[str, float]:
    return _by_router(profiles, lambda found: found.kappa)


def _by_router(profiles: Sequence[Profiled], value: Callable[[Profiled], float]) -> dict[str, float]:
    return {router: value(_profiled(profiles, router)) for router in ("cache_aware", "affinity", "least_loaded")}


def _profiled(profiles: Sequence[Profiled], name: str) -> Profiled:
    found = next((p for p in profiles if p.name == name), None)
    if found is None:
        raise NotObserved(f"no profile {name!r}")
    return found


@evaluates("A-drain-law", pooled=True)
def drain_law(drains: Sequence[Drain]) -> Noted:
    """Median over the drains of a backlog; one that is not gone by the end counts as infinitely slow."""
    waited = [d for d in drains if d.backlog]
    if not waited:
        raise NotObserved("no session waited when the surge ended")
    ratios = [d.drained_s / d.predicted_s for d in waited]
    listed = ", ".join(f"{d.share:.1f}: {r:.2f}" for d, r in zip(waited, ratios, strict=True))
    return Noted(float(np.median(ratios)), f"by base load over the peak: {listed}")
