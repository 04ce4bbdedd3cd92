"""All systems over load, arrivals, host tiers and routers (paper A §7.3-7.6, Figs. 17-20).

Arms are "<setting>/<policy>" of `artifact.reproduce.scenarios_sweeps`, one `Summary` a seed.
"""

from collections.abc import Sequence

import numpy as np

from artifact.metrics import NotObserved
from artifact.reproduce.compare import ratio
from artifact.reproduce.evaluate.policy_simulation import arms
from artifact.reproduce.registry import Noted, evaluates, over_seeds
from artifact.reproduce.render import text
from artifact.reproduce.scenarios_policies import MINUTE, POLICIES, PROTOTYPE, arm
from artifact.reproduce.scenarios_recovery import Profiled
from artifact.reproduce.scenarios_sweeps import (
    BAILIAN_OUTPUTS3_RATES,
    BAILIAN_RATES,
    CONTROLS,
    EVICTION_CALM,
    EVICTIONS,
    LRU_SURGES,
    ROUTED,
    ROUTER_POLICIES,
    STEADY_RATES,
    at,
    evicting,
)
from artifact.reproduce.summaries import Summary


def goodputs(runs: Sequence[Summary], columns: int) -> np.ndarray:
    """Of runs in the order of `arms`: a row a setting, a column a policy."""
    return np.array([run.goodput for run in runs]).reshape(-1, columns)


def leads(runs: Sequence[Summary], columns: int) -> list[float]:
    """The goodput of the last policy over the best of the others, setting by setting."""
    return [ratio(float(row[-1]), float(row[:-1].max())) for row in goodputs(runs, columns)]


# Figure 17: steady load ----------------------------------------------------------------------------------------------

HIGHEST = at("steady", STEADY_RATES[-1])


@evaluates("A-steady-peak", arms=arms([at("steady", rate) for rate in STEADY_RATES], ["basin"]))
def steady_peak(*runs: Summary) -> Noted:
    found = [run.goodput for run in runs]
    return Noted(max(found), f"at {STEADY_RATES[int(np.argmax(found))]:g} sessions/min")


@evaluates("A-steady-19", arms=arms([HIGHEST], ["basin", "continuum", "concur", "thunderagent"]))
def steady_highest(*runs: Summary) -> dict[str, float]:
    names = ("basin", "continuum", "concur", "thunderagent")
    return {name: run.goodput for name, run in zip(names, runs, strict=True)}


@evaluates("A-steady-hicache", arms=arms([at("steady", rate) for rate in STEADY_RATES if rate >= 15.5], ["hicache"]))
def steady_hicache(*runs: Summary) -> list[float]:
    return [run.goodput for run in runs]


@evaluates("A-steady-ttft", arms=arms([HIGHEST], ["basin", "continuum", "crossflow", "thunderagent"]))
def steady_ttft(*runs: Summary) -> dict[str, float]:
    names = ("basin", "continuum", "crossflow", "thunderagent")
    return {name: run.ttft_p90_s for name, run in zip(names, runs, strict=True)}


# Figure 18: production arrivals --------------------------------------------------------------------------------------

CODER_HIGH = [at("coder", rate) for rate in BAILIAN_RATES[-2:]]
OUTPUTS3_HIGH = [at("coder-out3", rate) for rate in BAILIAN_OUTPUTS3_RATES[-2:]]
TRACE_A_HIGHEST = at("a", BAILIAN_RATES[-1])


@evaluates("A-bailian-coder", arms=arms(CODER_HIGH[:1], ["basin", "continuum", "thunderagent", "concur"]))
def coder_leads(basin: Summary, *others: Summary) -> dict[str, float]:
    names = ("continuum", "thunderagent", "concur")
    return {name: ratio(basin.goodput, other.goodput) for name, other in zip(names, others, strict=True)}


@evaluates(
    "A-bailian-high",
    arms=[*arms(CODER_HIGH[1:], ["basin", "continuum", "concur"]), *arms([TRACE_A_HIGHEST], ["basin", "continuum"])],
)
def bailian_highest(*runs: Summary) -> dict[str, dict[str, float]]:
    found = [run.goodput for run in runs]
    return {
        "coder": dict(zip(("basin", "continuum", "concur"), found[:3], strict=True)),
        "a": dict(zip(("basin", "continuum"), found[3:], strict=True)),
    }


