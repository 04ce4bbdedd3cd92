"""The arrival-time prototype and all systems in the scenarios that ran on hardware (paper A §7.2, Figs. 12 and 13).

The arms are named "<setting>/<policy>" as in `artifact.reproduce.scenarios_policies`, one `Records` a seed. Runs of the
simulator stand in for the published ones until there are recorded runs; the ledger says which.
"""

from collections.abc import Sequence

import numpy as np

from artifact.metrics import EndState, duration_s, end_state, hit_rate
from artifact.metrics.states import hit_before_trigger
from artifact.records.schema import Records
from artifact.reproduce.compare import by_arrival, done, good, late_hit, ratio, waits
from artifact.reproduce.evaluate.policy_simulation import arms, grid, last_over_first
from artifact.reproduce.registry import Noted, evaluates
from artifact.reproduce.scenarios_policies import MINUTE, ON_1P3D, ON_H200, PROTOTYPE, SURGE_S

DRAINED_S = 10.0
"""First-call wait under which arrivals no longer wait (claims file, A-hw-drain)."""
COLLAPSED = 0.5
"""Ours: share of its pre-surge value under which a hit rate counts as collapsed."""


def drained_min(run: Records) -> float:
    """Minute of the first 5-minute arrival bin after the surge from which the median first-call wait stays under 10 s;
    infinite if it never does."""
    bins = by_arrival(run)
    after = bins[bins["start_s"] >= SURGE_S[1]]
    waiting = np.flatnonzero(~(after["wait_p50_s"].to_numpy() < DRAINED_S))
    first = waiting[-1] + 1 if len(waiting) else 0
    return float(after["start_s"].iloc[first]) / MINUTE if first < len(after) else np.inf


def _states(runs: Sequence[Records]) -> str:
    return ", ".join(str(end_state(run)) for run in runs)


# Figure 12: goodput ------------------------------------------------------------------------------------------------


@evaluates("A-hw-basin-cont", arms=arms(ON_H200, ["continuum", PROTOTYPE]))
def over_continuum(*runs: Records) -> list[float]:
    return last_over_first(grid(runs, 2, good))


@evaluates("A-hw-tb-cont", arms=arms(ON_1P3D, ["continuum", PROTOTYPE]))
def over_continuum_terminal_bench(*runs: Records) -> list[float]:
    return last_over_first(grid(runs, 2, good))


@evaluates("A-fid-ratio", arms=arms(ON_1P3D, ["continuum", PROTOTYPE]))
def simulated_over_continuum(*runs: Records) -> list[float]:
    return last_over_first(grid(runs, 2, good))


@evaluates("A-hw-gap-gpu", arms=arms(ON_H200, ["continuum", PROTOTYPE]))
def gap_largest_on_gpu_only(*runs: Records) -> bool:
    return ON_H200[int(np.argmax(last_over_first(grid(runs, 2, good))))] == "1p3d-gpu"


@evaluates("A-hw-basin-hicache", arms=arms(ON_H200, ["hicache", PROTOTYPE]))
def over_hicache(*runs: Records) -> list[float]:
    return last_over_first(grid(runs, 2, good))


@evaluates("A-hw-hicache-trap", arms=arms(ON_H200, ["hicache"]))
def hicache_states(*runs: Records) -> list[str]:
    return [str(end_state(run)) for run in runs]


@evaluates("A-hw-hicache-done", arms=arms(ON_H200, ["hicache"]))
def hicache_done(*runs: Records) -> list[float]:
    return [done(run) for run in runs]


@evaluates("A-hw-hicache-hit", arms=arms(ON_1P3D, ["hicache"]))
def hicache_hit(*runs: Records) -> list[float]:
    return [late_hit(run) for run in runs]


@evaluates("A-hw-crossflow", arms=arms(ON_H200, ["crossflow"]))
def crossflow_done(*runs: Records) -> Noted:
    return Noted([done(run) for run in runs], _states(runs))


