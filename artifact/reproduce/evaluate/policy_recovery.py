"""Systems switched on in a trapped engine, and under post-surge arrivals (paper A §7.7, §7.8, Figs. 21 and 22).

| arm                                  | one entry a seed                                  |
|--------------------------------------|---------------------------------------------------|
| `late/<policy>`                      | `Records` of a system switched on at minute 45    |
| `<tier>-<surge>-<share>/<policy>`    | a `Summary` (`scenarios_ablation.after`)          |
"""

from collections.abc import Sequence
from itertools import product

import numpy as np

from artifact.metrics import column
from artifact.records.schema import Records
from artifact.reproduce.compare import done, good, ratio
from artifact.reproduce.evaluate.policy_simulation import arms
from artifact.reproduce.registry import evaluates
from artifact.reproduce.scenarios_ablation import (
    AFTER_SURGES,
    AFTER_TIERS,
    LATE_MIN,
    PRIORITY_ONLY,
    SHARES,
    after,
)
from artifact.reproduce.scenarios_policies import MINUTE
from artifact.reproduce.summaries import Summary

FEW_SESSIONS = 60
"""Resident and parked, to which Basin drains a trapped engine (§7.7)."""


# Figure 21: switched on late -----------------------------------------------------------------------------------------


def drained_after_min(run: Records) -> float:
    """Minutes from minute 45 until at most 60 sessions are present for the first time; infinite if never."""
    time = column(run.samples, "time_s")
    present = column(run.samples, "active_sessions") + np.nan_to_num(column(run.samples, "parked_sessions"))
    few = np.flatnonzero((time >= LATE_MIN * MINUTE) & (present <= FEW_SESSIONS))
    return float(time[few[0]]) / MINUTE - LATE_MIN if len(few) else np.inf


@evaluates("A-late", arms=arms(["late"], ["basin", "continuum", "composition", "hicache"]))
def late_goodput(*runs: Records) -> dict[str, float]:
    return dict(zip(("basin", "continuum", "composition", "hicache"), map(good, runs), strict=True))


@evaluates("A-late-drain", pooled=True, arms=["late/basin"])
def late_drain(basin: Sequence[Records]) -> list[float]:
    """Of every seed: the published range is over seeds."""
    return [drained_after_min(run) for run in basin]


@evaluates("A-late-done", arms=arms(["late"], ["basin", "hicache"]))
def late_done(basin: Records, hicache: Records) -> dict[str, float]:
    return {"basin": done(basin), "hicache": done(hicache)}


# Figure 22: post-surge arrivals --------------------------------------------------------------------------------------


def _settings(surge: str, tiers: Sequence[str] = tuple(AFTER_TIERS), highest: float = 1.0) -> list[str]:
    return [after(tier, surge, share) for tier, share in product(tiers, SHARES) if share <= highest]


UP_TO_HALF = _settings("plus300", ["gpu"], highest=0.5)
GPU_PLUS300 = _settings("plus300", ["gpu"])


@evaluates("A-postsurge-wait", arms=[*arms(UP_TO_HALF, ["thunderagent"]), *arms(GPU_PLUS300, ["basin"])])
def waits_after(*runs: Summary) -> dict[str, list[float]]:
    waits = [run.wait_p90_s for run in runs]
    return {"thunderagent": waits[: len(UP_TO_HALF)], "basin": waits[len(UP_TO_HALF) :]}


@evaluates("A-postsurge-cont-wait", arms=arms(_settings("x6", ["gpu"]), ["continuum"]))
def continuum_waits_after(*runs: Summary) -> list[float]:
    return [run.wait_p90_s for run in runs]


def _over(ours: str, other: str, settings: Sequence[str]) -> list[str]:
    return arms(settings, [ours, other])


def _ratios(runs: Sequence[Summary]) -> list[float]:
    """Of each pair of runs."""
    return [ratio(one.goodput, other.goodput) for one, other in zip(runs[::2], runs[1::2], strict=True)]


@evaluates(
    "A-postsurge-cont", arms=[a for surge in AFTER_SURGES for a in _over("basin", "continuum", _settings(surge))]
)
def over_continuum_after(*runs: Summary) -> dict[str, list[float]]:
    found = _ratios(runs)
    count = len(SHARES)  # +300% on GPU-only, with a host tier, then ×6 on each
    x6_gpu, x6_host = found[2 * count : 3 * count], found[3 * count :]
    return {"plus300": found[: 2 * count], "x6": x6_gpu + x6_host, "x6_gpu": x6_gpu, "x6_host": x6_host}


@evaluates("A-postsurge-ta", arms=_over("basin", "thunderagent", _settings("x6")))
def over_thunderagent_after(*runs: Summary) -> list[float]:
    return _ratios(runs)


@evaluates(
    "A-prio-only", arms=[a for surge in AFTER_SURGES for a in _over(PRIORITY_ONLY, "continuum", _settings(surge))]
)
def priority_only_after(*runs: Summary) -> dict[str, list[float]]:
    """On both deployments, of which the sentence before it in the paper speaks."""
    found = _ratios(runs)
    return {"plus300": found[: 2 * len(SHARES)], "x6": found[2 * len(SHARES) :]}