@evaluates("A-bailian-out3", arms=arms(OUTPUTS3_HIGH[1:], ["basin", "hicache", "crossflow"]))
def bailian_outputs3(*runs: Summary) -> dict[str, float]:
    return {n: run.second_hour_s for n, run in zip(("basin", "hicache", "crossflow"), runs, strict=True)}


@evaluates("A-bailian-wait", pooled=True, arms=arms([*OUTPUTS3_HIGH, *CODER_HIGH], ["basin", "thunderagent", "concur"]))
def bailian_waits(*arms_: Sequence[Summary]) -> Noted:
    """With outputs scaled by 3, of which the text speaks last; the other panel stands in the note."""
    minutes = [float(np.median([run.wait_p90_s for run in seeds])) / MINUTE for seeds in arms_]
    outputs3, plain = (
        {name: half[number::3] for number, name in enumerate(("basin", "thunderagent", "concur"))}
        for half in (minutes[:6], minutes[6:])
    )
    return Noted(outputs3, f"without longer outputs: {text(plain)}")


# Figure 19: host tiers -----------------------------------------------------------------------------------------------


@evaluates("A-host-1x", arms=arms(["host1"], ["basin", "thunderagent", "composition"]))
def host_equal(basin: Summary, thunderagent: Summary, composition: Summary) -> dict[str, float]:
    return {
        "thunderagent": ratio(basin.goodput, thunderagent.goodput),
        "composition": ratio(basin.goodput, composition.goodput),
    }


@evaluates("A-host-48x", arms=arms(["host4", "host8"], ["thunderagent", "composition", "basin"]))
def host_large(*runs: Summary) -> dict[str, list[float]]:
    found = goodputs(runs, 3)
    return {
        name: [ratio(float(row[2]), float(row[column])) for row in found]
        for column, name in enumerate(("thunderagent", "composition"))
    }


@evaluates("A-host-8x-good", arms=arms(["host8"], ["basin", PROTOTYPE, "thunderagent"]))
def host_in_time(basin: Summary, prior: Summary, thunderagent: Summary) -> dict[str, float]:
    return {
        "prior": ratio(basin.in_time, prior.in_time),
        "thunderagent": ratio(basin.in_time, thunderagent.in_time),
    }


@evaluates("A-host-8x-itl", arms=arms(["host8"], ["basin", PROTOTYPE, "thunderagent"]))
def host_over_itl(basin: Summary, prior: Summary, thunderagent: Summary) -> dict[str, float]:
    return {
        "basin": basin.in_time_over_itl,
        "prior": prior.in_time_over_itl,
        "thunderagent": thunderagent.in_time_over_itl,
    }


# Figure 20: routers --------------------------------------------------------------------------------------------------


@evaluates("A-2p6d", arms=arms(tuple(ROUTED), ROUTER_POLICIES))
def router_leads(*runs: Summary) -> dict[str, float]:
    return dict(zip(ROUTED, leads(runs, len(ROUTER_POLICIES)), strict=True))


@evaluates("A-2p6d-steady", arms=arms(["least_loaded-steady"], ["basin", "hicache", "thunderagent"]))
def router_steady(basin: Summary, hicache: Summary, thunderagent: Summary) -> dict[str, float]:
    return {"basin": basin.goodput, "hicache": hicache.goodput, "thunderagent": thunderagent.goodput}


@evaluates("A-2p6d-shed", arms=arms(tuple(ROUTED), ["basin"]))
def router_shed(*runs: Summary) -> list[float]:
    return [run.shed for run in runs]