@evaluates("A-hw-ta-wait", arms=arms(ON_1P3D, ["thunderagent", "composition"]))
def admission_waits(*runs: Records) -> list[float]:
    return [float(waits(run).median()) / MINUTE for run in runs]


@evaluates("A-hw-cont-wait", arms=arms(ON_1P3D, ["continuum"]))
def continuum_waits(*runs: Records) -> list[float]:
    return [float(waits(run).median()) / MINUTE for run in runs]


@evaluates("A-hw-cont-hit", arms=arms(ON_1P3D, ["continuum"]))
def continuum_hit_loss(*runs: Records) -> list[float]:
    """Pre-surge hit rate less that from the surge's end to the run's."""
    return [hit_before_trigger(run) - hit_rate(run, (SURGE_S[1], duration_s(run))) for run in runs]


@evaluates("A-hw-cont-state", arms=arms(ON_1P3D, ["continuum"]))
def continuum_not_trapped(*runs: Records) -> Noted:
    return Noted(all(end_state(run) != EndState.TRAPPED for run in runs), _states(runs))


@evaluates("A-hw-basin-wait", arms=arms(ON_1P3D, [PROTOTYPE]))
def prototype_waits(*runs: Records) -> list[float]:
    return [float(waits(run).median()) for run in runs]


@evaluates("A-hw-swe", arms=arms(["swe"], [PROTOTYPE, "continuum", "concur"]))
def swe_goodput(basin: Records, continuum: Records, concur: Records) -> dict[str, float]:
    return {"basin": good(basin), "continuum": good(continuum), "concur": good(concur)}


@evaluates("A-hw-swe-wait", arms=arms(["swe"], [PROTOTYPE]))
def swe_wait(basin: Records) -> float:
    return float(waits(basin).median())


@evaluates("A-hw-swe-trap", arms=arms(["swe"], ["thunderagent", "composition"]))
def swe_states(*runs: Records) -> list[str]:
    return [str(end_state(run)) for run in runs]


@evaluates("A-hw-h100", arms=arms(["1p1d"], [PROTOTYPE, "continuum", "composition"]))
def h100_goodput(basin: Records, continuum: Records, composition: Records) -> dict[str, float]:
    return {"basin": good(basin), "continuum": good(continuum), "composition": good(composition)}


@evaluates("A-hw-h100-gain", arms=arms(["1p1d"], [PROTOTYPE, "continuum", "composition"]))
def h100_gain(basin: Records, continuum: Records, composition: Records) -> dict[str, float]:
    return {
        "continuum": ratio(good(basin), good(continuum)),
        "composition": ratio(good(basin), good(composition)),
    }


# Figure 13: the default surge in time ------------------------------------------------------------------------------


@evaluates("A-hw-drain", arms=arms(["1p3d"], [PROTOTYPE]))
def prototype_drained(basin: Records) -> float:
    return drained_min(basin)


@evaluates("A-hw-cont-drain", arms=arms(["1p3d"], ["continuum"]))
def continuum_drained(continuum: Records) -> float:
    return drained_min(continuum)


@evaluates("A-hw-concur-hit", arms=arms(["1p3d-gpu"], ["concur"]))
def concur_lowest_hit(concur: Records) -> float:
    bins = by_arrival(concur)
    return float(bins.loc[bins["start_s"] >= SURGE_S[0], "hit_rate"].min())


@evaluates("A-hw-hicache-speed", arms=arms(["1p3d"], ["hicache"]))
def hicache_collapse(hicache: Records) -> float:
    """Minutes from surge onset to the first bin from which the hit rate stays collapsed; infinite if none."""
    bins = by_arrival(hicache)
    after = bins[bins["start_s"] >= SURGE_S[0]]
    high = np.flatnonzero(after["hit_rate"] >= COLLAPSED * hit_before_trigger(hicache))
    first = high[-1] + 1 if len(high) else 0
    return float(after["start_s"].iloc[first] - SURGE_S[0]) / MINUTE if first < len(after) else np.inf