@evaluates("A-2p6d-order", pooled=True, arms=["profiles", *arms(tuple(ROUTED), ROUTER_POLICIES)])
def router_order(profiles: Sequence[Profiled], *runs: Sequence[Summary]) -> Noted:
    found = {profile.name: profile for profile in profiles}
    kappa, critical = ({name: getattr(found[name], what) for name in ROUTED} for what in ("kappa", "critical_per_min"))
    gains = dict(
        zip(ROUTED, over_seeds([leads(s, len(ROUTER_POLICIES)) for s in zip(*runs, strict=True)]), strict=True)
    )
    holds = (
        kappa["affinity"] > kappa["cache_aware"] > kappa["least_loaded"]
        and min(critical, key=critical.__getitem__) == "least_loaded"
        and max(gains, key=gains.__getitem__) == "least_loaded"
    )
    return Noted(holds, f"kappa: {text(kappa)}; critical rates: {text(critical)}; gains: {text(gains)}")


# §7.3: controls ------------------------------------------------------------------------------------------------------


@evaluates("A-sim-control", arms=arms(tuple(CONTROLS), POLICIES))
def controls(*runs: Summary) -> Noted:
    """In each control Basin over the best of the others, per seed."""
    states = {name: run.state for name, run in zip(arms(tuple(CONTROLS), POLICIES), runs, strict=True)}
    ill = [name for name in CONTROLS if states[arm(name, "basin")] != "healthy"]
    return Noted(leads(runs, len(POLICIES)), f"not healthy under Basin: {', '.join(ill)}" if ill else "")


# §7.5: eviction and borrowing ----------------------------------------------------------------------------------------

SURGED = tuple(LRU_SURGES)
EVICTED = (*SURGED, *EVICTION_CALM)


def _evicted(settings: Sequence[str]) -> list[str]:
    orders = [evicting(setting, short) for setting in settings for short in EVICTIONS]
    return arms([*settings, *orders], ["hicache"])


def _by_order(runs: Sequence[Summary], settings: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Goodput under LRU and under each other order, by setting, from runs in the order of `_evicted`."""
    found = np.array([run.goodput for run in runs])
    others = found[settings:].reshape(settings, len(EVICTIONS))
    return found[:settings], {short: others[:, number] for number, short in enumerate(EVICTIONS)}


def _ratios(over: np.ndarray, under: np.ndarray) -> list[float]:
    return [ratio(float(a), float(b)) for a, b in zip(over, under, strict=True)]


@evaluates("A-evict", arms=[*_evicted(SURGED), *arms(SURGED, ["basin"])])
def evictions(*runs: Summary) -> dict[str, list[float]]:
    lru, by_order = _by_order(runs[: -len(SURGED)], len(SURGED))
    basin = np.array([run.goodput for run in runs[-len(SURGED) :]])
    return {
        "oracle_over_lru": _ratios(by_order["oracle"], lru),
        "oracle_over_basin": _ratios(by_order["oracle"], basin),
        "pinning_over_lru": _ratios(by_order["pinning"], lru),
    }


@evaluates("A-evict-largest", arms=_evicted(EVICTED))
def largest_first(*runs: Summary) -> list[float]:
    lru, by_order = _by_order(runs, len(EVICTED))
    return _ratios(by_order["largest"], lru)


def _charged(setting: str) -> list[str]:
    return arms([setting], ["crossflow-charged", "crossflow"])


@evaluates("A-cross-chunk", arms=[*_charged("out3"), *_charged("1p3d-x3"), *_charged(HIGHEST)])
def chunk_charge(*runs: Summary) -> Noted:
    """The ×3 surge of Fig. 15 (outputs ×3); that of Fig. 16 stands in the note."""
    outputs3, plain, high = (ratio(runs[i].goodput, runs[i + 1].goodput) for i in (0, 2, 4))
    sessions = ", ".join(f"{run.goodput:.0f}" for run in runs)
    note = f"the ×3 surge of Fig. 16: {plain:.2f}; sessions/h charged and free, in turn: {sessions}"
    return Noted({"x3": outputs3, "tools3_high": high}, note)


@evaluates("A-cross-basin-flat", arms=arms(["out3", "1p3d-x3", HIGHEST], ["basin"]))
def basin_without_chunks(*runs: Summary) -> Noted:
    """The charge is a setting of decode-side prefill; a run in which decode prefills nothing is the same with it."""
    if any(run.elastic_calls for run in runs):
        raise NotObserved("Basin prefilled on decode, so its runs would have to be repeated with the charge")
    return Noted(1.0, "decode prefilled no call, so there is no chunk to charge")
